// What holds of every reader of tensors: what it takes lies within the file, is read the same in
// pieces, and nothing is read behind it; what it refuses is the file's fault and is said in a text.
#pragma once

#include "tests/fuzz/fuzz.h"
#include "tools/reader.h"

namespace pkv::fuzz {

// How many bytes of tensor an input of `bytes` may give at most; 1 for files that are not packed.
void check_tensor(const absl::StatusOr<std::unique_ptr<cli::TensorReader>>& opened,
                  std::size_t bytes, int64_t packing = 1);

}  // namespace pkv::fuzz
