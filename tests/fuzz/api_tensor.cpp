#include "tests/fuzz/api_tensor.h"

#include <algorithm>

namespace pkv::fuzz {
namespace {

__extension__ typedef __int128 Wide;

int64_t bytes_of(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_F32:
    case PKV_DTYPE_I32: return 4;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_I64: return 8;
    default: return 1;
  }
}

// Whether elements lie within `memory`, or can lie nowhere at all.
bool may_be_handed_over(const View& view, int32_t wanted_rank, Memory& memory) {
  const pkv_tensor& t = view.tensor;
  if (t.ndim != wanted_rank || !view.has_shape || t.data == nullptr) return true;
  Wide first = 0, last = 0, count = 1;
  Wide dense = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    const int64_t extent = view.shape[static_cast<std::size_t>(i)];
    if (extent < 0) return true;
    const Wide stride = view.has_strides ? Wide{view.strides[static_cast<std::size_t>(i)]} : dense;
    const Wide reach = (Wide{extent} - 1) * stride;
    (reach < 0 ? first : last) += reach;
    count *= extent;
    dense *= extent;
    if (count > (Wide{1} << 64) && t.ndim == wanted_rank) return count != 0;
  }
  if (count == 0) return true;
  const int64_t size = bytes_of(t.dtype);
  const Wide begin = Wide{t.byte_offset} + first * size;
  const Wide end = Wide{t.byte_offset} + last * size + size;
  if (begin >= 0 && end <= memory.size()) return true;
  const Wide limit = Wide{1} << 64;  // an address range that wraps
  return begin < -limit || end > limit;
}

}  // namespace

int64_t odd_number(Bytes& bytes, int64_t usual) {
  constexpr int64_t kOdd[] = {0,         1,         -1,        2,         7,
                              INT32_MAX, INT32_MIN, 1LL << 31, 1LL << 32, (1LL << 32) + 1,
                              1LL << 62, INT64_MAX, INT64_MIN, 1 << 20,   65536};
  const uint32_t word = bytes.byte();
  if (word < 200) return usual;
  if (word < 230) return usual + static_cast<int64_t>(word) - 215;
  return kOdd[bytes.below(std::size(kOdd))];
}

const pkv_tensor* View::get() {
  tensor.shape = has_shape ? shape.data() : nullptr;
  tensor.strides = has_strides ? strides.data() : nullptr;
  return &tensor;
}

View view_of(Bytes& bytes, Memory& memory, std::initializer_list<int64_t> extents,
             pkv_dtype dtype) {
  View sound;
  sound.tensor.data = memory.data();
  sound.tensor.device_type = PKV_DEVICE_CPU;
  sound.tensor.ndim = static_cast<int32_t>(extents.size());
  sound.tensor.dtype = dtype;
  std::copy(extents.begin(), extents.end(), sound.shape.begin());
  int64_t stride = 1;
  for (std::size_t i = extents.size(); i-- > 0;) {
    sound.strides[i] = stride;
    stride *= std::max<int64_t>(1, sound.shape[i]);
  }
  View view = sound;
  const std::size_t axis = bytes.below(static_cast<uint32_t>(extents.size()));
  switch (bytes.below(48)) {
    case 0: view.tensor.ndim = static_cast<int32_t>(odd_number(bytes, view.tensor.ndim + 1)); break;
    case 1: view.tensor.dtype = static_cast<pkv_dtype>(odd_number(bytes, bytes.below(9))); break;
    case 2: view.shape[axis] = odd_number(bytes, view.shape[axis] + 1); break;
    case 3: view.shape[axis] = bytes.below(9); break;
    case 4:  // padded
      view.has_strides = true;
      for (std::size_t i = 0; i + 1 < extents.size(); ++i) view.strides[i] *= 2;
      break;
    case 5: view.has_strides = true, view.strides[axis] = 0; break;
    case 6: {  // backwards
      view.has_strides = true;
      const int64_t reach = view.strides[axis] * (view.shape[axis] - 1);
      view.tensor.byte_offset =
          static_cast<uint64_t>(std::max<int64_t>(0, reach * bytes_of(dtype)));
      view.strides[axis] = -view.strides[axis];
      break;
    }
    case 7: view.has_strides = true, view.strides[axis] = odd_number(bytes, 3); break;
    case 8: view.has_strides = true, std::swap(view.strides[axis], view.strides[0]); break;
    case 9:
      view.tensor.device_type = static_cast<int32_t>(odd_number(bytes, bytes.below(15)));
      break;
    case 10: view.tensor.device_id = static_cast<int32_t>(odd_number(bytes, 1)); break;
    case 11: view.tensor.data = nullptr; break;
    case 12:
      view.tensor.byte_offset = static_cast<uint64_t>(odd_number(bytes, bytes.below(9)));
      break;
    case 13: view.has_shape = false; break;
    case 14: view.tensor.ndim = 0; break;
    default: break;
  }
  return may_be_handed_over(view, sound.tensor.ndim, memory) ? view : sound;
}

}  // namespace pkv::fuzz
