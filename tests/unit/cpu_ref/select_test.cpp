// docs/algorithm.md, section 5.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::kInf;
using test::kNan;
using test::Oracle;

// The candidates of one row when C = min(n, k).
std::vector<int32_t> select(const std::vector<float>& votes, int32_t k) {
  Oracle oracle(geometry_of(8), 1);
  const auto result = oracle.select(votes, {static_cast<int64_t>(votes.size())},
                                    format::candidate_rule(0, k), /*extra_stride=*/2);
  for (size_t i = static_cast<size_t>(result.counts[0]); i < result.positions.size(); ++i) {
    CHECK(result.positions[i] == -1);
  }
  return {result.positions.begin(), result.positions.begin() + result.counts[0]};
}

using Positions = std::vector<int32_t>;

TEST_CASE("select: equal votes at the cut, the smaller positions win") {
  CHECK(select({3, 7, 7, 9, 7}, 3) == Positions{1, 2, 3});
  CHECK(select({5, 5, 5, 5}, 2) == Positions{0, 1});
}

TEST_CASE("select: -0 equals +0") {
  CHECK(select({-0.0F, 0.0F, -0.0F, 0.0F, -1.0F}, 3) == Positions{0, 1, 2});
}

TEST_CASE("select: NaN is never chosen, -inf is an ordinary lowest vote") {
  CHECK(select({kNan, -kInf, 2, kNan, -3}, 2) == Positions{2, 4});
  CHECK(select({kNan, -kInf, 2, kNan, -3}, 3) == Positions{1, 2, 4});
  CHECK(select({kNan, -kInf, 2, kNan, -3}, 5) == Positions{1, 2, 4});
  CHECK(select({kNan, kNan}, 2).empty());
  CHECK(select({-kInf, kInf}, 1) == Positions{1});
}

TEST_CASE("select: k = 0, k = n, k > n, n = 0") {
  CHECK(select({1, 2, 3}, 0).empty());
  CHECK(select({1, 2, 3}, 3) == Positions{0, 1, 2});
  CHECK(select({1, 2, 3}, 7) == Positions{0, 1, 2});
  CHECK(select({}, 7).empty());
}

TEST_CASE("select: agrees with a full stable sort, on votes full of ties") {
  test::Random random(1);
  for (const int32_t n : {31, 32, 33, 64, 65, 1000}) {
    for (const int32_t k : {1, 30, 31, 500}) {
      std::vector<float> votes;
      for (int32_t t = 0; t < n; ++t) votes.push_back(std::rint(random.bell() * 3));
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return votes[static_cast<size_t>(a)] > votes[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(std::min(n, k)));
      std::sort(order.begin(), order.end());
      CHECK(select(votes, k) == order);
    }
  }
}

TEST_CASE("select: every row has its own length and its own count") {
  Oracle oracle(geometry_of(8, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 1);
  // 50 %, at least 1: lengths 4, 0, 3 give 2, 0, 2.
  std::vector<float> votes(3 * 2 * 4, 9.0F);
  const std::vector<float> rows[] = {{1, 2, 3, 4}, {4, 3, 2, 1},    {},
                                     {},           {1, kNan, kNan}, {0, 0, 1}};
  for (size_t r = 0; r < 6; ++r) {
    std::copy(rows[r].begin(), rows[r].end(), votes.begin() + static_cast<int64_t>(4 * r));
  }
  const auto result = oracle.select(votes, {4, 0, 3}, format::candidate_rule(500000, 1));
  CHECK(result.counts == std::vector<int32_t>{2, 2, 0, 0, 1, 2});
  CHECK(result.positions == std::vector<int32_t>{2, 3, 0, 1, -1, -1, -1, -1, 0, -1, 0, 2});
}

TEST_CASE("select: a stride below the count of some shorter row is refused") {
  // 50 % below 10 keys, 10 % from there: 9 keys give 5, the 10 of max_length give 1.
  Oracle oracle(geometry_of(8), 1);
  const format::ScheduleStep schedule[] = {{10, 500000}, {INT64_MAX, 100000}};
  pkv_select_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = 1;
  args.batch = oracle.batch_of({10});
  args.rule = format::candidate_rule(schedule, 0);
  args.candidates_stride = 4;
  CHECK(oracle.table->select.supports(oracle.device, &args) == PKV_UNIMPLEMENTED);
  CHECK(oracle.reported.find("candidates_stride=4") != std::string::npos);
  args.candidates_stride = 5;
  CHECK(oracle.table->select.supports(oracle.device, &args) == PKV_OK);
}

}  // namespace
}  // namespace pkv
