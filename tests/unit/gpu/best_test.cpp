// The best of rows without sorting, and stage select on top. docs/algorithm.md, section 5: exact.
#include "backends/gpu/best_kernels.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_host.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST_CASE("best: keys order like the values, both zeros are one, NaN is below all") {
  const float ascending[] = {-kInfinity, -3e38F, -1.0F,      -0x1p-149F, 0.0F,
                             0x1p-149F,  1.0F,   1.0000001F, 3e38F,      kInfinity};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    const uint32_t key = order_key(ascending[i]);
    if (i > 0) CHECK(key > order_key(ascending[i - 1]));
    CHECK(key > order_key(kNan));
    CHECK(value_of_order_key(key) == ascending[i]);
  }
  CHECK(order_key(-0.0F) == order_key(0.0F));
  CHECK(order_key(-kNan) == 0);
}

TEST_CASE("best: runs cover a row once, in whole groups of 32") {
  for (const int64_t n : {0, 1, 31, 32, 33, 257, 4096, 4097}) {
    for (const int32_t count : {1, 2, 8, 500}) {
      const BestRuns runs(n, count);
      CHECK(runs.keys % 32 == 0);
      CHECK(runs.begin(0) == 0);
      CHECK(runs.begin(count) == n);
      for (int64_t run = 0; run < count; ++run) CHECK(runs.begin(run) <= runs.begin(run + 1));
    }
  }
}

TEST_CASE("best: positions beyond 2^31 bytes and runs of a row of 2^31 - 1") {
  const int64_t n = INT32_MAX;
  const BestRuns runs(n, 2048);
  CHECK(runs.begin(2048) == n);
  CHECK(runs.begin(2047) < n);
  CHECK(runs.begin(2047) == 2047 * runs.keys);
}

// Section 5 by sorting.
std::vector<int32_t> sorted_best(const float* votes, int64_t n, int64_t wanted) {
  std::vector<int32_t> order;
  for (int32_t i = 0; i < n; ++i) {
    if (!std::isnan(votes[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [votes](int32_t a, int32_t b) { return votes[a] > votes[b]; });
  order.resize(static_cast<size_t>(std::min(wanted, static_cast<int64_t>(order.size()))));
  std::sort(order.begin(), order.end());
  return order;
}

struct SelectCase {
  int64_t max_length;  // what the host knows
  std::vector<int64_t> lengths;
  int32_t levels;  // different votes; 0: many
  int64_t ppm;
  int32_t k;
};

void check_select(const SelectCase& c, const gpu_exec::Options& machine) {
  constexpr int32_t kHeads = 2;
  const size_t rows = c.lengths.size() * kHeads;
  const int64_t votes_stride = c.max_length + 5;
  std::vector<float> votes(rows * static_cast<size_t>(votes_stride));
  test::Random random(9);
  for (float& vote : votes) {
    vote = c.levels == 0 ? random.bell()
                         : static_cast<float>(random.bits() % static_cast<uint32_t>(c.levels));
    if (random.bits() % 11 == 0) vote = kNan;
  }
  const std::vector<int32_t> sequences(c.lengths.size(), 0);
  pkv_select_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = kHeads;
  args.batch.batch = static_cast<int32_t>(c.lengths.size());
  args.batch.sequences = sequences.data();
  args.batch.lengths = c.lengths.data();
  args.batch.max_length = c.max_length;
  args.rule = format::candidate_rule(c.ppm, c.k);
  args.votes = votes.data();
  args.votes_stride = votes_stride;
  args.candidates_stride = format::largest_candidate_count(args.rule, c.max_length) + 3;
  std::vector<int32_t> candidates(rows * static_cast<size_t>(args.candidates_stride), -7);
  std::vector<int32_t> counts(rows, -7);
  args.candidates = candidates.data();
  args.candidate_counts = counts.data();
  Backend backend(machine);
  backend.run(table()->select, args);
  for (size_t r = 0; r < rows; ++r) {
    const int64_t n = c.lengths[r / kHeads];
    std::vector<int32_t> expected =
        sorted_best(votes.data() + static_cast<int64_t>(r) * votes_stride, n,
                    format::candidate_count(args.rule, n));
    CHECK(counts[r] == static_cast<int32_t>(expected.size()));
    expected.resize(static_cast<size_t>(args.candidates_stride), -1);
    const auto begin = candidates.begin() + static_cast<int64_t>(r) * args.candidates_stride;
    CHECK(std::equal(expected.begin(), expected.end(), begin));
  }
}

TEST_CASE("select: short and long rows, ties at the cut, lengths below what the host knows") {
  // Below and above what one block takes alone, and where the last blocks have no keys.
  REQUIRE(Traits::kBestShort == 192);
  for (const gpu_exec::Options& machine : kMachines) {
    for (const int32_t levels : {0, 3, 1}) {
      CAPTURE(machine.lanes);
      CAPTURE(machine.seed);
      CAPTURE(levels);
      check_select({192, {192, 191, 0, 1, 33}, levels, 300000, 4}, machine);
      check_select({193, {193, 64, 0, 1}, levels, 300000, 4}, machine);
      check_select({3000, {3000, 2049, 129, 0, 5}, levels, 50000, 40}, machine);
      check_select({700, {700, 699}, levels, 1000000, 0}, machine);
      check_select({700, {700}, levels, 0, 0}, machine);
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
