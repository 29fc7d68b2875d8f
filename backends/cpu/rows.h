// Evenly spaced rows of a tensor view, for kernels.
#pragma once

#include <cstdint>

#include "backends/cpu/tensor.h"
#include "pariskv/pariskv_types.h"

namespace pkv::cpu {

// Row i lies i * row_bytes behind `first`.
struct Rows {
  const uint8_t* first;  // NULL: none
  int64_t row_bytes;
  pkv_dtype dtype;

  const uint8_t* at(int64_t i) const { return first + i * row_bytes; }
};

// Rows [index.., 0.., :] of a view; none for ndim 0.
template <class... Index>
Rows rows_of(const pkv_tensor& view, Index... index) {
  if (view.ndim == 0) return {nullptr, 0, view.dtype};
  return {reinterpret_cast<const uint8_t*>(row_at(view, index...)),
          stride_of(view, sizeof...(Index)) * dtype_bytes(view.dtype), view.dtype};
}

}  // namespace pkv::cpu
