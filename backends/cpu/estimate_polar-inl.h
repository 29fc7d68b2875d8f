// Records of polar4, and their products with a query. Per target. docs/algorithm.md, section 6.1.
// Bounded: fp32 sums with fused products.
#if defined(PKV_CPU_ESTIMATE_POLAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_ESTIMATE_POLAR_INL_H
#undef PKV_CPU_ESTIMATE_POLAR_INL_H
#else
#define PKV_CPU_ESTIMATE_POLAR_INL_H
#endif

#include <array>

#include "backends/cpu/estimate.h"
#include "backends/cpu/simd-inl.h"
#include "core/format/half.h"
#include "core/format/levels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

// Levels a by nibble, signed.
HWY_ALIGN constexpr std::array<float, 16> kPolarNibbles = [] {
  std::array<float, 16> levels{};
  for (size_t i = 0; i < 8; ++i) {
    levels[i] = -format::kPolarLevels[i];
    levels[i + 8] = format::kPolarLevels[i];
  }
  return levels;
}();

// w of coordinates j .. of one vector.
HWY_INLINE VF polar_factors(const uint16_t* HWY_RESTRICT factors, int32_t j) {
  const DF df;
  if constexpr (kFloats == 16) {
    const hn::Half<DF> half;
    return hn::Combine(df, hn::Set(half, format::bf16_to_float(factors[j / 8 + 1])),
                       hn::Set(half, format::bf16_to_float(factors[j / 8])));
  } else {
    return hn::Set(df, format::bf16_to_float(factors[j / 8]));
  }
}

// Entries are coordinates in order: w * sign * a.
HWY_INLINE void unpack_polar4(const Estimator& e, const uint8_t* HWY_RESTRICT record,
                              const uint16_t* HWY_RESTRICT factors, float* HWY_RESTRICT out) {
  const DF df;
  const DU32 du;
  const hn::Rebind<uint8_t, DU32> d8;
  constexpr auto kStep = static_cast<int32_t>(kFloats);
  const int32_t half = e.d / 2;
  if (half % kStep == 0 && half % 8 == 0) {  // vectors meet whole subspaces
    for (int32_t j = 0; j < half; j += kStep) {
      const VU32 bytes = hn::PromoteTo(du, hn::LoadU(d8, record + j));
      const VF low = nibble_levels(kPolarNibbles.data(), bytes);
      const VF high = nibble_levels(kPolarNibbles.data(), hn::ShiftRight<4>(bytes));
      hn::Store(hn::Mul(low, polar_factors(factors, j)), df, out + j);
      hn::StoreU(hn::Mul(high, polar_factors(factors, half + j)), df, out + half + j);
    }
    return;
  }
  for (int32_t j = 0; j < e.d; ++j) {
    const int32_t code = j < half ? record[j] & 15 : record[j - half] >> 4;
    out[j] = format::bf16_to_float(factors[j / 8]) * kPolarNibbles[static_cast<size_t>(code)];
  }
}

// Lane k: the product of key k with head g, before the gain.
HWY_INLINE VF4 polar_dots(const Estimator& e, int32_t g) {
  const DF df;
  const float* q = e.q + int64_t{g} * e.padded;
  const float* keys = e.products;
  VF a0 = hn::Zero(df);
  VF a1 = a0;
  VF a2 = a0;
  VF a3 = a0;
  for (int32_t j = 0; j < e.padded; j += static_cast<int32_t>(kFloats)) {
    const VF y = hn::Load(df, q + j);
    a0 = hn::MulAdd(y, hn::Load(df, keys + j), a0);
    a1 = hn::MulAdd(y, hn::Load(df, keys + e.padded + j), a1);
    a2 = hn::MulAdd(y, hn::Load(df, keys + 2 * e.padded + j), a2);
    a3 = hn::MulAdd(y, hn::Load(df, keys + 3 * e.padded + j), a3);
  }
  return sums_of_four<float>(a0, a1, a2, a3);
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
