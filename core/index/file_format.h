// The fixed parts of a .pkv file, byte for byte. docs/format.md, section 2.
// Not here: reading (file_reader.h), writing (file_writer.h), the system (file_system.h).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/format/records.h"
#include "core/index/record_planes.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// The structs below are copied as they are.
static_assert(std::endian::native == std::endian::little,
              ".pkv files are little-endian; this host would have to swap");

inline constexpr std::array<uint8_t, 8> kFileMagic = {0x89, 'P', 'K', 'V', 0x0d, 0x0a, 0x1a, 0x0a};
inline constexpr uint32_t kFileByteOrder = 0x01020304;
inline constexpr uint32_t kFileVersion = format::kFormatVersion;
inline constexpr int64_t kFileAlignment = 64;
inline constexpr uint32_t kMaxSections = 64;

struct FileHeader {
  std::array<uint8_t, 8> magic;
  uint32_t byte_order;
  uint32_t version;
  uint64_t file_bytes;
  uint32_t section_count;
  uint32_t reserved;
  uint64_t table_checksum;
  std::array<uint64_t, 2> reserved_2;
  uint64_t header_checksum;  // of all before
};
static_assert(sizeof(FileHeader) == 64 && offsetof(FileHeader, header_checksum) == 56);

enum : uint32_t { kSectionOptional = 1 };

struct FileSection {
  std::array<char, 4> type;
  uint32_t flags;
  uint64_t offset;
  uint64_t bytes;
  uint64_t checksum;
};
static_assert(sizeof(FileSection) == 32);

using SectionType = std::array<char, 4>;
inline constexpr SectionType kGeometrySection = {'G', 'E', 'O', 'M'};
inline constexpr SectionType kParamsSection = {'P', 'A', 'R', 'M'};
inline constexpr SectionType kSequencesSection = {'S', 'E', 'Q', 'S'};
inline constexpr SectionType kGoodCountsSection = {'G', 'O', 'O', 'D'};
inline constexpr SectionType kValueSumsSection = {'V', 'S', 'U', 'M'};
inline constexpr SectionType kPlaneSections[kPlanes] = {
    {'S', 'I', 'G', 'N'}, {'V', 'F', 'A', 'C'}, {'C', 'O', 'D', 'E'}, {'F', 'A', 'C', 'T'},
    {'V', 'S', 'G', 'N'}, {'V', 'C', 'O', 'D'}, {'V', 'W', 'G', 'T'}, {'V', 'N', 'R', 'M'}};

// Section GEOM.
struct FileGeometry {
  uint32_t subspace;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t value_dim;
  int32_t v_source;
  int32_t codec;
  int32_t vote;
  int32_t rounds;
  int32_t sketch_bits;
  int32_t value_norm;
  int32_t center;
  int32_t balance;
  int32_t nonfinite;
  int32_t sequences;
  uint64_t seed;
  int64_t capacity;
  uint64_t levels;
  int32_t sketch_stride;
  int32_t fit_picked;
};
static_assert(sizeof(FileGeometry) == 88);

// One entry of section SEQS.
struct FileSequence {
  int64_t length;
  uint32_t flags;
  uint32_t reserved;
};
static_assert(sizeof(FileSequence) == 16);
enum : uint32_t { kSequenceLacksValues = 1 };

// Checksum of the quantiser's tables that a geometry uses.
uint64_t levels_checksum(int32_t codec, int32_t sketch_bits);

// Bytes of header and table, padded.
constexpr int64_t front_bytes(int64_t sections) {
  const int64_t bytes = int64_t{sizeof(FileHeader)} + sections * int64_t{sizeof(FileSection)};
  return (bytes + kFileAlignment - 1) / kFileAlignment * kFileAlignment;
}

}  // namespace pkv
