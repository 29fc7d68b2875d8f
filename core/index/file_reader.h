// Reads a .pkv file: front and numbers are checked when it is opened, records and what else there
// is as they stream by. docs/format.md, section 2.5.
// Refusals: DATA_LOSS (damaged), FAILED_PRECONDITION (another version or tables), those of
// file_system.h. Nothing is allocated that the size of the file does not account for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/codec/params.h"
#include "core/index/file_checksum.h"
#include "core/index/file_format.h"
#include "core/index/file_system.h"
#include "core/plan/config.h"

namespace pkv {

// One section read from front to back.
class SectionStream {
 public:
  SectionStream(const InputFile& file, const FileSection& section)
      : file_(&file), section_(section) {}
  absl::Status read(void* target, int64_t bytes);
  // All has been read: DATA_LOSS if the checksum differs.
  absl::Status finish() const;

 private:
  const InputFile* file_;
  FileSection section_;
  int64_t done_ = 0;
  Checksum checksum_;
};

class PkvReader {
 public:
  static absl::StatusOr<PkvReader> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const FileGeometry& fields() const { return fields_; }
  const pkv_geometry& geometry() const { return geometry_; }
  CodecOptions options() const;
  absl::StatusOr<CodecParams> params() const;
  const std::vector<FileSequence>& sequences() const { return sequences_; }
  const std::vector<int64_t>& good_counts() const { return good_counts_; }  // [rows]
  const std::vector<double>& value_sums() const { return value_sums_; }     // [rows, dv]

  // Of a plane that the geometry has. The reader stays where it is meanwhile.
  SectionStream plane(int plane) const;
  // Sections that nobody asks for: their checksums all the same.
  absl::Status check_unknown() const;

 private:
  explicit PkvReader(InputFile file) : file_(std::move(file)) {}

  absl::Status read_front();
  absl::Status check_table(const FileHeader& header);
  absl::Status check_zeros(int64_t begin, int64_t end) const;
  absl::Status read_geometry();
  absl::Status check_fields() const;
  absl::Status check_sections() const;
  absl::Status read_numbers();
  absl::Status check_numbers() const;

  const FileSection* find(const SectionType& type) const;
  absl::Status check_size(const SectionType& type, int64_t bytes, bool is_wanted) const;
  // The whole of a section of known size, its checksum compared.
  absl::Status read_section(const SectionType& type, void* target) const;
  absl::Status damaged(std::string_view what) const;
  absl::Status damaged(const SectionType& type, std::string_view what) const;

  InputFile file_;
  std::vector<FileSection> table_;
  FileGeometry fields_{};
  pkv_geometry geometry_{};
  std::vector<float> center_, balance_, value_center_;
  std::vector<FileSequence> sequences_;
  std::vector<int64_t> good_counts_;
  std::vector<double> value_sums_;
};

}  // namespace pkv
