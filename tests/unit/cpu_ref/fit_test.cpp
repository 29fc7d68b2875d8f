// docs/algorithm.md, section 2.2: the sums of stage fit.
#include <doctest/doctest.h>

#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

constexpr int32_t kD = 16;
constexpr int32_t kDv = 8;
constexpr int64_t kT = 50;
constexpr int64_t kM = 7;

struct Sums {
  std::vector<int64_t> key_counts = {-9, -9}, key_weights = {-9, -9}, query_counts = {-9, -9};
  std::vector<double> key_sums = std::vector<double>(2 * kD, 7.0);
  std::vector<double> key_squares = key_sums;
  std::vector<double> query_squares = key_sums;
  std::vector<double> value_sums = std::vector<double>(2 * kDv, 7.0);
};

Sums fit(Oracle& oracle, const pkv_tensor& keys, const pkv_tensor& queries,
         const pkv_tensor& values, const std::vector<float>& pivot,
         const std::vector<int32_t>& weights = {}, int32_t queries_as = PKV_FIT_QUERIES_HEADS) {
  Sums sums;
  pkv_fit_args args = {};
  args.struct_size = sizeof args;
  args.queries_as = queries_as;
  args.geometry = &oracle.geometry;
  args.keys = keys;
  args.queries = queries;
  args.values = values;
  args.pivot = pivot.data();
  args.weights = weights.empty() ? nullptr : weights.data();
  args.key_counts = sums.key_counts.data();
  args.key_weights = sums.key_weights.data();
  args.key_sums = sums.key_sums.data();
  args.key_squares = sums.key_squares.data();
  args.query_counts = sums.query_counts.data();
  args.query_squares = sums.query_squares.data();
  args.value_sums = values.ndim == 0 ? nullptr : sums.value_sums.data();
  oracle.run(oracle.table->fit, args);
  return sums;
}

void check_close(double actual, long double expected, long double magnitude) {
  CHECK(std::abs(actual - static_cast<double>(expected)) <=
        64 * 0x1p-52 * static_cast<double>(magnitude));
}

