// Where the tail takes its samples. docs/algorithm.md, section 6.4.
#pragma once

#include <cstdint>

#include "core/format/config.h"
#include "pariskv/pariskv_types.h"

namespace pkv::format {

inline constexpr int kSampleShrink = 32;  // the 32 of l = N / (N + 32), section 8

// The samples of a row of n keys.
struct Samples {
  int64_t steps;   // m: positions that could be samples
  int64_t stride;  // p
  int64_t count;   // c <= m

  // Of sample i, 0 <= i < count.
  PKV_HD constexpr int64_t position(int64_t i) const { return stride * (i * steps / count); }
  // Whether every key is a sample.
  PKV_HD constexpr bool is_all() const { return stride == 1 && count == steps; }
};

// most = T, at least 1; 0 <= n < 2^31, so that i * steps stays below 2^47 for T <= 65,536.
PKV_HD constexpr Samples samples(const pkv_geometry& geometry, int64_t n, int32_t most) {
  const int64_t stride = geometry.sketch_stride > 0 ? geometry.sketch_stride : 1;
  const int64_t steps = (n + stride - 1) / stride;
  return {steps, stride, steps < most ? steps : most};
}

}  // namespace pkv::format
