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
  std::vector<int64_t> key_counts = {-9, -9}, query_counts = {-9, -9};
  std::vector<double> key_sums = std::vector<double>(2 * kD, 7.0);
  std::vector<double> key_squares = key_sums;
  std::vector<double> query_squares = key_sums;
  std::vector<double> value_sums = std::vector<double>(2 * kDv, 7.0);
};

Sums fit(Oracle& oracle, const pkv_tensor& keys, const pkv_tensor& queries,
         const pkv_tensor& values, const std::vector<float>& pivot) {
  Sums sums;
  pkv_fit_args args = {};
  args.struct_size = sizeof args;
  args.geometry = &oracle.geometry;
  args.keys = keys;
  args.queries = queries;
  args.values = values;
  args.pivot = pivot.data();
  args.key_counts = sums.key_counts.data();
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
