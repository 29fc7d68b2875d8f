// .fvecs and .bvecs: records of a 32-bit dimension and that many f32 or u8 numbers, [n, d].
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/input_file.h"
#include "tools/reader.h"

namespace pkv::cli {

// The first record gives d; the file's size must be a whole number of such records, and every
// record that is read must say the same d.
absl::StatusOr<std::unique_ptr<TensorReader>> open_vecs(const std::string& path, ElementType type);

}  // namespace pkv::cli
