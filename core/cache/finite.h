// Keys and values that a sequence cannot hold: rows whose squares have no finite sum in fp32.
// docs/algorithm.md, section 3.6. For tensors in host memory.
#pragma once

#include <cstdint>
#include <optional>

#include "core/base/tensor.h"

namespace pkv {

struct BadRow {
  int64_t token;
  int64_t head;
};
// The first bad row, by token, then head, of [n, heads, width] f32, f16 or bf16.
std::optional<BadRow> first_bad_row(const TensorView& rows);

}  // namespace pkv
