// docs/algorithm.md, section 2.3.
#include "backends/cpu_ref/rotate.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/cpu_ref/reference.h"

namespace pkv {
namespace {

struct Case {
  int32_t dim;
  int32_t rounds;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int32_t dim = 8; dim <= 576; dim += 8) {
    cases.push_back({dim, 1});
    if ((dim & (dim - 1)) == 0) cases.push_back({dim, 2});
  }
  return cases;
}

struct Signs {
  std::vector<float> s1, s2;
  explicit Signs(int32_t dim)
      : s1(test::sign_vector(1234, 1, dim)), s2(test::sign_vector(1234, 2, dim)) {}
};

cpu_ref::Rotation rotation_of(Case c, const Signs& signs) {
  return {c.dim, format::rotation_plan(c.dim, c.rounds), signs.s1.data(), signs.s2.data()};
}

std::vector<float> random_vector(int32_t dim, uint32_t seed) {
  test::Random random(seed);
  std::vector<float> x(static_cast<size_t>(dim));
  for (float& v : x) v = random.bell();
  return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j)
    sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  return sum;
}

TEST_CASE("rotate: products are kept up to the gain, for every dimension") {
  for (const Case c : all_cases()) {
    CAPTURE(c.dim);
    CAPTURE(c.rounds);
    const Signs signs(c.dim);
    const auto rotation = rotation_of(c, signs);
    const auto a = random_vector(c.dim, 1);
    const auto b = random_vector(c.dim, 2);
    auto ra = a;
    auto rb = b;
    cpu_ref::rotate(rotation, ra.data());
    cpu_ref::rotate(rotation, rb.data());
    const auto g = static_cast<double>(rotation.plan.gain);
    // fp32, at most 2 * 9 + 2 roundings on the way of a number: 20 * 2^-24 < 1e-5 of the norms.
    CHECK(std::abs(dot(ra, ra) / g - dot(a, a)) < 1e-5 * dot(a, a));
    CHECK(std::abs(dot(ra, rb) / g - dot(a, b)) < 1e-5 * std::sqrt(dot(a, a) * dot(b, b)));
  }
}

TEST_CASE("rotate: equals the matrix of Hadamard blocks and signs") {
  for (const Case c : {Case{8, 1},
                       {8, 2},
                       {16, 2},
                       {24, 1},
                       {40, 1},
                       {64, 1},
                       {64, 2},
                       {80, 1},
                       {96, 1},
                       {128, 2},
                       {136, 1},
                       {192, 1}}) {
    CAPTURE(c.dim);
    CAPTURE(c.rounds);
    const Signs signs(c.dim);
    const auto rotation = rotation_of(c, signs);
    const auto reference = test::reference_rotation(c.dim, c.rounds, signs.s1, signs.s2);
    CHECK(static_cast<double>(rotation.plan.gain) == reference.gain);
    const auto x = random_vector(c.dim, 3);
    auto y = x;
    cpu_ref::rotate(rotation, y.data());
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double expected = 0;
      for (size_t j = 0; j < x.size(); ++j) {
        expected += reference.R[i][j] * static_cast<double>(x[j]);
      }
      error += (static_cast<double>(y[i]) - expected) * (static_cast<double>(y[i]) - expected);
    }
    // Each of at most 2 p stages and 3 scalings errs by 2^-24 of the vector's norm, and the stages
    // behind it keep that norm.
    const double stages = 2.0 * rotation.plan.log2_size + 3.0;
    CHECK(std::sqrt(error) <= stages * 0x1p-24 * std::sqrt(reference.gain * dot(x, x)));
  }
}

TEST_CASE("unrotate: undoes rotate, for every dimension") {
  for (const Case c : all_cases()) {
    CAPTURE(c.dim);
    CAPTURE(c.rounds);
    const Signs signs(c.dim);
    const auto rotation = rotation_of(c, signs);
    const auto x = random_vector(c.dim, 4);
    auto y = x;
    cpu_ref::rotate(rotation, y.data());
    std::vector<double> back(y.begin(), y.end());
    cpu_ref::unrotate(rotation, back.data());
    double error = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      error = std::max(error, std::abs(back[j] - static_cast<double>(x[j])));
    }
    CHECK(error < 1e-5 * std::sqrt(dot(x, x)));
  }
}

TEST_CASE("rotate: no coordinate of a unit vector keeps much of its weight") {
  double worst = 0;
  for (const Case c : all_cases()) {
    CAPTURE(c.dim);
    CAPTURE(c.rounds);
    const Signs signs(c.dim);
    const auto rotation = rotation_of(c, signs);
    double largest = 0;
    for (int32_t j = 0; j < c.dim; ++j) {
      std::vector<float> x(static_cast<size_t>(c.dim), 0.0F);
      x[static_cast<size_t>(j)] = 1.0F;
      cpu_ref::rotate(rotation, x.data());
      for (const float y : x) largest = std::max(largest, std::abs(static_cast<double>(y)));
    }
    largest /= std::sqrt(static_cast<double>(rotation.plan.gain));
    const double block = std::ldexp(1.0, rotation.plan.log2_size);
    if (rotation.plan.is_power_of_two && c.rounds == 1) {
      CHECK(largest == doctest::Approx(1.0 / std::sqrt(block)));
    } else {
      // An entry is a sum of at most 2^p random signs times 2^-p: by Hoeffding beyond 6 of its
      // deviations 2^(-p/2) with probability 3e-8, and the seed is fixed.
      CHECK(largest <= 6.0 / std::sqrt(block));
    }
    worst = std::max(worst, largest * std::sqrt(block));
  }
  MESSAGE("largest |R_ij| in units of 2^(-p/2): " << worst);
}

TEST_CASE("rotate: zeros of both signs rotate to zeros") {
  const Signs signs(24);
  std::vector<float> x(24, 0.0F);
  for (size_t j = 0; j < x.size(); j += 2) x[j] = -0.0F;
  cpu_ref::rotate(rotation_of({24, 1}, signs), x.data());
  for (const float y : x) CHECK(y == 0.0F);
}

}  // namespace
}  // namespace pkv
