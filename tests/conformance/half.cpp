#include "tests/conformance/half.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pkv::conformance {
namespace {

// The parameters of a 16-bit format.
struct Half {
  int mantissa_bits;
  int min_exponent;  // of a normal number 1.m * 2^e
  int max_exponent;
};

Half half_of(pkv_dtype dtype) {
  return dtype == PKV_DTYPE_F16 ? Half{10, -14, 15} : Half{7, -126, 127};
}

}  // namespace

int64_t dtype_bytes(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_I64: return 8;
    default: return 4;
  }
}

const char* dtype_name(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_F32: return "f32";
    case PKV_DTYPE_F16: return "f16";
    case PKV_DTYPE_BF16: return "bf16";
    case PKV_DTYPE_U8: return "u8";
    case PKV_DTYPE_I32: return "i32";
    default: return "i64";
  }
}

float half_to_float(pkv_dtype dtype, uint16_t bits) {
  const Half half = half_of(dtype);
  const int mantissa = bits & ((1 << half.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> half.mantissa_bits;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == half.max_exponent - half.min_exponent + 2) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << half.mantissa_bits);
  const int power = (exponent == 0 ? 1 : exponent) + half.min_exponent - 1 - half.mantissa_bits;
  return sign * static_cast<float>(std::ldexp(static_cast<double>(whole), power));
}

uint16_t float_to_half(pkv_dtype dtype, float value) {
  const Half half = half_of(dtype);
  const int infinite = (half.max_exponent - half.min_exponent + 2) << half.mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(infinite | 1 << (half.mantissa_bits - 1));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinite);
  if (value == 0.0F) return static_cast<uint16_t>(sign);
  int exponent = 0;
  std::frexp(std::fabs(static_cast<double>(value)), &exponent);  // in [2^(exponent-1), 2^exponent)
  exponent = std::max(exponent - 1, half.min_exponent);
  // In units of the last place: 2^m .. 2^(m+1) for normal numbers, less for subnormal ones. A carry
  // runs into the exponent by itself.
  const double units =
      std::ldexp(std::fabs(static_cast<double>(value)), half.mantissa_bits - exponent);
  const int whole = static_cast<int>(std::nearbyint(units));
  const int bits = ((exponent - half.min_exponent) << half.mantissa_bits) + whole;
  return static_cast<uint16_t>(sign | (bits < infinite ? bits : infinite));
}

}  // namespace pkv::conformance
