// docs/algorithm.md, section 4.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "core/format/half.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/cpu_ref/reference.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::reference_fold;
using test::Tensor;

// rotate(q * r) of KV head `head`.
std::vector<float> rotated_query(Oracle& oracle, const std::vector<float>& q, int32_t head = 0) {
  const auto codec = oracle.codec();
  std::vector<float> y;
  for (size_t j = 0; j < q.size(); ++j) {
    y.push_back(q[j] * codec.inv_balance[static_cast<size_t>(head) * q.size() + j]);
  }
  cpu_ref::rotate(cpu_ref::key_rotation(codec), y.data());
  return y;
}

std::vector<float> row_of(Tensor& queries, int64_t i, int64_t head, int32_t d) {
  return {queries.row(i, head), queries.row(i, head) + d};
}

float largest_subspace(const std::vector<float>& y) {
  float A = 0;
  for (size_t b = 0; b < y.size(); b += 8) {
    std::vector<float> part;
    for (size_t j = b; j < b + 8; ++j) part.push_back(std::fabs(y[j]));
    A = std::max(A, reference_fold(part));
  }
  return A;
}

// sum_j (sign bit as +1/-1) * z_j, coordinate by coordinate, without a table.
int32_t graded_sum(const std::vector<float>& y, float A, const std::vector<uint8_t>& signs) {
  int32_t t = 0;
  for (size_t j = 0; j < y.size(); ++j) {
    const auto z = A == 0 ? 0 : static_cast<int32_t>(std::nearbyint(123.0F * y[j] / A));
    t += (signs[j / 8] & (1 << (j % 8))) != 0 ? z : -z;
  }
  return t;
}

void fill_codec(Oracle& oracle, uint32_t seed) {
  test::Random random(seed);
  for (float& mu : oracle.center) mu = random.uniform();
  for (float& s : oracle.balance) s = 1.0F + 0.5F * random.uniform();
}

TEST_CASE("vote graded: the signed sum of z times the key's factor, per row") {
  const int32_t d = 40;
  const int32_t n = 33;
  Oracle oracle(geometry_of(d, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), n, 2);
  fill_codec(oracle, 1);
  Tensor keys = Tensor::random({2, 2, n, d}, 2);
  keys.row(1, 0, 3)[0] = test::kInf;
  oracle.encode(keys);
  Tensor queries = Tensor::random({2, 6, d}, 3);  // G = 3
  const std::vector<int64_t> lengths = {n, 20};
  const auto votes = oracle.vote(queries, lengths);
  const auto head_votes = oracle.vote(queries, lengths, PKV_VOTE_GROUP_HEADS);
  for (int32_t i = 0; i < 2; ++i) {
    for (int32_t head = 0; head < 2; ++head) {
      std::vector<std::vector<float>> y;
      std::vector<float> sum(d);
      float largest = 0;
      for (int32_t g = 0; g < 3; ++g) {
        const auto q = row_of(queries, i, head * 3 + g, d);
        for (size_t j = 0; j < q.size(); ++j) sum[j] = g == 0 ? q[j] : sum[j] + q[j];
        y.push_back(rotated_query(oracle, q, head));
        largest = std::max(largest, largest_subspace(y.back()));
      }
      const auto y_sum = rotated_query(oracle, sum, head);
      for (int64_t t = 0; t < n; ++t) {
        CAPTURE(t);
        const auto vote = votes[static_cast<size_t>((i * 2 + head) * n + t)];
        const auto head_vote = head_votes[static_cast<size_t>((i * 2 + head) * n + t)];
        if (t >= lengths[static_cast<size_t>(i)] || (i == 1 && head == 0 && t == 3)) {
          CHECK(std::isnan(vote));  // beyond the length: as it was; bad key: NaN
          CHECK(std::isnan(head_vote));
          continue;
        }
        const auto record = oracle.record(i * 2 + head, t);
        const float f = format::bf16_to_float(record.vote_factor);
        CHECK(vote ==
              static_cast<float>(graded_sum(y_sum, largest_subspace(y_sum), record.signs)) * f);
        int32_t t_max = -100000;
        for (const auto& y_g : y) t_max = std::max(t_max, graded_sum(y_g, largest, record.signs));
        CHECK(head_vote == static_cast<float>(t_max) * f);
      }
    }
  }
}

// A query or key of d = 8 whose rotated form is the integers y (exact, as y = FWHT(sigma * x)).
void set_rotated(Oracle& oracle, const std::vector<float>& y, float* x) {
  for (size_t j = 0; j < 8; ++j) {
    float sum = 0;
    for (size_t i = 0; i < 8; ++i) {
      sum += std::popcount(i & j) % 2 == 0 ? y[i] : -y[i];
    }
    x[j] = oracle.signs_1[j] * sum / 8.0F;
  }
}

