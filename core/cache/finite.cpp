#include "core/cache/finite.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "core/base/dtype.h"
#include "core/format/element.h"
#include "core/format/fold.h"
#include "core/format/records.h"

namespace pkv {
namespace {

// Magnitudes below 2^58 have squares of which 576 have a finite sum, so only rows with a larger one
// are looked at closely. The test adds, in each 16- or 32-bit lane of a word, what lifts the first
// such magnitude into the sign bit.
struct Lanes {
  uint64_t magnitude;
  uint64_t lift;
  uint64_t sign;
};
constexpr uint64_t kEach16 = 0x0001000100010001;
constexpr uint64_t kEach32 = 0x0000000100000001;
constexpr uint64_t kLargeExponent = 127 + 58;

constexpr Lanes lanes_of(pkv_dtype dtype) {
  if (dtype == PKV_DTYPE_F32) {
    return {0x7fffffff * kEach32, (0x80000000 - (kLargeExponent << 23)) * kEach32,
            0x80000000 * kEach32};
  }
  // Every finite f16 is small.
  const uint64_t first = dtype == PKV_DTYPE_F16 ? 0x7c00 : kLargeExponent << 7;
  return {0x7fff * kEach16, (0x8000 - first) * kEach16, 0x8000 * kEach16};
}

bool has_large(const std::byte* row, int64_t bytes, const Lanes& lanes) {
  uint64_t found = 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, row + i, sizeof word);
    found |= (word & lanes.magnitude) + lanes.lift;
  }
  return (found & lanes.sign) != 0;
}

bool has_infinite_sum(pkv_dtype dtype, const std::byte* row, int64_t width) {
  return !std::isfinite(format::fold_each(static_cast<int>(width), [&](int j) {
    const float value = format::load_element(dtype, row, j);
    return value * value;
  }));
}
static_assert(format::kMaxHeadDim <= 1024);

}  // namespace

bool is_bad_row(pkv_dtype dtype, const std::byte* row, int64_t width) {
  return has_large(row, width * dtype_bytes(dtype), lanes_of(dtype)) &&
         has_infinite_sum(dtype, row, width);
}

}  // namespace pkv
