// Scores from estimates: what orders the candidates. docs/algorithm.md, section 6.2, without norms.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/prefetch.h"

namespace pkv::cpu {

// The estimates of one row: estimates[g * stride + c], 0 <= g < group, 0 <= c < count.
struct RowEstimates {
  const float* estimates;
  int64_t stride;
  int32_t group;
  int32_t count;
};

// rank = mean, exact: ((est_0 + est_1) + ..) / fp32(G)
void score_by_mean(const Isa& isa, const RowEstimates& row, float* scores);

// rank = group: ln sum_g exp(logit_g - lse_g), logit = scale * est, capped unless soft_cap is 0.
// shares [group, count]: temporary. `ahead`: what to ask for meanwhile.
void score_by_group(const Isa& isa, const RowEstimates& row, float scale, float soft_cap,
                    LinesAhead ahead, float* shares, float* scores);

}  // namespace pkv::cpu
