// The shape and the exact constants of a rotation. docs/algorithm.md, section 2.3.
// Not here: the rotation itself, which each backend has; the sign vectors (philox.h).
#pragma once

#include "core/format/config.h"

namespace pkv::format {

struct RotationPlan {
  int log2_size;         // p: the transforms have 2^p elements
  bool is_power_of_two;  // false: two overlapping blocks, at 0 and at dim - 2^p
  int rounds;            // of a power of two: 1 or 2. Otherwise 2 blocks, and this says 1
  float block_scale;     // 1 round: 1. 2 rounds: 2^-p, once at the end. Blocks: c, after each block
  float gain;            // g: <rotate(a), rotate(b)> = g <a, b>
};

// dim >= 1; rounds 1 or 2, read only if dim is a power of two.
PKV_HD constexpr RotationPlan rotation_plan(int dim, int rounds) {
  RotationPlan plan{};
  while ((2 << plan.log2_size) <= dim) ++plan.log2_size;
  plan.is_power_of_two = (1 << plan.log2_size) == dim;
  plan.rounds = plan.is_power_of_two ? rounds : 1;
  if (plan.is_power_of_two && rounds == 1) {
    plan.block_scale = 1.0F;
    plan.gain = static_cast<float>(dim);
    return plan;
  }
  // Halvings are exact, so that one rounded constant gives every odd p its nearest fp32.
  constexpr float kSqrtHalf = 0x1.6a09e6p-1F;  // fp32(2^(-1/2))
  const bool is_odd = !plan.is_power_of_two && plan.log2_size % 2 != 0;
  plan.block_scale = is_odd ? kSqrtHalf : 1.0F;
  const int halvings = plan.is_power_of_two ? plan.log2_size : plan.log2_size / 2;
  for (int i = 0; i < halvings; ++i) plan.block_scale *= 0.5F;
  plan.gain = 1.0F;
  return plan;
}

}  // namespace pkv::format
