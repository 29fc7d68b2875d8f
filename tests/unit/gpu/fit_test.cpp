// Fit of the GPU kernels: near cpu_ref, and the same bits on every machine and in every order.
// docs/algorithm.md, section 2.2: bounded.
#include <cmath>
#include <vector>

#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_host.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

constexpr int32_t kHeads = 2;
constexpr int64_t kTokens = 333;  // more tiles than parts, the last one not full
constexpr int64_t kPositions = 70;
constexpr int32_t kGroup = 3;

struct FitSums {
  FitSums(size_t d, size_t dv)
      : counts(3 * kHeads, -1), keys(3 * kHeads * d, 0.25), values(kHeads * dv, 0.25) {}
  bool operator==(const FitSums& other) const = default;

  std::vector<int64_t> counts;
  std::vector<double> keys;  // sums, squares, squares of queries
  std::vector<double> values;
};

void put(pkv_fit_args& args, FitSums& sums) {
  const size_t numbers = sums.keys.size() / 3;
  args.key_counts = sums.counts.data();
  args.key_weights = args.key_counts + kHeads;
  args.query_counts = args.key_weights + kHeads;
  args.key_sums = sums.keys.data();
  args.key_squares = args.key_sums + numbers;
  args.query_squares = args.key_squares + numbers;
  args.value_sums = sums.values.data();
}

TEST_CASE("fit: near cpu_ref, and equal bits on every machine") {
  constexpr int32_t d = 72;
  constexpr int32_t dv = 40;
  const pkv_geometry geometry = geometry_of(d, dv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kHeads);
  Oracle oracle(geometry, 1, 1);
  Tensor keys = Tensor::random({kHeads, kTokens, d}, 1);
  Tensor values = Tensor::random({kHeads, kTokens, dv}, 2);
  Tensor queries = Tensor::random({kHeads * kGroup, kPositions, d}, 3);
  keys.row(0, 100)[4] = test::kNan;
  values.row(1, 7)[0] = test::kInf;
  queries.row(4, 9)[1] = test::kNan;
  const std::vector<float> pivot(kHeads * d, 0.125F);
  std::vector<int32_t> weights;
  for (int64_t i = 0; i < kHeads * kTokens; ++i) weights.push_back(static_cast<int32_t>(i % 4));
  pkv_fit_args args = {};
  args.struct_size = sizeof args;
  args.geometry = &geometry;
  args.keys = keys.view();
  args.values = values.view();
  args.queries = queries.view();
  args.pivot = pivot.data();
  for (const int32_t as : {PKV_FIT_QUERIES_HEADS, PKV_FIT_QUERIES_SUM}) {
    for (const bool is_weighted : {false, true}) {
      args.queries_as = as;
      args.weights = is_weighted ? weights.data() : nullptr;
      FitSums expected(d, dv);
      put(args, expected);
      oracle.run(oracle.table->fit, args);
      std::vector<FitSums> all;
      for (const gpu_exec::Options& machine : kMachines) {
        Backend backend(machine);
        FitSums found(d, dv);
        put(args, found);
        backend.run(table()->fit, args);
        CHECK((all.empty() || found == all.front()));
        all.push_back(found);
      }
      const FitSums& found = all.front();
      CHECK(found.counts == expected.counts);
      // Sums in double differ by at most n 2^-53 sum |terms|: 333 terms of up to 3 * 4.2^2 here.
      const double bound = 333 * 0x1p-53 * 333 * 3 * 18;
      for (size_t i = 0; i < found.keys.size(); ++i) {
        CAPTURE(i);
        CHECK(std::fabs(found.keys[i] - expected.keys[i]) <= bound);
      }
      for (size_t i = 0; i < found.values.size(); ++i) {
        CHECK(std::fabs(found.values[i] - expected.values[i]) <= bound);
      }
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
