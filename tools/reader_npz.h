// .npz: a zip of .npy files, stored or deflated. A member is unpacked into a nameless file in
// TMPDIR (default /var/tmp), so that memory does not grow with it and any part of it can be read.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/reader.h"

namespace pkv::cli {

absl::StatusOr<std::unique_ptr<TensorReader>> open_npz(const std::string& path,
                                                       const std::string& tensor);

}  // namespace pkv::cli
