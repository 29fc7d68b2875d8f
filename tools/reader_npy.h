// .npy, versions 1 to 3: magic, version, header length, a Python dict literal, the data.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/input_file.h"
#include "tools/reader.h"

namespace pkv::cli {

// `source` is what texts call the tensor. The file must hold exactly what the header promises.
absl::StatusOr<std::unique_ptr<TensorReader>> open_npy(InputFile file, const std::string& source);

// What stands in a header. Exposed for tests.
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};
absl::StatusOr<NpyHeader> parse_npy_header(std::string_view text, const std::string& source);

}  // namespace pkv::cli