TEST_CASE("fit: counts, sums and sums of squares about the pivot, unusable rows left out") {
  Oracle oracle(geometry_of(kD, kDv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 1);
  Tensor keys = Tensor::random({2, kT, kD}, 1);
  Tensor values = Tensor::random({2, kT, kDv}, 2);
  Tensor queries = Tensor::random({6, kM, kD}, 3);
  keys.row(0, 3)[1] = test::kNan;
  keys.row(0, 4)[0] = -test::kInf;
  keys.row(1, 5)[2] = 2e19F;  // its square is not finite in fp32
  values.row(1, 6)[7] = 3e38F;
  queries.row(4, 2)[0] = test::kInf;  // KV head 1
  const std::vector<float> pivot(keys.data().begin(), keys.data().begin() + 2 * kD);
  const Sums sums = fit(oracle, keys.view(), queries.view(), values.view(), pivot);
  CHECK(sums.key_counts == std::vector<int64_t>{kT - 2, kT - 2});
  CHECK(sums.key_weights == sums.key_counts);
  CHECK(sums.query_counts == std::vector<int64_t>{3 * kM, 3 * kM - 1});
  for (int32_t head = 0; head < 2; ++head) {
    const auto is_used = [&](int64_t t) { return head == 0 ? t != 3 && t != 4 : t != 5 && t != 6; };
    for (int32_t j = 0; j < kD; ++j) {
      const auto at = static_cast<size_t>(head * kD + j);
      long double A = 0;
      long double B = 0;
      long double magnitude = 0;
      for (int64_t t = 0; t < kT; ++t) {
        if (!is_used(t)) continue;
        const long double x =
            static_cast<long double>(keys.row(head, t)[j]) - static_cast<long double>(pivot[at]);
        A += x;
        B += x * x;
        magnitude += std::fabs(x);
      }
      check_close(sums.key_sums[at], A, magnitude);
      check_close(sums.key_squares[at], B, B);
      long double Q = 0;
      for (int32_t g = 0; g < 3; ++g) {
        for (int64_t m = 0; m < kM; ++m) {
          const auto q = static_cast<long double>(queries.row(head * 3 + g, m)[j]);
          if (std::isfinite(queries.row(head * 3 + g, m)[0])) Q += q * q;
        }
      }
      check_close(sums.query_squares[at], Q, Q);
    }
    for (int32_t j = 0; j < kDv; ++j) {
      long double V = 0;
      long double magnitude = 0;
      for (int64_t t = 0; t < kT; ++t) {
        if (!is_used(t)) continue;
        V += static_cast<long double>(values.row(head, t)[j]);
        magnitude += std::fabs(static_cast<long double>(values.row(head, t)[j]));
      }
      check_close(sums.value_sums[static_cast<size_t>(head * kDv + j)], V, magnitude);
    }
  }
}

TEST_CASE("fit: a key of weight o counts o times in the key sums, once in the value sums") {
  Oracle oracle(geometry_of(kD, kDv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 1);
  Tensor keys = Tensor::random({2, kT, kD}, 1);
  Tensor values = Tensor::random({2, kT, kDv}, 2);
  keys.row(1, 5)[2] = test::kNan;
  const std::vector<float> pivot(keys.data().begin(), keys.data().begin() + 2 * kD);
  std::vector<int32_t> weights;
  for (int32_t i = 0; i < 2 * kT; ++i) weights.push_back(i % 3 == 0 ? 0 : i % 7);
  weights[static_cast<size_t>(kT + 5)] = 1000;  // of the key that is not used
  const Sums sums = fit(oracle, keys.view(), {}, values.view(), pivot, weights);
  CHECK(sums.key_counts == std::vector<int64_t>{kT, kT - 1});
  for (int32_t head = 0; head < 2; ++head) {
    int64_t W = 0;
    std::vector<long double> A(kD), B(kD), magnitude(kD);
    for (int64_t t = 0; t < kT; ++t) {
      if (head == 1 && t == 5) continue;
      for (int32_t o = 0; o < weights[static_cast<size_t>(head * kT + t)]; ++o) {
        ++W;
        for (size_t j = 0; j < kD; ++j) {
          const long double x = static_cast<long double>(keys.row(head, t)[j]) -
                                static_cast<long double>(pivot[static_cast<size_t>(head) * kD + j]);
          A[j] += x;
          B[j] += x * x;
          magnitude[j] += std::fabs(x);
        }
      }
    }
    CHECK(sums.key_weights[static_cast<size_t>(head)] == W);
    for (size_t j = 0; j < kD; ++j) {
      check_close(sums.key_sums[static_cast<size_t>(head) * kD + j], A[j], magnitude[j]);
      check_close(sums.key_squares[static_cast<size_t>(head) * kD + j], B[j], B[j]);
    }
  }
  const Sums plain = fit(oracle, keys.view(), {}, values.view(), pivot);
  CHECK(sums.value_sums == plain.value_sums);
  const Sums ones =
      fit(oracle, keys.view(), {}, values.view(), pivot, std::vector<int32_t>(2 * kT, 1));
  CHECK(ones.key_sums == plain.key_sums);
  CHECK(ones.key_squares == plain.key_squares);
  CHECK(ones.key_weights == plain.key_counts);
  const Sums none =
      fit(oracle, keys.view(), {}, values.view(), pivot, std::vector<int32_t>(2 * kT, 0));
  CHECK(none.key_weights == std::vector<int64_t>{0, 0});
  CHECK(none.key_counts == plain.key_counts);
  CHECK(none.key_sums == std::vector<double>(2 * kD, 0.0));
}

TEST_CASE("fit: queries as the sums of their groups, in the order of the heads") {
  Oracle oracle(geometry_of(kD, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 1);
  Tensor keys = Tensor::random({2, 3, kD}, 1);
  Tensor queries = Tensor::random({6, kM, kD}, 3);
  queries.row(4, 2)[0] = test::kInf;  // KV head 1: the sum of position 2 is no number
  queries.row(5, 2)[0] = -test::kInf;
  for (int32_t g = 0; g < 2; ++g) queries.row(g, 1)[3] = 1.2e19F;  // usable, their sum is not
  queries.row(0, 5)[4] = 1e8F;  // with its opposite and a small number: the order shows
  queries.row(1, 5)[4] = 0.75F;
  queries.row(2, 5)[4] = -1e8F;
  const Sums sums = fit(oracle, keys.view(), queries.view(), {}, std::vector<float>(2 * kD, 0.0F),
                        {}, PKV_FIT_QUERIES_SUM);
  CHECK(sums.query_counts == std::vector<int64_t>{kM - 1, kM - 1});
  for (int32_t head = 0; head < 2; ++head) {
    for (int32_t j = 0; j < kD; ++j) {
      long double Q = 0;
      for (int64_t m = 0; m < kM; ++m) {
        if (m == (head == 0 ? 1 : 2)) continue;
        const float sum = (queries.row(head * 3, m)[j] + queries.row(head * 3 + 1, m)[j]) +
                          queries.row(head * 3 + 2, m)[j];
        Q += static_cast<long double>(sum) * static_cast<long double>(sum);
      }
      check_close(sums.query_squares[static_cast<size_t>(head * kD + j)], Q, Q);
    }
  }
}

TEST_CASE("fit: without queries and values, a bad value does not matter and query sums are 0") {
  Oracle oracle(geometry_of(kD, kDv), 1);
  Tensor keys = Tensor::random({1, kT, kD}, 4);
  const std::vector<float> pivot(kD, 0.0F);
  const Sums sums = fit(oracle, keys.view(), {}, {}, pivot);
  CHECK(sums.key_counts[0] == kT);
  CHECK(sums.query_counts[0] == 0);
  CHECK(sums.query_squares[kD - 1] == 0.0);
  CHECK(sums.value_sums[0] == 7.0);  // not wanted: not written
}

TEST_CASE("fit: no keys at all") {
  Oracle oracle(geometry_of(kD), 1);
  Tensor keys({1, 0, kD});
  const Sums sums = fit(oracle, keys.view(), {}, {}, std::vector<float>(kD, 0.0F));
  CHECK(sums.key_counts[0] == 0);
  CHECK(sums.key_sums[0] == 0.0);
  CHECK(sums.key_squares[kD - 1] == 0.0);
}

}  // namespace
}  // namespace pkv
