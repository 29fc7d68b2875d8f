// A loop over memory whose loads run ahead of their use.
#pragma once

#include "backends/gpu/gpu_rt.h"

namespace PKV_GPU_NS {

inline constexpr int kLoadAhead = 16;

// use(t, load(t)) for t = begin .. end - 1, ascending, with kLoadAhead loads in flight.
template <class Load, class Use>
PKV_DEVICE void load_ahead(int64_t begin, int64_t end, const Load& load, const Use& use) {
  int64_t t = begin;
  for (; t + kLoadAhead <= end; t += kLoadAhead) {
    decltype(load(t)) loaded[kLoadAhead];
#pragma unroll
    for (int i = 0; i < kLoadAhead; ++i) loaded[i] = load(t + i);
#pragma unroll
    for (int i = 0; i < kLoadAhead; ++i) use(t + i, loaded[i]);
  }
#pragma unroll 1
  for (; t < end; ++t) use(t, load(t));
}

}  // namespace PKV_GPU_NS
