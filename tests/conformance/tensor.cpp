#include "tests/conformance/tensor.h"

#include <algorithm>
#include <cstring>

#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

constexpr int64_t kWideBytes = (int64_t{1} << 32) + (int64_t{1} << 29);

bool is_wide(Layout layout) { return layout == Layout::kWideTokens || layout == Layout::kWideRows; }

// Memory of a layout before it is filled.
struct Form {
  Shape strides;
  int64_t origin = 0;    // elements
  int64_t elements = 0;  // of the memory
};

// Strides of the axes in `order` (outermost first), each axis `extent` long in memory.
Form strides_of(const std::vector<size_t>& order, const Shape& extent) {
  Form form = {Shape(extent.size()), 0, 1};
  for (size_t i = order.size(); i-- > 0;) {
    form.strides[order[i]] = form.elements;
    form.elements *= std::max<int64_t>(extent[order[i]], 0);
  }
  return form;
}

// One axis is outermost and reaches over kWideBytes, the others lie within one step of it.
Form wide_form(const Shape& shape, size_t axis, int64_t element) {
  Shape extent = shape;
  extent.back() += 2 * kMargin / element;
  std::vector<size_t> order;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != axis) order.push_back(i);
  }
  Form form = strides_of(order, extent);
  const int64_t steps = std::max<int64_t>(shape[axis] - 1, 1);
  const int64_t step = kWideBytes / element / steps / 64 * 64;
  form.strides[axis] = std::max(step, form.elements);
  form.elements += form.strides[axis] * (shape[axis] - 1);
  form.origin = kMargin / element;
  return form;
}

Form form_of(const Shape& shape, Layout layout) {
  const size_t axes = shape.size();
  const size_t row = axes - 1;
  const size_t token = axes - 2;
  Shape extent = shape;
  std::vector<size_t> order(axes);
  for (size_t axis = 0; axis < axes; ++axis) order[axis] = axis;
  if (layout == Layout::kTokenMajor) {
    std::swap(order[token], order[token - 1]);
    extent[row] += 8;
  } else if (layout == Layout::kPadded) {
    extent[row] += 5;
    extent[token] += 3;
  } else if (layout == Layout::kReversed) {
    extent[row] += 1;
  } else if (layout == Layout::kShared) {
    extent[token - 1] = std::min<int64_t>(extent[token - 1], 1);
  }
  Form form = strides_of(order, extent);
  if (layout == Layout::kReversed && shape[token] > 0) {
    form.origin = (shape[token] - 1) * form.strides[token];
    form.strides[token] = -form.strides[token];
  } else if (layout == Layout::kPadded) {
    form.origin = std::min<int64_t>(3, form.elements);
  } else if (layout == Layout::kOffset) {
    form.origin = 3;
    form.elements += 3;
  } else if (layout == Layout::kShared) {
    form.strides[token - 1] = 0;
  }
  if (count_of(shape) == 0) form.origin = form.elements = 0;
  return form;
}

// Byte offsets of the rows along the last axis, in row-major order.
std::vector<int64_t> offsets_by(const Shape& shape, const Shape& strides, int64_t element) {
  std::vector<int64_t> offsets;
  if (count_of(shape) == 0) return offsets;
  Shape index(shape.size(), 0);
  const size_t last = shape.size() - 1;
  while (true) {
    int64_t elements = 0;
    for (size_t axis = 0; axis < last; ++axis) elements += index[axis] * strides[axis];
    offsets.push_back(elements * element);
    size_t axis = last;
    while (axis-- > 0) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
    if (axis == SIZE_MAX) return offsets;
  }
}

}  // namespace

