// What is asked of a step.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/tensor.h"
#include "pariskv/pariskv.h"

namespace pkv {

struct StepCall {
  std::span<const int32_t> sequences;
  std::span<const int64_t> counts;  // query tokens of each
  int64_t tokens;                   // n, their sum
  const TensorView* query;          // [n, hq, d]
  const TensorView* output;         // [n, hq, dv]; NULL: retrieve alone
  float* lse;
  bool is_exact;
  const pkv_cache_hits* hits;  // NULL: not wanted
  // By sequence; empty: none. Attends to the zone alone: dense_gaps.h.
  std::span<const uint8_t> without_dense;
  bool appends;      // the batch's tokens are new: the device's lengths do not count them yet
  bool is_captured;  // lengths are those of each launch, up to what is reserved
};

}  // namespace pkv
