// Numbers of a tensor, and the ways they can lie in memory. Gaps between rows hold NaN, so that a
// stage that reads as if rows were packed sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pariskv/pariskv_types.h"

namespace pkv::conformance {

using Shape = std::vector<int64_t>;

int64_t count_of(const Shape& shape);

// The elements in row-major order.
struct Dense {
  pkv_dtype dtype = PKV_DTYPE_F32;
  Shape shape;
  std::vector<uint8_t> bytes;

  // Element i as fp32; f32, f16 and bf16 only.
  float at(int64_t i) const;
  std::vector<float> floats() const;
};

// Rounds `values` to the dtype.
Dense make_dense(pkv_dtype dtype, const Shape& shape, const std::vector<float>& values);

// Entries of the first axis, in the given order.
Dense take(const Dense& source, const std::vector<int32_t>& entries);
// Indices [begin, end) of the last but one axis.
Dense slice_tokens(const Dense& source, int64_t begin, int64_t end);

enum class Layout {
  kDense,       // strides NULL
  kStrided,     // dense, with strides given
  kTokenMajor,  // the last but one and the axis before it change places; rows padded by 8
  kPadded,      // rows padded by 5, tokens by 3: only aligned to the element
  kReversed,    // the last but one axis runs backwards
  kOffset,      // through byte_offset, behind 3 elements of NaN
  kShared,      // inputs only: stride 0 on the last but two axis
  kWideTokens,  // the last but one axis outermost, and its last index above 2^32 bytes: sparse
  kWideRows,    // the first axis likewise
};
const char* layout_name(Layout layout);

inline constexpr int64_t kMargin = 64;  // bytes around the rows of a wide layout

// A view of memory of its own.
struct Tensor {
  pkv_dtype dtype = PKV_DTYPE_F32;
  Shape shape;
  Shape strides;
  Layout layout = Layout::kDense;
  int64_t origin = 0;  // bytes from the beginning of `memory` to element (0, .., 0)
  std::vector<uint8_t> memory;
  // Of a wide layout, whose `memory` is the rows alone, in row-major order with kMargin bytes on
  // both sides of each: byte offset of each margin, row, margin where the view has it, and the
  // bytes from the first to the last. Strides and origin are the view's.
  std::vector<int64_t> places;
  int64_t span = 0;

  // Byte offset in `memory` of each row along the last axis, in row-major order.
  std::vector<int64_t> row_offsets() const;
  int64_t row_bytes() const;
};

// The elements in memory of the given form, `gap` elsewhere. With kShared only the entries at index
// 0 of the shared axis count.
Tensor lay_out(const Dense& dense, Layout layout, uint8_t gap = 0xFF);

// A tensor of the given form whose memory is all `fill`.
Tensor empty_tensor(pkv_dtype dtype, const Shape& shape, Layout layout, uint8_t fill);

// What the view `tensor` shows of `memory`, which has the size of tensor.memory.
Dense gather(const Tensor& tensor, const std::vector<uint8_t>& memory);

// Whether every byte of `memory` that is no element of the view is `fill`.
bool are_gaps(const Tensor& tensor, const std::vector<uint8_t>& memory, uint8_t fill);

}  // namespace pkv::conformance
