// Bit patterns of bf16 and f16, all of them. docs/algorithm.md, section 0.
#include "core/format/half.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace pkv::format {
namespace {

// The value of a pattern from the definition of the format, in double, which holds them all.
double decode(uint16_t bits, int mantissa_bits, int bias, int infinite_exponent) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  if (exponent == infinite_exponent) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const int one = exponent == 0 ? 0 : 1 << mantissa_bits;
  const int scale = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  return sign * std::ldexp(one + mantissa, scale);
}

double decode_bf16(uint16_t bits) { return decode(bits, 7, 127, 255); }
double decode_f16(uint16_t bits) { return decode(bits, 10, 15, 31); }

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST_CASE("half: every bf16 and f16 pattern has the value that the format defines") {
  int wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double wanted[2] = {decode_bf16(bits), decode_f16(bits)};
    const float got[2] = {bf16_to_float(bits), f16_to_float(bits)};
    for (int format = 0; format < 2; ++format) {
      const bool is_same = std::isnan(wanted[format])
                               ? std::isnan(got[format])
                               : static_cast<double>(got[format]) == wanted[format] &&
                                     std::signbit(got[format]) == std::signbit(wanted[format]);
      wrong += is_same ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("half: every pattern returns from fp32, every NaN as the one quiet NaN") {
  int wrong = 0;
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const uint16_t bf16 = std::isnan(decode_bf16(bits)) ? uint16_t{0x7fc0} : bits;
    const uint16_t f16 = std::isnan(decode_f16(bits)) ? uint16_t{0x7e00} : bits;
    wrong += float_to_bf16(bf16_to_float(bits)) == bf16 ? 0 : 1;
    wrong += float_to_f16(f16_to_float(bits)) == f16 ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(float_to_bf16(std::bit_cast<float>(0xffffffffU)) ==
        0x7fc0);  // sign and payload are dropped
  CHECK(float_to_bf16(std::bit_cast<float>(0x7f800001U)) == 0x7fc0);
  CHECK(float_to_f16(std::bit_cast<float>(0xff800001U)) == 0x7e00);
}

// Between neighbours u and u + 1 (patterns of one sign): the middle goes to the even one, the fp32
// next to it on either side to the nearer one. `middle` is exact in fp32.
template <class Convert>
bool rounds_to_nearest_even(uint16_t u, float middle, Convert convert) {
  const auto next = static_cast<uint16_t>(u + 1);
  const uint16_t even = (u & 1) == 0 ? u : next;
  const float towards_zero = std::bit_cast<float>(bits_of(middle) - 1);
  const float away = std::bit_cast<float>(bits_of(middle) + 1);
  return convert(middle) == even && convert(towards_zero) == u && convert(away) == next;
}

TEST_CASE("half: bf16 rounds to nearest even around every middle, overflow to infinity included") {
  int wrong = 0;
  for (const uint32_t sign : {0x0000U, 0x8000U}) {
    for (uint32_t u = 0; u < 0x7f80; ++u) {
      const float middle = std::bit_cast<float>(((sign | u) << 16) + 0x8000U);
      wrong +=
          rounds_to_nearest_even(static_cast<uint16_t>(sign | u), middle, float_to_bf16) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE(
    "half: f16 rounds to nearest even around every middle, subnormals and overflow included") {
  int wrong = 0;
  for (const uint32_t sign : {0x0000U, 0x8000U}) {
    for (uint32_t u = 0; u < 0x7c00; ++u) {
      const auto bits = static_cast<uint16_t>(sign | u);
      // Behind the largest finite number the format would go on with 2^16.
      const double above = u + 1 == 0x7c00 ? 65536.0 : decode_f16(static_cast<uint16_t>(u + 1));
      const double middle = (decode_f16(static_cast<uint16_t>(u)) + above) / 2;
      const auto signed_middle = static_cast<float>(sign == 0 ? middle : -middle);
      wrong += rounds_to_nearest_even(bits, signed_middle, float_to_f16) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(float_to_f16(1e30F) == 0x7c00);
  CHECK(float_to_f16(-1e30F) == 0xfc00);
  CHECK(float_to_f16(1e-30F) == 0x0000);
  CHECK(float_to_f16(-1e-30F) == 0x8000);
}

static_assert(float_to_bf16(1.0F) == 0x3f80 && bf16_to_float(0x3f80) == 1.0F);
static_assert(float_to_f16(0x1p-24F) == 0x0001 && f16_to_float(0x0001) == 0x1p-24F);

}  // namespace
}  // namespace pkv::format
