// Weighted sums of sketched values, in rotated space. docs/algorithm.md, sections 3.5 and 8.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/layout.h"

namespace pkv::cpu {

inline constexpr int32_t kSketchHeads = 4;  // heads summed together

// Sketches of a row and what each counts for four heads.
struct SketchList {
  RecordRow records;
  int32_t bits;  // 2 or 4
  int32_t dv;
  const int32_t* entries;  // [count] positions / sketch_stride
  const float* weights;    // [count, 4]
  int64_t count;
};

// sums[head * stride + j] = sum over the list of weight * w_v * sign * a[code], for four heads.
void sum_sketches(const Isa& isa, const SketchList& list, float* sums, int64_t stride);

}  // namespace pkv::cpu
