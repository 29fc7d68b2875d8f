// Writes the sections of a .pkv file, in any order and in pieces. docs/format.md, section 2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/index/file_checksum.h"
#include "core/index/file_format.h"
#include "core/index/file_system.h"

namespace pkv {

struct SectionSize {
  SectionType type;
  int64_t bytes;
};

class PkvWriter {
 public:
  // Sections lie in the order given. Statuses: file_system.h.
  static absl::StatusOr<PkvWriter> create(const std::string& path, bool may_overwrite,
                                          std::span<const SectionSize> sections);
  // Behind what the section has so far.
  absl::Status write(const SectionType& type, const void* data, int64_t bytes);
  // Every section is complete by now. Header, table, flush, rename.
  absl::Status commit();

 private:
  struct Part {
    FileSection entry;
    int64_t written;
    Checksum checksum;
  };
  explicit PkvWriter(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
  std::vector<Part> parts_;
  int64_t file_bytes_ = 0;
};

}  // namespace pkv
