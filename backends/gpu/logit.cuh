// Products as logits, and ln of sums of their exponentials with a running maximum.
// docs/algorithm.md, section 8.1; docs/numerics.md, section 3: bounded, in fp32.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/gpu_vec.cuh"

namespace PKV_GPU_NS {

// L(x): scaled, and capped.
struct Logit {
  float scale;
  float soft_cap;  // 0: none

  PKV_DEVICE float operator()(float product) const {
    const float logit = scale * product;
    return soft_cap == 0.0F ? logit : soft_cap * std::tanh(logit / soft_cap);
  }
};

PKV_DEVICE float minus_infinity() { return -std::numeric_limits<float>::infinity(); }

// sum = the exponentials added so far, relative to the largest of them.
struct LogSum {
  float max;
  float sum;  // 0: nothing was added

  PKV_DEVICE static LogSum nothing() { return {minus_infinity(), 0.0F}; }

  // Adds exp(x); x is finite or -inf.
  PKV_DEVICE void add(float x) {
    if (x == minus_infinity()) return;
    const float smaller = fexp(-absolute(x - max));
    sum = x > max ? sum * smaller + 1.0F : sum + smaller;
    max = x > max ? x : max;
  }
  // -inf if nothing was added.
  PKV_DEVICE float value() const { return sum == 0.0F ? minus_infinity() : max + flog(sum); }
};

// Commutes.
PKV_DEVICE LogSum both(const LogSum& a, const LogSum& b) {
  if (a.sum == 0.0F) return b;
  if (b.sum == 0.0F) return a;
  const float smaller = fexp(-absolute(a.max - b.max));
  return a.max > b.max ? LogSum{a.max, a.sum + b.sum * smaller}
                       : LogSum{b.max, b.sum + a.sum * smaller};
}

// Of all lanes of a group, for each of them.
template <int kSize>
PKV_DEVICE LogSum sum_of_lanes(const LogSum& mine) {
  return LaneGroup<kSize>::reduce(mine,
                                  [](const LogSum& a, const LogSum& b) { return both(a, b); });
}

}  // namespace PKV_GPU_NS
