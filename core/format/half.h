// bf16 and f16 to fp32 and back, on bit patterns. docs/algorithm.md, section 0.
// To fp32 is exact; from fp32 rounds to nearest even. Every NaN becomes one quiet NaN, without sign
// or payload, so that the same bits leave every backend.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format/config.h"

namespace pkv::format {

inline constexpr uint16_t kBf16Nan = 0x7fc0;
inline constexpr uint16_t kF16Nan = 0x7e00;

PKV_HD constexpr float bf16_to_float(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

PKV_HD constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return kBf16Nan;
  // Adding half of the last kept place, less one for an even one, carries exactly where nearest
  // even rounds up. The carry may run into the exponent: that is the next binade, or infinity.
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

PKV_HD constexpr float f16_to_float(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000U) << 16;
  const uint32_t exponent = (value >> 10) & 0x1fU;
  const uint32_t mantissa = value & 0x3ffU;
  if (exponent == 0x1fU) {
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

PKV_HD constexpr uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return kF16Nan;
  if (magnitude >= 0x477ff000U) {  // 65520, halfway to 2^16, and above: infinity
    return static_cast<uint16_t>(sign | 0x7c00U);
  }
  if (magnitude >= 0x38800000U) {  // 2^-14 and above: normal; rounding may carry into the exponent
    const uint32_t rebased = magnitude - (112U << 23);
    return static_cast<uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
  }
  if (magnitude <= 0x33000000U) {  // 2^-25, halfway to the smallest subnormal, and below
    return static_cast<uint16_t>(sign);
  }
  // Subnormal: units of 2^-24. The significand carries its hidden bit, then loses 126 - e places.
  const uint32_t exponent = magnitude >> 23;  // 102..112
  const uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
  const uint32_t shift = 126U - exponent;  // 14..24
  const uint32_t kept = significand >> shift;
  const uint32_t half = 1U << (shift - 1U);
  const uint32_t rounded = (significand + (half - 1U) + (kept & 1U)) >> shift;
  return static_cast<uint16_t>(sign | rounded);
}

}  // namespace pkv::format
