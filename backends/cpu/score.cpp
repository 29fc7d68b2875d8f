// docs/algorithm.md, section 6.2; docs/numerics.md, section 3.
// The shares exp(scale * est_g - lse_g) are made once, relative to each head's largest logit; where
// their sum comes near underflow a candidate is scored again from its logits.
#include "backends/cpu/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/query.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/score.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr float kSmallest = 1e-30F;  // sums of shares below are not trusted

// One candidate from its logits: max_g + ln sum_g exp(x_g - lse_g - max_g).
float score_slowly(const RowEstimates& row, float scale, float soft_cap, const double* lse,
                   int64_t c) {
  double x[kMaxGroup];
  double max = -std::numeric_limits<double>::infinity();
  for (int32_t g = 0; g < row.group; ++g) {
    x[g] = static_cast<double>(scale) * static_cast<double>(row.estimates[g * row.stride + c]);
    const auto cap = static_cast<double>(soft_cap);
    if (soft_cap != 0.0F) x[g] = cap * std::tanh(x[g] / cap);
    x[g] -= lse[g];
    max = std::max(max, x[g]);
  }
  double sum = 0.0;
  for (int32_t g = 0; g < row.group; ++g) sum += std::exp(x[g] - max);
  return static_cast<float>(max + std::log(sum));
}

}  // namespace

void score_by_mean_impl(const RowEstimates& row, float* scores) {
  const DF df;
  const auto group = hn::Set(df, static_cast<float>(row.group));
  for (int64_t c = 0; c < row.count; c += static_cast<int64_t>(kFloats)) {
    VF sum = load_padded(row.estimates, c, row.count, 0.0F);
    for (int32_t g = 1; g < row.group; ++g) {
      sum = hn::Add(sum, load_padded(row.estimates + g * row.stride, c, row.count, 0.0F));
    }
    store_part(hn::Div(sum, group), scores, c, row.count);
  }
}

void score_by_group_impl(const RowEstimates& row, float scale, float soft_cap, LinesAhead ahead,
                         float* shares, float* scores) {
  const DF df;
  const int64_t count = row.count;
  double lse[kMaxGroup];
  float weight[kMaxGroup];  // of a head's shares: 1 / their sum
  for (int32_t g = 0; g < row.group; ++g) {
    const float* x = row.estimates + g * row.stride;
    float* share = shares + g * count;
    float factor = scale;
    if (soft_cap != 0.0F) {  // logits in the place of shares, for a start
      for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloats)) {
        const VF logit = hn::Mul(hn::Set(df, scale), load_padded(x, i, count, 0.0F));
        store_part(capped(logit, soft_cap), share, i, count);
      }
      x = share;
      factor = 1.0F;
    }
    const float max = factor * largest_of(x, count);
    const double sum = sum_of_exps(x, count, factor, max, [&](int64_t i, VF e) HWY_ATTR {
      ahead.request(kFloats / 8);
      store_part(e, share, i, count);
    });
    lse[g] = static_cast<double>(max) + std::log(sum);
    weight[g] = static_cast<float>(1.0 / sum);
  }
  for (int64_t c = 0; c < count; c += static_cast<int64_t>(kFloats)) {
    VF sum = hn::Zero(df);
    for (int32_t g = 0; g < row.group; ++g) {
      sum =
          hn::MulAdd(load_padded(shares + g * count, c, count, 1.0F), hn::Set(df, weight[g]), sum);
    }
    store_part(hn::Log(df, sum), scores, c, count);
    if (hn::AllFalse(df, hn::Lt(sum, hn::Set(df, kSmallest)))) continue;
    HWY_ALIGN float sums[kFloats];
    hn::Store(sum, df, sums);
    const int64_t end = std::min(count, c + static_cast<int64_t>(kFloats));
    for (int64_t i = c; i < end; ++i) {
      if (sums[i - c] < kSmallest) scores[i] = score_slowly(row, scale, soft_cap, lse, i);
    }
  }
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(score_by_mean_impl);
HWY_EXPORT(score_by_group_impl);

void score_by_mean(const Isa& isa, const RowEstimates& row, float* scores) {
  PKV_CPU_DISPATCH(isa, score_by_mean_impl)(row, scores);
}

void score_by_group(const Isa& isa, const RowEstimates& row, float scale, float soft_cap,
                    LinesAhead ahead, float* shares, float* scores) {
  PKV_CPU_DISPATCH(isa, score_by_group_impl)(row, scale, soft_cap, ahead, shares, scores);
}

}  // namespace pkv::cpu
#endif
