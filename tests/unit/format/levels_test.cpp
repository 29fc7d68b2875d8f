// The shape of the quantiser tables; their values are held against tools/level_solver.py by
// tests/python/test_level_solver.py. docs/algorithm.md, section 3.4.
#include "core/format/levels.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <type_traits>

namespace pkv::format {
namespace {

// Half of the distance between neighbours of a float: what one rounding may add.
double half_step(float x) {
  return static_cast<double>(std::nextafter(x, INFINITY)) / 2 - static_cast<double>(x) / 2;
}

// Lloyd-Max: a threshold is the middle of its levels. All have ten decimals, so 1e-10 before the
// fp32 rounding of the threshold; levels held in fp32 add half a step each, and count half.
template <class Level, std::size_t kLevels>
void check_middles(const float (&thresholds)[kLevels - 1], const Level (&levels)[kLevels]) {
  for (std::size_t i = 0; i + 1 < kLevels; ++i) {
    const double middle = (static_cast<double>(levels[i]) + static_cast<double>(levels[i + 1])) / 2;
    CHECK(levels[i] < levels[i + 1]);
    double bound = 1e-10 + half_step(thresholds[i]);
    if (std::is_same_v<Level, float>) {
      bound += half_step(static_cast<float>(levels[i])) / 2;
      bound += half_step(static_cast<float>(levels[i + 1])) / 2;
    }
    CHECK(std::abs(static_cast<double>(thresholds[i]) - middle) <= bound);
  }
  CHECK(levels[0] > 0);
}

TEST_CASE("levels: thresholds are the middles of ascending levels") {
  check_middles<float, 8>(kPolarThresholds, kPolarLevels);
  check_middles<double, 8>(kNormal4Thresholds, kNormal4Levels);
  check_middles<double, 16>(kNormal5Thresholds, kNormal5Levels);
  const float threshold2[1] = {kNormal2Threshold};
  check_middles<float, 2>(threshold2, kNormal2Levels);
}

// Odd and at most 255, so that v = 2 u + 1 with u an unsigned 7-bit number.
template <std::size_t kLevels>
void check_integers(const int32_t (&integers)[kLevels], const double (&levels)[kLevels],
                    double unit) {
  for (std::size_t i = 0; i < kLevels; ++i) {
    CHECK(integers[i] % 2 == 1);
    CHECK(integers[i] <= 255);
    CHECK(std::abs(integers[i] - levels[i] * unit) <= 1.0);  // the nearest odd integer
    if (i > 0) CHECK(integers[i] > integers[i - 1]);
  }
}

TEST_CASE("levels: integers are the odd ones nearest to the levels in one unit") {
  check_integers(kScalar4Levels, kNormal4Levels, 93.3);
  check_integers(kScalar5Levels, kNormal5Levels, 75.4);
}

TEST_CASE("levels: one coordinate of a unit vector stays below 1") {
  CHECK(kPolarLevels[7] < 1.0F);
  CHECK(kPolarThresholds[6] < 1.0F);
}

}  // namespace
}  // namespace pkv::format