int64_t count_of(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

float Dense::at(int64_t i) const {
  if (dtype == PKV_DTYPE_F32) {
    float value = 0;
    std::memcpy(&value, bytes.data() + 4 * i, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
  return half_to_float(dtype, bits);
}

std::vector<float> Dense::floats() const {
  std::vector<float> values(static_cast<size_t>(count_of(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = at(static_cast<int64_t>(i));
  return values;
}

Dense make_dense(pkv_dtype dtype, const Shape& shape, const std::vector<float>& values) {
  Dense dense = {dtype, shape, {}};
  dense.bytes.resize(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == PKV_DTYPE_F32) {
      std::memcpy(dense.bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = float_to_half(dtype, values[i]);
      std::memcpy(dense.bytes.data() + 2 * i, &bits, 2);
    }
  }
  return dense;
}

Dense take(const Dense& source, const std::vector<int32_t>& entries) {
  Dense result = {source.dtype, source.shape, {}};
  result.shape[0] = static_cast<int64_t>(entries.size());
  const size_t size = source.shape[0] == 0 ? 0 : source.bytes.size() / source.shape[0];
  for (const int32_t entry : entries) {
    const auto begin = source.bytes.begin() + static_cast<int64_t>(size) * entry;
    result.bytes.insert(result.bytes.end(), begin, begin + static_cast<int64_t>(size));
  }
  return result;
}

Dense slice_tokens(const Dense& source, int64_t begin, int64_t end) {
  Dense result = {source.dtype, source.shape, {}};
  const size_t axis = source.shape.size() - 2;
  result.shape[axis] = end - begin;
  const int64_t token = source.shape.back() * dtype_bytes(source.dtype);
  const int64_t row = source.shape[axis] * token;
  const int64_t rows = row == 0 ? 0 : static_cast<int64_t>(source.bytes.size()) / row;
  for (int64_t r = 0; r < rows; ++r) {
    const auto first = source.bytes.begin() + r * row;
    result.bytes.insert(result.bytes.end(), first + begin * token, first + end * token);
  }
  return result;
}

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kDense: return "dense";
    case Layout::kStrided: return "strided";
    case Layout::kTokenMajor: return "token_major";
    case Layout::kPadded: return "padded";
    case Layout::kReversed: return "reversed";
    case Layout::kOffset: return "offset";
    case Layout::kShared: return "shared";
    case Layout::kWideTokens: return "wide_tokens";
    default: return "wide_rows";
  }
}

int64_t Tensor::row_bytes() const { return shape.back() * dtype_bytes(dtype); }

std::vector<int64_t> Tensor::row_offsets() const {
  std::vector<int64_t> offsets = offsets_by(shape, strides, dtype_bytes(dtype));
  for (size_t row = 0; row < offsets.size(); ++row) {
    offsets[row] = is_wide(layout)
                       ? kMargin + static_cast<int64_t>(row) * (row_bytes() + 2 * kMargin)
                       : origin + offsets[row];
  }
  return offsets;
}

Tensor empty_tensor(pkv_dtype dtype, const Shape& shape, Layout layout, uint8_t fill) {
  const int64_t size = dtype_bytes(dtype);
  if (is_wide(layout) && count_of(shape) > 0) {
    const size_t axis = layout == Layout::kWideRows ? 0 : shape.size() - 2;
    const Form form = wide_form(shape, axis, size);
    Tensor tensor = {dtype, shape, form.strides, layout, form.origin * size, {}, {}, 0};
    tensor.places = offsets_by(shape, form.strides, size);
    tensor.span = form.elements * size;
    tensor.memory.assign(tensor.places.size() * (tensor.row_bytes() + 2 * kMargin), fill);
    return tensor;
  }
  const Form form = form_of(shape, layout);
  Tensor tensor = {dtype, shape, form.strides, layout, form.origin * size, {}, {}, 0};
  tensor.memory.assign(static_cast<size_t>(form.elements * size), fill);
  return tensor;
}

Tensor lay_out(const Dense& dense, Layout layout, uint8_t gap) {
  Tensor tensor = empty_tensor(dense.dtype, dense.shape, layout, gap);
  const std::vector<int64_t> rows = tensor.row_offsets();
  const auto bytes = static_cast<size_t>(tensor.row_bytes());
  // Backwards: of rows that share their memory, the one at index 0 is written last.
  for (size_t row = rows.size(); row-- > 0;) {
    std::memcpy(tensor.memory.data() + rows[row], dense.bytes.data() + row * bytes, bytes);
  }
  return tensor;
}

Dense gather(const Tensor& tensor, const std::vector<uint8_t>& memory) {
  Dense dense = {tensor.dtype, tensor.shape, {}};
  for (const int64_t row : tensor.row_offsets()) {
    const auto begin = memory.begin() + row;
    dense.bytes.insert(dense.bytes.end(), begin, begin + tensor.row_bytes());
  }
  return dense;
}

bool are_gaps(const Tensor& tensor, const std::vector<uint8_t>& memory, uint8_t fill) {
  std::vector<uint8_t> rest = memory;
  for (const int64_t row : tensor.row_offsets()) {
    std::fill_n(rest.begin() + row, tensor.row_bytes(), fill);
  }
  return std::all_of(rest.begin(), rest.end(), [fill](uint8_t byte) { return byte == fill; });
}

}  // namespace pkv::conformance
