// Loops over numbers whose count is no whole vector, and sums of exponentials. Per target.
#if defined(PKV_CPU_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_EXP_INL_H
#undef PKV_CPU_EXP_INL_H
#else
#define PKV_CPU_EXP_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/cpu/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {

// x[i ..] as a vector, what lies behind `count` replaced by `filler`.
HWY_INLINE VF load_padded(const float* x, int64_t i, int64_t count, float filler) {
  const DF df;
  if (i + static_cast<int64_t>(kFloats) <= count) return hn::LoadU(df, x + i);
  HWY_ALIGN float rest[kFloats];
  std::fill(rest, rest + kFloats, filler);
  std::copy(x + i, x + count, rest);
  return hn::Load(df, rest);
}

// Stores what lies before `count`.
HWY_INLINE void store_part(VF v, float* x, int64_t i, int64_t count) {
  const DF df;
  if (i + static_cast<int64_t>(kFloats) <= count) {
    hn::StoreU(v, df, x + i);
    return;
  }
  HWY_ALIGN float rest[kFloats];
  hn::Store(v, df, rest);
  std::copy(rest, rest + (count - i), x + i);
}

HWY_INLINE VF without_nan(VF x) {
  const DF df;
  return hn::IfThenElse(hn::IsNaN(x), hn::Set(df, -std::numeric_limits<float>::infinity()), x);
}

// The largest number; NaN does not count. -inf for none.
HWY_INLINE float largest_of(const float* x, int64_t count) {
  const DF df;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  VF max = hn::Set(df, kNothing);
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloats)) {
    max = hn::Max(max, without_nan(load_padded(x, i, count, kNothing)));
  }
  return hn::GetLane(hn::MaxOfLanes(df, max));
}

// soft_cap * tanh(x / soft_cap) (8.1). NaN stays.
HWY_INLINE VF capped(VF x, float soft_cap) {
  const DF df;
  const VF cap = hn::Set(df, soft_cap);
  const VF y = hn::Mul(cap, hn::Tanh(df, hn::Div(x, cap)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// Calls visit(i, exp(factor * x[i] - max)) for each vector and returns the sum of these. NaN counts
// as -inf. Exponentials within about 1 ulp; sums of 1,024 of them in fp32, beyond in double.
template <class Visit>
HWY_INLINE double sum_of_exps(const float* x, int64_t count, float factor, float max, Visit visit) {
  const DF df;
  constexpr int64_t kBlock = 1024;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    VF sum = hn::Zero(df);
    const int64_t end = std::min(count, begin + kBlock);
    for (int64_t i = begin; i < end; i += static_cast<int64_t>(kFloats)) {
      const VF logit =
          hn::Mul(hn::Set(df, factor), without_nan(load_padded(x, i, count, kNothing)));
      const VF e = hn::Exp(df, hn::Sub(logit, hn::Set(df, max)));
      visit(i, e);
      sum = hn::Add(sum, e);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, sum)));
  }
  return total;
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