TEST_CASE("vote graded: ties of rint go to even, and the extremes stay within 127") {
  Oracle oracle(geometry_of(8), 3);
  // A = 246 m, so z = y / (2 m): 31 / 2 = 15.5 becomes 16, 29 / 2 = 14.5 becomes 14.
  const std::vector<float> y = {31, -31, 31, 31, -31, 31, 31, -29};
  Tensor keys({1, 1, 3, 8});
  std::vector<float> same;
  std::vector<float> opposite;
  for (const float v : y) {
    same.push_back(v > 0 ? 1.0F : -1.0F);
    opposite.push_back(v > 0 ? -1.0F : 1.0F);
  }
  set_rotated(oracle, same, keys.row(0, 0, 0));
  set_rotated(oracle, opposite, keys.row(0, 0, 1));
  set_rotated(oracle, std::vector<float>(8, 1.0F), keys.row(0, 0, 2));
  oracle.encode(keys);  // n2 / n1 = 1
  // (123 * y) / A is exact for every m; y * (123 / A) would not be.
  for (int32_t m = 1; m < 200; ++m) {
    CAPTURE(m);
    std::vector<float> multiple;
    for (const float v : y) multiple.push_back(v * static_cast<float>(m));
    Tensor queries({1, 1, 8});
    set_rotated(oracle, multiple, queries.row(0, 0));
    CHECK(oracle.vote(queries, {3}) ==
          std::vector<float>{7 * 16 + 14, -(7 * 16 + 14), 5 * 16 - 2 * 16 - 14});
  }
}

TEST_CASE("vote graded: opposite heads cancel in a sum, not in a maximum") {
  Oracle oracle(geometry_of(16), 10);
  Tensor keys = Tensor::random({1, 1, 10, 16}, 4);
  oracle.encode(keys);
  Tensor queries = Tensor::random({1, 2, 16}, 5);
  for (int32_t j = 0; j < 16; ++j) queries.row(0, 1)[j] = -queries.row(0, 0)[j];
  for (const float vote : oracle.vote(queries, {10})) CHECK(vote == 0.0F);
  for (const float vote : oracle.vote(queries, {10}, PKV_VOTE_GROUP_HEADS)) CHECK(vote > 0.0F);
}

TEST_CASE("vote: a bad query votes NaN for its row, other rows are untouched") {
  for (const int32_t kind : {PKV_VOTE_GRADED, PKV_VOTE_TIER}) {
    for (const float bad : {test::kNan, test::kInf, 1.5e19F}) {
      CAPTURE(bad);
      Oracle oracle(geometry_of(16, 0, PKV_CODEC_SCALAR4, kind, 2), 5, 2);
      Tensor keys = Tensor::random({2, 2, 5, 16}, 6);
      oracle.encode(keys);
      Tensor queries = Tensor::random({2, 4, 16}, 7);
      const auto before = oracle.vote(queries, {5, 5});
      queries.row(0, 3)[2] = bad;  // second head of KV head 1 of entry 0
      const auto votes = oracle.vote(queries, {5, 5});
      for (size_t i = 0; i < votes.size(); ++i) {
        if (i / 5 == 1) {
          CHECK(std::isnan(votes[i]));
        } else {
          CHECK(votes[i] == before[i]);
        }
      }
    }
  }
}

TEST_CASE("vote: heads that are good but whose sum is not finite are a bad query") {
  Oracle oracle(geometry_of(8), 2);
  Tensor keys = Tensor::random({1, 1, 2, 8}, 8);
  oracle.encode(keys);
  Tensor queries({1, 2, 8});
  // 4 * 8 * x^2 for the sum, 8 * x^2 for a head; the limit is 3.4e38.
  queries.row(0, 0)[0] = queries.row(0, 1)[0] = 4e18F;
  for (const float vote : oracle.vote(queries, {2})) CHECK(std::isnan(vote));
  queries.row(0, 0)[0] = queries.row(0, 1)[0] = 2e18F;
  for (const float vote : oracle.vote(queries, {2})) CHECK(std::isfinite(vote));
}

