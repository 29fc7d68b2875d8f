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
#include "core/index/file_format.h"
#include "core/index/file_sections.h"
#include "core/index/file_system.h"
#include "core/plan/config.h"

namespace pkv {

class PkvReader : public PkvFile {
 public:
  static absl::StatusOr<PkvReader> open(const std::string& path);

  const FileGeometry& fields() const { return fields_; }
  const pkv_geometry& geometry() const { return geometry_; }
  CodecOptions options() const;
  absl::StatusOr<CodecParams> params() const;
  const std::vector<FileSequence>& sequences() const { return sequences_; }
  const std::vector<int64_t>& good_counts() const { return good_counts_; }  // [rows]
  const std::vector<double>& value_sums() const { return value_sums_; }     // [rows, dv]

  // Of a plane that the geometry has. The reader stays where it is meanwhile.
  SectionStream plane(int plane) const;

 private:
  explicit PkvReader(InputFile file) : PkvFile(std::move(file)) {}

  absl::Status read_geometry();
  absl::Status check_fields() const;
  absl::Status check_sections() const;
  absl::Status read_numbers();
  absl::Status check_numbers() const;

  FileGeometry fields_{};
  pkv_geometry geometry_{};
  std::vector<float> center_, balance_, value_center_;
  std::vector<FileSequence> sequences_;
  std::vector<int64_t> good_counts_;
  std::vector<double> value_sums_;
};

}  // namespace pkv
