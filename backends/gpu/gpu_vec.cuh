// Arithmetic whose bits matter, wide loads, element types. docs/numerics.md, section 2.
// Every float operation of an exact rule is written with these: one rounding each, no contraction.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "backends/gpu/gpu_rt.h"
#include "core/format/half.h"
#include "pariskv/pariskv_types.h"

namespace PKV_GPU_NS {

#if defined(PKV_GPU_HOST)
PKV_DEVICE float fadd_rn(float a, float b) { return a + b; }
PKV_DEVICE float fsub_rn(float a, float b) { return a - b; }
PKV_DEVICE float fmul_rn(float a, float b) { return a * b; }
PKV_DEVICE float fdiv_rn(float a, float b) { return a / b; }
PKV_DEVICE float fsqrt_rn(float a) { return std::sqrt(a); }
PKV_DEVICE float frint(float a) { return std::rint(a); }
PKV_DEVICE float ffma_rn(float a, float b, float c) { return std::fma(a, b, c); }
#else
PKV_DEVICE float fadd_rn(float a, float b) { return __fadd_rn(a, b); }
PKV_DEVICE float fsub_rn(float a, float b) { return __fsub_rn(a, b); }
PKV_DEVICE float fmul_rn(float a, float b) { return __fmul_rn(a, b); }
#if defined(PKV_GPU_HIP)
// Correctly rounded by -fhip-fp32-correctly-rounded-divide-sqrt.
PKV_DEVICE float fdiv_rn(float a, float b) { return a / b; }
PKV_DEVICE float fsqrt_rn(float a) { return sqrtf(a); }
#else
PKV_DEVICE float fdiv_rn(float a, float b) { return __fdiv_rn(a, b); }
PKV_DEVICE float fsqrt_rn(float a) { return __fsqrt_rn(a); }
#endif
PKV_DEVICE float frint(float a) { return rintf(a); }
PKV_DEVICE float ffma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#endif

// a * b + c for bounded results alone: rounded once on devices, twice on the host.
PKV_DEVICE float fmadd(float a, float b, float c) {
#if defined(PKV_GPU_HOST)
  return a * b + c;
#else
  return fmaf(a, b, c);
#endif
}

// e^a for bounded results alone: on devices with a relative error of (2 + |a|) 2^-23 at most; with
// CUDA what is below 2^-126 is 0.
PKV_DEVICE float fexp(float a) {
#if defined(PKV_GPU_CUDA)
  constexpr float kLog2E = 1.44269504F;
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(__fmul_rn(a, kLog2E)));
  return result;
#else
  return std::exp(a);
#endif
}

// ln a for bounded results alone, a normal or 0: with CUDA with an absolute error of 2^-21 or a
// relative one of 2^-22.
PKV_DEVICE float flog(float a) {
#if defined(PKV_GPU_CUDA)
  constexpr float kLn2 = 0.693147181F;
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return __fmul_rn(result, kLn2);
#else
  return std::log(a);
#endif
}

PKV_DEVICE float absolute(float a) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0x7fffffffU);
}
PKV_DEVICE bool is_finite(float a) {
  return (std::bit_cast<uint32_t>(a) & 0x7f800000U) != 0x7f800000U;
}
PKV_DEVICE bool is_bf16_nan(uint16_t a) { return (a & 0x7fffU) > 0x7f80U; }
PKV_DEVICE float quiet_nan() { return std::bit_cast<float>(0x7fc00000U); }

// kCount 32-bit words that one access moves: 1, 2 or 4, aligned to their size.
template <int kCount>
struct alignas(4 * kCount) Words {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  uint32_t word[kCount];
};
template <int kCount>
PKV_DEVICE Words<kCount> load_words(const void* source) {
  return *reinterpret_cast<const Words<kCount>*>(source);
}
template <int kCount>
PKV_DEVICE void store_words(void* target, const Words<kCount>& words) {
  *reinterpret_cast<Words<kCount>*>(target) = words;
}

// The number that an f16 is; where it is NaN, a NaN.
PKV_DEVICE float f16_value(uint16_t bits) {
#if defined(PKV_GPU_CUDA)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return format::f16_to_float(bits);
#endif
}
// Four bytes of the eight that a (0 .. 3) and b (4 .. 7) hold: byte i of the result is the one that
// nibble i of `selector` names, or with 8 added to its name 0xff or 0 as its highest bit says.
PKV_DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(PKV_GPU_CUDA)
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
#else
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t name = (selector >> (4 * i)) & 0xfU;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (name & 7U))) & 0xffU;
    if ((name & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xffU : 0U;
    result |= byte << (8 * i);
  }
  return result;
#endif
}
// sum + the products of the four signed bytes of a and b.
PKV_DEVICE int32_t add_dot4(int32_t sum, uint32_t a, uint32_t b) {
#if defined(PKV_GPU_CUDA)
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#else
  for (int i = 0; i < 32; i += 8) {
    sum += int32_t{static_cast<int8_t>(a >> i)} * int32_t{static_cast<int8_t>(b >> i)};
  }
  return sum;
#endif
}

// Zeros below the lowest bit that is set, x not 0; bits up to the highest one that is set.
PKV_DEVICE int trailing_zeros(uint64_t x) {
#if defined(PKV_GPU_HOST)
  return std::countr_zero(x);
#else
  return __ffsll(static_cast<long long>(x)) - 1;
#endif
}
PKV_DEVICE int trailing_zeros(uint32_t x) {
#if defined(PKV_GPU_HOST)
  return std::countr_zero(x);
#else
  return __ffs(static_cast<int>(x)) - 1;
#endif
}
PKV_DEVICE int significant_bits(uint32_t x) {
#if defined(PKV_GPU_HOST)
  return std::bit_width(x);
#else
  return 32 - __clz(static_cast<int>(x));
#endif
}

// f16 to fp32 without branches: 2^112 moves the exponent, also of a subnormal.
PKV_DEVICE float f16_value(uint32_t bits) {
  const float shifted = std::bit_cast<float>((bits & 0x7fffU) << 13);
  const uint32_t magnitude = std::bit_cast<uint32_t>(fmul_rn(shifted, 0x1p112F));
  const uint32_t special = (bits & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(magnitude | special | (bits & 0x8000U) << 16);
}

// Element j of a row in two steps, so that many loads can be under way: as it lies there, then as
// fp32, exactly. dtype is f32, f16 or bf16; the row is aligned to it.
PKV_DEVICE uint32_t load_bits(pkv_dtype dtype, const std::byte* row, int64_t j) {
  if (dtype == PKV_DTYPE_F32) return reinterpret_cast<const uint32_t*>(row)[j];
  return reinterpret_cast<const uint16_t*>(row)[j];
}
PKV_DEVICE float value_of(pkv_dtype dtype, uint32_t bits) {
  if (dtype == PKV_DTYPE_F32) return std::bit_cast<float>(bits);
  return dtype == PKV_DTYPE_F16 ? f16_value(bits) : std::bit_cast<float>(bits << 16);
}
PKV_DEVICE float load_element(pkv_dtype dtype, const std::byte* row, int64_t j) {
  return value_of(dtype, load_bits(dtype, row, j));
}
// Rounds to nearest even.
PKV_DEVICE void store_element(pkv_dtype dtype, std::byte* row, int64_t j, float value) {
  if (dtype == PKV_DTYPE_F32) {
    reinterpret_cast<float*>(row)[j] = value;
    return;
  }
  reinterpret_cast<uint16_t*>(row)[j] =
      dtype == PKV_DTYPE_F16 ? format::float_to_f16(value) : format::float_to_bf16(value);
}

}  // namespace PKV_GPU_NS