// 4.3 by counting: P_p over all pairs of patterns, points over all boundaries.
std::vector<int32_t> tier_points(const std::vector<float>& y, const int32_t* occupancy,
                                 bool of_keys) {
  std::vector<float> m;
  int64_t n = 0;
  for (int32_t p = 0; p < 256; ++p) {
    std::vector<float> terms;
    for (int32_t j = 0; j < 8; ++j) {
      terms.push_back((p & (1 << j)) != 0 ? y[static_cast<size_t>(j)] : -y[static_cast<size_t>(j)]);
    }
    m.push_back(reference_fold(terms));
    n += occupancy[p];
  }
  const int64_t rho = n < 5000 ? 50 : n < 10000 ? 30 : n < 30000 ? 25 : 20;
  std::vector<int32_t> points;
  for (size_t p = 0; p < 256; ++p) {
    int64_t before = 0;
    for (size_t other = 0; other < 256; ++other) {
      if (m[other] > m[p] || (m[other] == m[p] && other < p)) {
        before += of_keys ? occupancy[other] : 1;
      }
    }
    int32_t count = 0;
    for (const int64_t tau : {5, 15, 30, 50, 75, 100}) {
      const long double boundary =
          std::ceil(static_cast<long double>((of_keys ? n : 256) * rho * tau) / 10000.0L);
      if (static_cast<long double>(before) < boundary) ++count;
    }
    points.push_back(count);
  }
  return points;
}

TEST_CASE("vote tier: points by keys before the pattern, or by its rank") {
  const int32_t d = 24;
  const int32_t n = 300;
  Oracle oracle(geometry_of(d, 0, PKV_CODEC_POLAR4, PKV_VOTE_TIER), n);
  fill_codec(oracle, 9);
  Tensor keys = Tensor::random({1, 1, n, d}, 10);
  keys.row(0, 0, 17)[5] = test::kNan;
  oracle.encode(keys);
  Tensor queries = Tensor::random({1, 2, d}, 11);
  for (const bool is_zero : {false, true}) {  // all sums equal: the order is that of the patterns
    if (is_zero) std::fill(queries.data().begin(), queries.data().end(), 0.0F);
    std::vector<float> sum;
    for (int32_t j = 0; j < d; ++j) sum.push_back(queries.row(0, 0)[j] + queries.row(0, 1)[j]);
    const auto y = rotated_query(oracle, sum);
    for (const bool of_keys : {true, false}) {
      const auto votes = oracle.vote(queries, {n}, PKV_VOTE_GROUP_SUM,
                                     of_keys ? PKV_RHO_OF_KEYS : PKV_RHO_OF_CENTROIDS);
      std::vector<std::vector<int32_t>> points;
      for (int32_t b = 0; b < d / 8; ++b) {
        points.push_back(tier_points({y.begin() + 8 * b, y.begin() + 8 * b + 8},
                                     oracle.occupancy.data() + 256 * b, of_keys));
      }
      float most = 0;
      for (int64_t t = 0; t < n; ++t) {
        const float vote = votes[static_cast<size_t>(t)];
        if (t == 17) {
          CHECK(std::isnan(vote));
          continue;
        }
        const auto signs = oracle.record(0, t).signs;
        int32_t expected = 0;
        for (size_t b = 0; b < signs.size(); ++b) expected += points[b][signs[b]];
        REQUIRE(vote == static_cast<float>(expected));
        most = std::max(most, vote);
      }
      CHECK(most > 0);
      CHECK(most <= 6 * d / 8);
    }
  }
}

TEST_CASE("vote tier: equal keys all hold the first pattern or none of its points") {
  Oracle oracle(geometry_of(8, 0, PKV_CODEC_POLAR4, PKV_VOTE_TIER), 40);
  Tensor keys({1, 1, 40, 8});
  for (int64_t t = 0; t < 40; ++t) keys.row(0, 0, t)[0] = 1.0F;
  oracle.encode(keys);
  Tensor queries = Tensor::random({1, 1, 8}, 12);
  // No key comes before the only pattern that occurs: 0 is below every boundary.
  for (const float vote : oracle.vote(queries, {40})) CHECK(vote == 6.0F);
}

TEST_CASE("vote: empty rows and batches write nothing") {
  Oracle oracle(geometry_of(16), 4, 2);
  Tensor keys = Tensor::random({2, 1, 4, 16}, 13);
  oracle.encode(keys);
  Tensor queries = Tensor::random({2, 1, 16}, 14);
  const auto votes = oracle.vote(queries, {0, 2});
  CHECK(votes.size() == 4);
  CHECK(std::isnan(votes[0]));
  CHECK(std::isnan(votes[1]));
  CHECK(std::isfinite(votes[3]));
  Tensor none({0, 1, 16});
  CHECK(oracle.vote(none, {}).empty());
}

}  // namespace
}  // namespace pkv
