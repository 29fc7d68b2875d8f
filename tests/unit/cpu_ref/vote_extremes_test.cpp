// docs/algorithm.md, sections 4.2 and 4.3: the largest and the smallest votes of wide keys, far
// beyond what 8 bits hold, against sums in 64 bits.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "core/format/half.h"
#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

constexpr int64_t kKeys = 5000;

// A key whose rotated form is +1 and -1, up to rounding.
std::vector<float> flat_key(Oracle& oracle) {
  const auto rotation = cpu_ref::key_rotation(oracle.codec());
  test::Random random(1);
  std::vector<double> y(static_cast<size_t>(oracle.geometry.head_dim));
  for (double& v : y) v = random.uniform() < 0 ? -1.0 : 1.0;
  cpu_ref::unrotate(rotation, y.data());
  return {y.begin(), y.end()};
}

// Random keys; the flat one first and last, its opposite beside it.
Tensor keys_with(const std::vector<float>& flat) {
  const auto d = static_cast<int64_t>(flat.size());
  Tensor keys = Tensor::random({1, 1, kKeys, d}, 2);
  for (const int64_t end : {int64_t{0}, kKeys - 1}) {
    for (int64_t j = 0; j < d; ++j) {
      keys.row(0, 0, end)[j] = flat[static_cast<size_t>(j)];
      keys.row(0, 0, end == 0 ? 1 : kKeys - 2)[j] = -flat[static_cast<size_t>(j)];
    }
  }
  return keys;
}

Tensor query_of(const std::vector<float>& flat) {
  Tensor query({1, 1, static_cast<int64_t>(flat.size())});
  query.data() = flat;
  return query;
}

void check_ends(const std::vector<float>& votes, float largest, float smallest) {
  CHECK(votes[0] == largest);
  CHECK(votes[kKeys - 1] == largest);
  CHECK(votes[1] == smallest);
  CHECK(votes[kKeys - 2] == smallest);
}

TEST_CASE("vote tier: 6 points in every subspace, and none, for wide keys at both ends") {
  for (const int32_t d : {256, 384, 576}) {
    CAPTURE(d);
    Oracle oracle(geometry_of(d, 0, PKV_CODEC_SCALAR4, PKV_VOTE_TIER), kKeys);
    const auto flat = flat_key(oracle);
    Tensor keys = keys_with(flat);
    oracle.encode(keys);
    Tensor query = query_of(flat);
    // The pattern of the query comes first in every subspace, its opposite last.
    const auto votes = oracle.vote(query, {kKeys});
    check_ends(votes, static_cast<float>(6 * (d / 8)), 0.0F);
    for (size_t t = 2; t < kKeys - 2; ++t) {
      REQUIRE(votes[t] > 0.0F);
      REQUIRE(votes[t] < votes[0]);
    }
  }
}

TEST_CASE("vote graded: the largest sums of wide keys are those of 64 bits") {
  for (const int32_t d : {256, 384, 576}) {
    CAPTURE(d);
    Oracle oracle(geometry_of(d), kKeys);
    const auto flat = flat_key(oracle);
    Tensor keys = keys_with(flat);
    oracle.encode(keys);
    Tensor query = query_of(flat);
    const auto votes = oracle.vote(query, {kKeys});
    // |y| = 1: A = 8, |z| = rint(123 / 8) = 15, and n2 / n1 = 1.
    check_ends(votes, static_cast<float>(15 * d), static_cast<float>(-15 * d));
    std::vector<int64_t> z;
    auto y = flat;
    cpu_ref::rotate(cpu_ref::key_rotation(oracle.codec()), y.data());
    for (const float v : y) z.push_back(v < 0 ? -15 : 15);
    for (int64_t t = 0; t < kKeys; t += 7) {
      const auto record = oracle.record(0, t);
      int64_t sum = 0;
      for (size_t j = 0; j < z.size(); ++j) {
        sum += (record.signs[j / 8] >> (j % 8) & 1) != 0 ? z[j] : -z[j];
      }
      const float f = format::bf16_to_float(record.vote_factor);
      REQUIRE(votes[static_cast<size_t>(t)] == static_cast<float>(sum) * f);
    }
  }
}

}  // namespace
}  // namespace pkv
