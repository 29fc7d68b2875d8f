#include "tools/element.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace pkv::cli {
namespace {

// By the definition of binary16.
double half_value(uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31);
  const double fraction = (bits & 1023) / 1024.0;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -14);
  return sign * std::ldexp(1 + fraction, exponent - 15);
}

TEST_CASE("element: every f16 is read exactly") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    to_float(PKV_DTYPE_F16, &half, 1, &value);
    const double expected = half_value(bits);
    if (std::isnan(expected)) {
      CHECK(std::isnan(value));
    } else {
      CHECK(static_cast<double>(value) == expected);
      CHECK(std::signbit(value) == std::signbit(expected));
    }
  }
}

TEST_CASE("element: bf16 is the upper half of f32") {
  for (const float value : {0.0F, -0.0F, 1.0F, -2.5F, 1e-40F, 3e38F}) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    const auto upper = static_cast<uint16_t>(bits >> 16);
    float read = 0;
    to_float(PKV_DTYPE_BF16, &upper, 1, &read);
    uint32_t back = 0;
    std::memcpy(&back, &read, 4);
    CHECK(back == (bits & 0xffff0000U));
  }
}

TEST_CASE("element: f64 is rounded to f32, u8 becomes a number, others keep their bytes") {
  const std::vector<double> doubles = {1.0 + 0x1p-24, -0.1, 1e-60};
  std::vector<float> floats(3);
  convert_elements(ElementType::kF64, doubles.data(), 3, floats.data());
  CHECK(floats == std::vector<float>{1.0F, -0.1F, 0.0F});
  const std::vector<uint8_t> bytes = {0, 1, 255};
  convert_elements(ElementType::kU8, bytes.data(), 3, floats.data());
  CHECK(floats == std::vector<float>{0.0F, 1.0F, 255.0F});
  const std::vector<uint16_t> halves = {0x7e01, 0x8000};
  std::vector<uint16_t> copies(2);
  convert_elements(ElementType::kF16, halves.data(), 2, copies.data());
  CHECK(copies == halves);
}

TEST_CASE("element: products of extents never wrap") {
  const std::vector<int64_t> most = {int64_t{1} << 31, int64_t{1} << 31};
  CHECK(checked_product(most, 1) == int64_t{1} << 62);
  CHECK(checked_product(most, 2) == -1);
  const std::vector<int64_t> negative = {4, -1};
  CHECK(checked_product(negative, 1) == -1);
  CHECK(checked_product({}, 4) == 4);
  const std::vector<int64_t> none = {0, 7};
  CHECK(checked_product(none, 4) == 0);
}

}  // namespace
}  // namespace pkv::cli
