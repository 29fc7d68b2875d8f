// The sections of a cache's .pkv file, byte for byte. docs/format.md, section 3.
#pragma once

#include <cstdint>

#include "core/index/file_format.h"

namespace pkv {

inline constexpr SectionType kCacheSection = {'C', 'S', 'H', 'P'};
inline constexpr SectionType kLayersSection = {'C', 'L', 'A', 'Y'};
inline constexpr SectionType kImportedSection = {'C', 'I', 'M', 'P'};
inline constexpr SectionType kStatesSection = {'C', 'S', 'E', 'Q'};
inline constexpr SectionType kFitsSection = {'C', 'F', 'I', 'T'};
inline constexpr SectionType kQueriesSection = {'C', 'Q', 'R', 'Y'};
inline constexpr SectionType kRowsSection = {'C', 'R', 'O', 'W'};

// Tokens of a sequence whose rows lie together: K of all heads, then V.
inline constexpr int64_t kFileChunkTokens = 4096;

struct FileCache {
  int32_t layers;
  int32_t sequences;
  int32_t query_heads;
  int32_t dtype;
  int32_t query_type;  // 0: no queries were kept
  int32_t fit_positions;
  int32_t refits;
  int32_t reserved;
  int64_t sink;
  int64_t local;
  int64_t interval;
  int64_t dense_below;
};
static_assert(sizeof(FileCache) == 64);

struct FileLayer {
  int32_t attention;
  int32_t has_imported;
  int64_t window;
};
static_assert(sizeof(FileLayer) == 16);

// Of one sequence in one layer.
struct FileState {
  int64_t tokens;
  int64_t fits;
  int64_t queries;
};
static_assert(sizeof(FileState) == 24);

// In front of a fit's numbers: centre, balance, with a sketch value centre.
struct FileFit {
  int64_t length;
  int64_t has_numbers;  // 0: they follow from rows and queries; then zeros are in their place
};
static_assert(sizeof(FileFit) == 16);

}  // namespace pkv
