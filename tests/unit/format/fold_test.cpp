// docs/algorithm.md, section 0.
#include "core/format/fold.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace pkv::format {
namespace {

// The same sum from its other end: the last step adds the folds of the even and of the odd
// elements.
float fold_by_halves(const std::vector<float>& x) {
  if (x.size() == 1) return x[0];
  std::vector<float> even;
  std::vector<float> odd;
  for (std::size_t i = 0; i < x.size(); ++i) (i % 2 == 0 ? even : odd).push_back(x[i]);
  return fold_by_halves(even) + fold_by_halves(odd);
}

std::vector<float> numbers(int count) {
  std::mt19937 random(20260207);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) {
    const auto fraction = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F;
    value = std::ldexp(fraction, static_cast<int>(random() % 20));
  }
  return x;
}

TEST_CASE("fold: eight numbers as written in the specification") {
  const float x[8] = {1e8F, 1.0F, 3.0F, 5.0F, -1e8F, 0.1F, 1e7F, 0.3F};
  const float wanted = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  CHECK(fold(x, 8) == wanted);
  float in_a_row = 0.0F;
  for (const float value : x) in_a_row += value;
  CHECK(in_a_row != wanted);  // so the order shows
}

TEST_CASE("fold: every count up to 576 is padded with zeros to a power of two") {
  int orders_seen = 0;
  for (int count = 1; count <= 576; ++count) {
    const std::vector<float> x = numbers(count);
    std::vector<float> padded = x;
    padded.resize(std::bit_ceil(x.size()), 0.0F);
    const float got = fold(x.data(), count);
    CHECK(got == fold_by_halves(padded));
    float in_a_row = 0.0F;
    for (const float value : x) in_a_row += value;
    orders_seen += in_a_row != got ? 1 : 0;
  }
  CHECK(orders_seen > 400);
}

TEST_CASE("fold: the input stays, the scratch takes fold_size floats and no more") {
  const std::vector<float> x = numbers(96);
  const std::vector<float> before = x;
  std::vector<float> scratch(129, -7.0F);
  CHECK(fold_size(96) == 128);
  CHECK(fold(x.data(), 96, scratch.data()) == fold(x.data(), 96));
  CHECK(x == before);
  CHECK(scratch[128] == -7.0F);
}

TEST_CASE("fold: sums of an expression, each element evaluated once") {
  const std::vector<float> x = numbers(100);
  std::vector<float> squares;
  for (const float value : x) squares.push_back(value * value);
  int calls = 0;
  const float got = fold_each(100, [&](int i) {
    ++calls;
    return x[static_cast<std::size_t>(i)] * x[static_cast<std::size_t>(i)];
  });
  CHECK(got == fold(squares.data(), 100));
  CHECK(calls == 100);
}

TEST_CASE("fold: none is 0, one is itself, bad numbers stay bad") {
  CHECK(fold(nullptr, 0) == 0.0F);
  CHECK(fold_size(0) == 1);
  CHECK(fold_size(1) == 1);
  CHECK(fold_size(2) == 2);
  CHECK(fold_size(3) == 4);
  CHECK(fold_size(576) == 1024);
  const float minus_zero = -0.0F;
  CHECK(std::signbit(fold(&minus_zero, 1)));
  const float infinite[3] = {INFINITY, 1.0F, 2.0F};
  CHECK(fold(infinite, 3) == INFINITY);
  const float opposite[3] = {INFINITY, -INFINITY, 2.0F};
  CHECK(std::isnan(fold(opposite, 3)));
}

constexpr float kFour[4] = {1.0F, 2.0F, 3.0F, 4.0F};
static_assert(fold<4>(kFour, 4) == 10.0F);

}  // namespace
}  // namespace pkv::format
