// fold over the lanes of a group: the sum of every exact rule. docs/algorithm.md, section 0.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/gpu_vec.cuh"
#include "core/format/fold.h"

namespace PKV_GPU_NS {

// The fold of f(kFirst), f(kFirst + kStep), .. below kCount.
template <int kCount, int kFirst = 0, int kStep = 1, class F>
PKV_DEVICE float fold_terms(const F& f) {
  if constexpr (kStep == kCount) {
    return f(kFirst);
  } else {
    return fadd_rn(fold_terms<kCount, kFirst, 2 * kStep>(f),
                   fold_terms<kCount, kFirst + kStep, 2 * kStep>(f));
  }
}

// f(0), .., f(7): one subspace.
template <class F>
PKV_DEVICE float fold8(const F& f) {
  return fold_terms<8>(f);
}

template <int kPerLane, class F>
PKV_DEVICE float fold_lane(int count, const F& f) {
  const int rank = LaneGroup<32>::rank();
  return fold_terms<kPerLane>([&](int k) {
    const int j = rank + 32 * k;
    return j < count ? f(j) : 0.0F;
  });
}

// f(0) .. f(count - 1), count up to 1024, each evaluated by the lane of rank j % 32. Every lane of
// the 32 calls it and gets the sum.
template <class F>
PKV_DEVICE float fold_group(int count, const F& f) {
  using Group = LaneGroup<32>;
  const int size = format::fold_size(count);
  float sum = 0.0F;
  switch (size) {
    case 64: sum = fold_lane<2>(count, f); break;
    case 128: sum = fold_lane<4>(count, f); break;
    case 256: sum = fold_lane<8>(count, f); break;
    case 512: sum = fold_lane<16>(count, f); break;
    case 1024: sum = fold_lane<32>(count, f); break;
    default: sum = fold_lane<1>(count, f); break;
  }
  // Below 32 numbers only the first `size` lanes have any: what the others add is not used.
  for (int bits = size < 32 ? size / 2 : 16; bits >= 1; bits /= 2) {
    sum = fadd_rn(sum, Group::shuffle_xor(sum, bits));
  }
  return Group::shuffle(sum, 0);
}

}  // namespace PKV_GPU_NS
