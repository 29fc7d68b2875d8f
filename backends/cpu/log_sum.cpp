#include "backends/cpu/log_sum.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/log_sum.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {

double log_sum_exp_impl(const float* x, int64_t count, LinesAhead& ahead) {
  const float max = largest_of(x, count);
  if (max == -std::numeric_limits<float>::infinity()) return static_cast<double>(max);
  const double sum = sum_of_exps(x, count, 1.0F, max,
                                 [&ahead](int64_t, VF) HWY_ATTR { ahead.request(kFloats / 8); });
  return static_cast<double>(max) + std::log(sum);
}

float largest_impl(const float* x, int64_t count) { return largest_of(x, count); }

ExpSums exp_all_impl(const float* x, int64_t count, float max, float* out) {
  const DF df;
  double squares = 0.0;
  VF block = hn::Zero(df);
  const double sum = sum_of_exps(x, count, 1.0F, max, [&](int64_t i, VF e) HWY_ATTR {
    store_part(e, out, i, count);
    block = hn::MulAdd(e, e, block);
    if (i % 1024 + static_cast<int64_t>(kFloats) < 1024) return;
    squares += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, block)));
    block = hn::Zero(df);
  });
  squares += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, block)));
  return {sum, squares};
}

void scale_all_impl(const float* x, int64_t count, float scale, float* out) {
  const DF df;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloats)) {
    store_part(hn::Mul(load_padded(x, i, count, 0.0F), hn::Set(df, scale)), out, i, count);
  }
}

void cap_all_impl(float* x, int64_t count, float soft_cap) {
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloats)) {
    store_part(capped(load_padded(x, i, count, 0.0F), soft_cap), x, i, count);
  }
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(log_sum_exp_impl);
HWY_EXPORT(largest_impl);
HWY_EXPORT(exp_all_impl);
HWY_EXPORT(scale_all_impl);
HWY_EXPORT(cap_all_impl);

double log_sum_exp(const Isa& isa, const float* x, int64_t count, LinesAhead& ahead) {
  return PKV_CPU_DISPATCH(isa, log_sum_exp_impl)(x, count, ahead);
}

double log_sum_exp(const Isa& isa, const float* x, int64_t count) {
  LinesAhead none{};
  return log_sum_exp(isa, x, count, none);
}

float largest(const Isa& isa, const float* x, int64_t count) {
  return PKV_CPU_DISPATCH(isa, largest_impl)(x, count);
}

ExpSums exp_all(const Isa& isa, const float* x, int64_t count, float max, float* out) {
  return PKV_CPU_DISPATCH(isa, exp_all_impl)(x, count, max, out);
}

void scale_all(const Isa& isa, const float* x, int64_t count, float scale, float* out) {
  PKV_CPU_DISPATCH(isa, scale_all_impl)(x, count, scale, out);
}

void cap_all(const Isa& isa, float* x, int64_t count, float soft_cap) {
  if (soft_cap != 0.0F) PKV_CPU_DISPATCH(isa, cap_all_impl)(x, count, soft_cap);
}

}  // namespace pkv::cpu
#endif
