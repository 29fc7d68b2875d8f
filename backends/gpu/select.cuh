// Stage select: the C keys with the highest vote. docs/algorithm.md, section 5. Exact.
// Not here: how the best of a row are found (best.cuh).
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/views.h"
#include "core/format/candidates.h"

namespace PKV_GPU_NS {

// n and C of a row, from lengths in device memory.
struct SelectBounds {
  const float* votes;  // [rows, stride]
  int64_t stride;
  const int64_t* lengths;  // [b]
  int32_t kv_heads;
  pkv_candidate_rule rule;

  PKV_DEVICE BestRow row(int64_t r) const {
    const int64_t n = lengths[row_index(r, kv_heads).entry];
    return {votes + r * stride, n, format::candidate_count(rule, n)};
  }
};

}  // namespace PKV_GPU_NS
