// docs/algorithm.md, section 2.3: many pairs of vectors for every width. One constant for all
// coordinates: a rotation that scales some of them by more than others fails.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  }
  return sum;
}

// Largest error of a length or product among `pairs` random pairs, relative to |x| |y|.
double worst_error(int32_t dim, int32_t rounds, int32_t pairs) {
  const auto signs_1 = test::sign_vector(42, format::kStreamKey1, dim);
  const auto signs_2 = test::sign_vector(42, format::kStreamKey2, dim);
  const cpu_ref::Rotation rotation = {dim, format::rotation_plan(dim, rounds), signs_1.data(),
                                      signs_2.data()};
  const auto gain = static_cast<double>(rotation.plan.gain);
  test::Random random(static_cast<uint32_t>(dim));
  double worst = 0;
  for (int32_t pair = 0; pair < pairs; ++pair) {
    std::vector<float> x(static_cast<size_t>(dim));
    std::vector<float> y(static_cast<size_t>(dim));
    for (float& v : x) v = random.bell();
    for (float& v : y) v = random.bell();
    auto rx = x;
    auto ry = y;
    cpu_ref::rotate(rotation, rx.data());
    cpu_ref::rotate(rotation, ry.data());
    const double size = std::sqrt(dot(x, x) * dot(y, y));
    worst = std::max(worst, std::fabs(std::sqrt(dot(rx, rx) / gain / dot(x, x)) - 1.0));
    worst = std::max(worst, std::fabs(dot(rx, ry) / gain - dot(x, y)) / size);
  }
  return worst;
}

TEST_CASE("rotate: 200 pairs keep lengths and products to 1e-5, for every dimension") {
  for (int32_t dim = 8; dim <= 576; dim += 8) {
    CAPTURE(dim);
    CHECK(worst_error(dim, 1, 200) < 1e-5);
    if ((dim & (dim - 1)) == 0) CHECK(worst_error(dim, 2, 200) < 1e-5);
  }
}

}  // namespace
}  // namespace pkv
