// Rows of pkv_tensor views: address, element loads, element stores. Views may be strided and
// unaligned; only the last axis is contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/format/element.h"
#include "core/format/pages.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::host {

constexpr int64_t dtype_bytes(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_F32:
    case PKV_DTYPE_I32: return 4;
    case PKV_DTYPE_I64: return 8;
    default: return 0;
  }
}

// Stride of an axis in elements.
inline int64_t stride_of(const pkv_tensor& tensor, int32_t axis) {
  if (tensor.strides != nullptr) return tensor.strides[axis];
  int64_t stride = 1;
  for (int32_t inner = axis + 1; inner < tensor.ndim; ++inner) stride *= tensor.shape[inner];
  return stride;
}

// Address of element (index.., 0): the row along the last axis at the given leading indices.
template <class... Index>
std::byte* row_at(const pkv_tensor& tensor, Index... index) {
  const int64_t leading[] = {int64_t{index}...};
  int64_t elements = 0;
  int32_t axis = 0;
  for (const int64_t i : leading) elements += i * stride_of(tensor, axis++);
  return static_cast<std::byte*>(tensor.data) +
         (static_cast<int64_t>(tensor.byte_offset) + elements * dtype_bytes(tensor.dtype));
}

// Address of the vector at a position of a KV head: of sequence (or entry) `i` of a view, or of
// sequence `i` in pages.
inline const std::byte* token_at(const pkv_tensor& tensor, const pkv_pages& pages, int64_t i,
                                 int32_t head, int64_t position) {
  if (pages.table == nullptr) return row_at(tensor, i, head, position);
  return format::token_pages(pages, i, head).at(position);
}

using format::load_element;
using format::store_element;

// Elements 0 .. count of a row; Real is float or double.
template <class Real>
void load_elements(pkv_dtype dtype, const std::byte* row, Real* out, int32_t count) {
  for (int32_t j = 0; j < count; ++j) out[j] = load_element(dtype, row, j);
}

// The same of the row at the given leading indices.
template <class Real, class... Index>
void load_row(const pkv_tensor& tensor, Real* out, int32_t count, Index... index) {
  load_elements(tensor.dtype, row_at(tensor, index...), out, count);
}

}  // namespace pkv::host
