// fp32(1/sqrt(d)). docs/algorithm.md, sections 0 and 3.4.
#include "core/format/inv_sqrt.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace pkv::format {
namespace {

// Whether m <= 1/sqrt(dim), for a middle m of two neighbouring floats: with m = n * 2^-30, whether
// n^2 <= floor(2^60 / dim), in integers.
bool is_below(double middle, int dim) {
  const auto n = static_cast<uint64_t>(middle * 0x1p30);
  return n * n <= (uint64_t{1} << 60) / static_cast<uint64_t>(dim);
}

TEST_CASE("inv_sqrt: the nearest float, for every dim") {
  for (int dim = 1; dim <= 1024; ++dim) {
    const float x = inv_sqrt(dim);
    const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(x) - 1);
    const float above = std::bit_cast<float>(std::bit_cast<uint32_t>(x) + 1);
    // The middles, exact in double; 2^30 times them is whole: floats >= 2^-5 have a step of 2^-28
    // or more.
    CHECK(is_below((static_cast<double>(below) + static_cast<double>(x)) / 2, dim));
    CHECK_FALSE(is_below((static_cast<double>(x) + static_cast<double>(above)) / 2, dim));
  }
}

TEST_CASE("inv_sqrt: agrees with the library's long double, and is exact where it can be") {
  for (int dim = 8; dim <= 576; dim += 8) {
    CHECK(inv_sqrt(dim) == static_cast<float>(1.0L / std::sqrt(static_cast<long double>(dim))));
  }
  CHECK(inv_sqrt(64) == 0.125F);
  CHECK(inv_sqrt(256) == 0.0625F);
}

TEST_CASE("inv_sqrt: the root rounds down") {
  CHECK(floor_sqrt(0) == 0);
  CHECK(floor_sqrt(15) == 3);
  CHECK(floor_sqrt(16) == 4);
  CHECK(floor_sqrt(uint64_t{0xffffffffU} * 0xffffffffU) == 0xffffffffU);
  CHECK(floor_sqrt(UINT64_MAX) == 0xffffffffU);
}

static_assert(inv_sqrt(16) == 0.25F);

}  // namespace
}  // namespace pkv::format
