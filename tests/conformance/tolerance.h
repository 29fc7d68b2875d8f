// The tolerances of docs/numerics.md, section 3, as functions, each with where it comes from. To
// first order in the unit roundoff u of fp32, with a factor 2 in hand for what the backend rounds
// between.
#pragma once

#include <cmath>
#include <cstdint>

#include "pariskv/pariskv_types.h"

namespace pkv::conformance {

inline constexpr double kUnit = 0x1p-24;  // u: |fp32(x) - x| <= u |x|

// A sum of m fp32 terms, added in any order within blocks of at most 1,024 and then over the
// blocks.
inline double sum_roundings(int64_t m) { return static_cast<double>(m < 1024 ? m : 1024); }

// Rounding to a dtype, to nearest: relative, and where it has become subnormal, absolute.
inline double dtype_unit(pkv_dtype dtype) {
  return dtype == PKV_DTYPE_F16 ? 0x1p-11 : dtype == PKV_DTYPE_BF16 ? 0x1p-8 : kUnit;
}
inline double dtype_smallest(pkv_dtype dtype) {
  return dtype == PKV_DTYPE_F16 ? 0x1p-24 : dtype == PKV_DTYPE_BF16 ? 0x1p-133 : 0x1p-149;
}

// Fit: fp32 partial sums over at most 1,024 terms of size `magnitude` = sum |terms| in all; each
// term is a difference, or its square, of two fp32 numbers: 3 roundings, and half the smallest
// subnormal. `weight`: the sum of the terms' weights; with weights, a fourth rounding for the
// product, and the subnormal grows with the weight.
inline double fit_sum(int64_t count, int64_t weight, double magnitude) {
  const double roundings = weight == count ? 3.0 : 4.0;
  return (sum_roundings(count) + roundings) * kUnit * magnitude +
         static_cast<double>(weight > count ? weight : count) * 0x1p-149;
}
// Fit: the parameters that follow, against their size (|mu| or the rms, whichever is larger).
inline double fit_param(double size) { return 1024.0 * kUnit * size; }

// polar4: d products, S products with w_b, and the sum of all; A_g = sum_b w_b sum_j |a q'_g,j| / g
// + sum_j |q_g,j mu_j|.
inline double polar_estimate(int32_t d, double A) { return (d + d / 8 + 4) * kUnit * A + 0x1p-149; }

// Logits x = scale * est of size at most X, m terms: each exp has the relative error (2 + |x -
// max|) u of its argument's rounding, with |x - max| <= 2 X; the sum adds m u; the result is a
// difference of numbers up to X. `estimate_error`: of scale * est itself, which moves a logit and
// the lse by as much.
inline double group_score(double X, int64_t m, double estimate_error) {
  return 2.0 * (4.0 * X + sum_roundings(m) + 8.0) * kUnit + 2.0 * estimate_error;
}
inline double rest_lse(double X, int64_t m, double estimate_error) {
  return group_score(X, m, estimate_error);
}

// rank = mean with polar4: the mean of G estimates, each off by `estimate_error` and at most
// `size`.
inline double mean_score(int32_t G, double size, double estimate_error) {
  return estimate_error + (G + 1) * kUnit * size;
}

// + ln nv: the logarithm within 2 u of itself, then one rounding of the sum. Times 2.
inline double norm_term(double ln_nv, double score) {
  return 2.0 * (2.0 * std::fabs(ln_nv) + std::fabs(score)) * kUnit;
}

// 8.1, and how far a logit may be off for it: tanh from fp32 exponentials.
inline double capped(double logit, float soft_cap) {
  const auto cap = static_cast<double>(soft_cap);
  return cap == 0.0 ? logit : cap * std::tanh(logit / cap);
}
inline double cap_error(float soft_cap) { return 8.0 * kUnit * static_cast<double>(soft_cap); }

// A logit scale * <q, k> from fp32: d products and sums, and the scale. `magnitude` = sum |q_j
// k_j|.
inline double logit(int32_t d, double scale, double magnitude) {
  return (d + 2) * kUnit * scale * magnitude;
}
// A logit scale * est: one product. The estimate is an input.
inline double estimated_logit(double scale, double estimate) {
  return kUnit * scale * std::fabs(estimate);
}

// Attention over m entries whose logits are off by eps. The last rounding counts twice, because the
// result is compared with the reference's, which is rounded too.
inline double attend_lse(double eps, int64_t m, double lse) {
  return eps + (sum_roundings(m) + 8.0) * kUnit + 2.0 * kUnit * std::fabs(lse);
}
// `largest`: max_i |v_ij|. Sketched values add their own error, below.
inline double attend_output(double eps, int64_t m, double largest, double output, pkv_dtype dtype) {
  return 2.0 * (eps + (sum_roundings(m) + 8.0) * kUnit) * largest +
         2.0 * dtype_unit(dtype) * std::fabs(output) + dtype_smallest(dtype);
}

// Sketched values are accumulated in rotated space, m terms w_v a, then un-rotated: log2 dv stages
// of butterflies (two blocks: twice that). Every sum's rounding is u of its terms, so the error is
// a vector no longer than (m + stages) u ||w_v a||, and the rotation takes that to elements of 1 /
// sqrt(g) of it. `size`: the largest ||w_v a|| / sqrt(g).
inline double sketch_value(int32_t dv, int64_t m, double size) {
  const double stages = 2.0 * std::ceil(std::log2(static_cast<double>(dv)));
  return 2.0 * (sum_roundings(m) + stages + 8.0) * kUnit * size;
}

// l = N / (N + 32), N = (sum o)^2 / sum o^2 over m samples with logits up to X: relative. Each o is
// off by eps = 2 X u from its argument, a sum by m u more; N has two factors of one sum and one of
// the other, squared; l moves by at most as much.
inline double shrink_error(double X, int64_t m, float soft_cap) {
  return 4.0 * ((2.0 * X + sum_roundings(m) + 8.0) * kUnit + cap_error(soft_cap));
}

}  // namespace pkv::conformance
