// A product of query and key as a logit, and what sums of exponentials are made of. Bounded, in
// fp32. docs/algorithm.md, section 8.1; docs/numerics.md, section 3.
#pragma once

#include "backends/gpu/gpu_vec.cuh"

namespace PKV_GPU_NS {

PKV_DEVICE float no_logit() { return -std::numeric_limits<float>::infinity(); }

struct Logit {
  float scale;
  float soft_cap;  // 0: none

  PKV_DEVICE float operator()(float product) const {
    const float logit = scale * product;
    return soft_cap == 0.0F ? logit : soft_cap * std::tanh(logit / soft_cap);
  }
};

// exp(logit - max): 0 for no logit, also where there is no max.
PKV_DEVICE float exp_below(float logit, float max) {
  return logit == no_logit() ? 0.0F : std::exp(logit - max);
}

PKV_DEVICE float larger(float a, float b) { return a < b ? b : a; }

}  // namespace PKV_GPU_NS
