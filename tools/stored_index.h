// An index loaded from a .pkv file, and a config that agrees with it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "pariskv/pariskv_types.h"
#include "tools/config_options.h"
#include "tools/engine.h"
#include "tools/pkv_file.h"

namespace pkv::cli {

struct StoredIndex {
  std::string path;
  Codec codec;
  Index index;
  PkvFile file;
  pkv_geometry geometry;

  absl::StatusOr<int64_t> length(int32_t sequence) const;
};

absl::StatusOr<StoredIndex> load_index(const Engine& engine, const std::string& path);

// The codec's options from the file, those of a step from `profile` and `given`.
absl::StatusOr<Config> config_of(const StoredIndex& stored, const std::string& profile,
                                 const OptionValues& given);

// Option values of a geometry, by the options' names.
OptionValues codec_values(const StoredIndex& stored);

}  // namespace pkv::cli
