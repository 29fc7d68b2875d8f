// What stands in front of a .pkv file: header, section table, and the section GEOM, as
// docs/format.md has them. The library checks and loads files; this shows what they say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace pkv::cli {

struct PkvSection {
  std::string type;  // four letters
  bool is_optional = false;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

struct PkvFile {
  uint32_t version = 0;
  uint64_t bytes = 0;
  std::vector<PkvSection> sections;
  // Of GEOM: what pkv_geometry does not say.
  bool center = false;
  bool balance = false;
  bool fits_picked = false;  // fit = picked
  bool isolates = false;     // nonfinite = isolate
  int32_t sequences = 0;
  int64_t capacity = 0;
};

// For a file that pkv_index_load_sync has taken; errors are of bad input all the same.
absl::StatusOr<PkvFile> read_pkv_file(const std::string& path);

}  // namespace pkv::cli
