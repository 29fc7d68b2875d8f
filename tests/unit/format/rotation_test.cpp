// The constants of a rotation; that it is one, tests/unit/cpu_ref shows. docs/algorithm.md,
// section 2.3.
#include "core/format/rotation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>

namespace pkv::format {
namespace {

TEST_CASE("rotation: one round of a power of two is unscaled and gains d") {
  for (const int dim : {8, 16, 32, 64, 128, 256, 512}) {
    const RotationPlan plan = rotation_plan(dim, 1);
    CHECK(plan.is_power_of_two);
    CHECK((1 << plan.log2_size) == dim);
    CHECK(plan.rounds == 1);
    CHECK(plan.block_scale == 1.0F);
    CHECK(plan.gain == static_cast<float>(dim));
  }
}

TEST_CASE("rotation: two rounds of a power of two are scaled by 2^-p and gain 1") {
  for (const int dim : {8, 16, 32, 64, 128, 256, 512}) {
    const RotationPlan plan = rotation_plan(dim, 2);
    CHECK(plan.rounds == 2);
    CHECK(plan.block_scale * static_cast<float>(dim) == 1.0F);
    CHECK(plan.gain == 1.0F);
  }
}

TEST_CASE(
    "rotation: every other d has two blocks of the largest power of two below, scaled by "
    "fp32(2^(-p/2))") {
  int cases = 0;
  for (int dim = 8; dim <= 576; dim += 8) {
    if ((dim & (dim - 1)) == 0) continue;
    ++cases;
    const RotationPlan plan = rotation_plan(dim, 1);
    CHECK_FALSE(plan.is_power_of_two);
    CHECK((1 << plan.log2_size) < dim);
    CHECK((2 << plan.log2_size) > dim);
    // long double has 64 bits of mantissa: its rounding to fp32 is that of the real number, which
    // is a power of two or an irrational far from a middle.
    const long double exact = std::pow(2.0L, -static_cast<long double>(plan.log2_size) / 2);
    CHECK(plan.block_scale == static_cast<float>(exact));
    CHECK(plan.gain == 1.0F);
  }
  CHECK(cases == 72 - 7);
}

TEST_CASE("rotation: rounds are not read where d is no power of two") {
  const RotationPlan one = rotation_plan(96, 1);
  const RotationPlan two = rotation_plan(96, 2);
  CHECK(two.rounds == one.rounds);
  CHECK(two.block_scale == one.block_scale);
  CHECK(two.gain == one.gain);
}

static_assert(rotation_plan(576, 1).log2_size == 9);
static_assert(rotation_plan(80, 1).block_scale == 0.125F);  // 2^(-6/2)

}  // namespace
}  // namespace pkv::format
