// Estimates, scores and hits of the GPU kernels against their formulas and cpu_ref, in pages, with
// a codec set per entry and a sequence named twice. docs/algorithm.md, section 6.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "backends/gpu/estimate.cuh"
#include "backends/gpu/hits.cuh"
#include "backends/gpu/host/traits.h"
#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_store.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

using test::geometry_of;
using test::Hits;
using test::Oracle;
using test::Tensor;

// Every level of a codec at every dim of a chunk, with both signs.
template <int32_t kCodec>
void check_levels(const int32_t* levels, int32_t codes) {
  for (int32_t first = 0; first < codes; ++first) {
    uint32_t planes[4] = {};
    uint32_t signs = 0;
    int32_t expected[32];
    for (int32_t j = 0; j < 32; ++j) {
      const int32_t code = (first + 5 * j) % codes;
      const bool is_positive = (j * 7 + first) % 3 != 0;
      for (int32_t p = 0; p < 4; ++p) planes[p] |= static_cast<uint32_t>((code >> p) & 1) << j;
      signs |= static_cast<uint32_t>(is_positive) << j;
      expected[j] = is_positive ? levels[code] : -levels[code];
    }
    uint32_t y[8];
    decode_scalar<kCodec>(planes, signs, y);
    for (int32_t v = 0; v < 2; ++v) {
      for (int32_t e = 0; e < 4; ++e) {
        for (int32_t b = 0; b < 4; ++b) {
          const int32_t j = 16 * (e % 2) + 4 * b + 2 * v + e / 2;
          const auto byte = static_cast<int8_t>(y[4 * v + e] >> (8 * b));
          CHECK(2 * byte + 1 == expected[j]);
        }
      }
    }
  }
}

TEST_CASE("estimate: levels of scalar codecs as bytes, where the queries' words have their dims") {
  check_levels<PKV_CODEC_SCALAR4>(format::kScalar4Levels, 8);
  check_levels<PKV_CODEC_SCALAR5>(format::kScalar5Levels, 16);
}

TEST_CASE("estimate: levels of polar4") {
  for (uint32_t code = 0; code < 8; ++code) {
    const uint32_t planes[3] = {0U - (code & 1U), 0U - (code >> 1 & 1U), 0U - (code >> 2 & 1U)};
    float level[32];
    decode_polar(planes, 0x0000ffffU, level);
    CHECK(level[0] == format::kPolarLevels[code]);
    CHECK(level[15] == format::kPolarLevels[code]);
    CHECK(level[16] == -format::kPolarLevels[code]);
    CHECK(level[31] == -format::kPolarLevels[code]);
  }
}

TEST_CASE("estimate: limits, and NaN below all") {
  CHECK(limited(2e30F) == 1e30F);
  CHECK(limited(-test::kInf) == -1e30F);
  CHECK(limited(test::kNan) == -1e30F);
  CHECK(limited(-3.5F) == -3.5F);
}

TEST_CASE("rerank: hit keys order by score descending, then place ascending") {
  CHECK(hit_key(2.0F, 9) < hit_key(1.0F, 3));
  CHECK(hit_key(2.0F, 3) < hit_key(2.0F, 9));
  CHECK(hit_key(-0.0F, 3) < hit_key(0.0F, 4));
  CHECK(hit_key(-1.0F, 3) > hit_key(0.0F, 4));
}

TEST_CASE("rerank: sums of exponentials, in any order, with nothing to add") {
  LogSum sum = LogSum::nothing();
  CHECK(sum.value() == -test::kInf);
  sum.add(-test::kInf);
  CHECK(sum.value() == -test::kInf);
  sum.add(-1e36F);
  CHECK(sum.value() == -1e36F);
  sum.add(1e36F);
  CHECK(sum.value() == 1e36F);
  LogSum a = LogSum::nothing();
  LogSum b = LogSum::nothing();
  a.add(1.0F);
  a.add(3.0F);
  b.add(2.0F);
  const double exact = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  CHECK(static_cast<double>(both(a, b).value()) == doctest::Approx(exact).epsilon(1e-6));
  CHECK(both(a, b).value() == both(b, a).value());
  CHECK(both(a, LogSum::nothing()).value() == a.value());
}

struct Case {
  int32_t d;
  int32_t codec;
  int32_t rank;
  float soft_cap = 0.0F;
  int32_t k = 10;
  int32_t group = 3;
  double share = 0.0;
};

constexpr int32_t kSequences = 2;
constexpr int32_t kHeads = 2;
constexpr int64_t kTokens = 300;  // four pages of 64 and a part of one

Hits hits_of(const pkv_rerank_args& args) {
  const auto rows = static_cast<size_t>(args.batch.batch) * kHeads;
  const auto heads = static_cast<size_t>(args.batch.batch) * static_cast<size_t>(args.query_heads);
  Hits hits;
  hits.positions.assign(rows * static_cast<size_t>(args.k), -7);
  hits.scores.assign(rows * static_cast<size_t>(args.k), 7.0F);
  hits.counts.assign(rows, -7);
  hits.estimates.assign(heads * static_cast<size_t>(args.candidates_stride), 7.0F);
  hits.rest_lse.assign(heads, 7.0F);
  hits.sample_estimates.assign(heads * static_cast<size_t>(args.tail_samples), 7.0F);
  return hits;
}
void point_at(Hits& hits, pkv_rerank_args& args) {
  args.positions = hits.positions.data();
  args.scores = hits.scores.data();
  args.counts = hits.counts.data();
  args.estimates = hits.estimates.data();
  args.rest_lse = hits.rest_lse.data();
  args.sample_estimates = hits.sample_estimates.data();
}

// Equal, both NaN, or within `tolerance`.
bool are_close(float a, float b, double tolerance) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  return std::fabs(static_cast<double>(a) - static_cast<double>(b)) <= tolerance;
}

void check_rerank(const Case& c, const gpu_exec::Options& machine, bool in_pages) {
  const pkv_geometry geometry =
      test::with_sketch(geometry_of(c.d, 16, c.codec, PKV_VOTE_GRADED, kHeads), 4, 16);
  Oracle oracle(geometry, kTokens, kSequences);
  Tensor keys = Tensor::random({kSequences, kHeads, kTokens, c.d}, 3);
  Tensor values = Tensor::random({kSequences, kHeads, kTokens, 16}, 4);
  keys.row(1, 0, 32)[3] = test::kNan;  // a sample
  for (int64_t i = 101; i < 121; ++i) std::copy_n(keys.row(1, 1, 100), c.d, keys.row(1, 1, i));
  oracle.encode(keys, values);
  Backend backend(machine);
  const GpuStore gpu(backend, geometry, kSequences, kTokens, in_pages);
  for (int64_t row = 0; row < kSequences * kHeads; ++row) {
    const Planes planes(geometry, kTokens);
    oracle.expect(oracle.table->store_export(oracle.device, nullptr, &geometry, &oracle.store, row,
                                             0, kTokens, &planes.records));
    backend.expect(table()->store_import(backend.device(), backend.stream(), &geometry, &gpu.store,
                                         row, 0, kTokens, &planes.records));
  }
  const std::vector<int32_t> set_of = {1, 0, 1};
  const size_t of_set = oracle.balance.size();
  for (size_t j = 0; j < of_set; ++j) {
    oracle.center.push_back(0.25F);
    oracle.balance.push_back(0.5F + static_cast<float>(j % 7));
  }
  Tensor queries = Tensor::random({3, kHeads * c.group, c.d}, 23);
  const std::vector<int32_t> sequences = {1, 0, 1};
  const std::vector<int64_t> lengths = {kTokens, 129, 64};
  // Candidates: all keys but every ninth, and the bad one.
  std::vector<int32_t> candidates;
  std::vector<int32_t> counts;
  for (size_t r = 0; r < 3 * kHeads; ++r) {
    std::vector<int32_t> row;
    for (int32_t i = 0; i < lengths[r / kHeads]; ++i) {
      if (i % 9 != 0 && i != 32) row.push_back(i);
    }
    counts.push_back(static_cast<int32_t>(row.size()));
    row.resize(kTokens, -1);
    candidates.insert(candidates.end(), row.begin(), row.end());
  }
  pkv_rerank_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = kHeads * c.group;
  args.rank = c.rank;
  args.k = c.k;
  args.k_min = 2;
  args.share = c.share;
  args.tail_samples = 9;
  args.scale = 1.0F / std::sqrt(static_cast<float>(c.d));
  args.soft_cap = c.soft_cap;
  args.codec = oracle.codec();
  args.codec.set_of = set_of.data();
  args.batch.batch = 3;
  args.batch.sequences = sequences.data();
  args.batch.lengths = lengths.data();
  args.batch.max_length = kTokens;
  args.queries = queries.view();
  args.candidates = candidates.data();
  args.candidates_stride = kTokens;
  args.candidate_counts = counts.data();
  Hits expected = hits_of(args);
  Hits found = hits_of(args);
  args.store = oracle.store;
  point_at(expected, args);
  oracle.run(oracle.table->rerank, args);
  args.store = gpu.store;
  point_at(found, args);
  backend.run(table()->rerank, args);

  const bool is_exact = c.codec != PKV_CODEC_POLAR4;
  // Logits stay below 64: docs/numerics.md, section 3, with X = 64, m = 300 and the cap's 8 u c.
  const double tolerance =
      2.0 * (4.0 * 64.0 + 300.0 + 8.0 + 16.0 * static_cast<double>(c.soft_cap)) * 0x1p-24;
  // polar4: (d + S + 4) u A_g, A_g below 64 sqrt(d).
  const double of_estimate =
      is_exact ? 0.0 : (1.125 * c.d + 4.0) * 0x1p-24 * 64.0 * std::sqrt(static_cast<double>(c.d));
  const bool is_exact_score = is_exact && c.rank == PKV_RANK_MEAN;
  const double of_score = is_exact_score ? 0.0 : tolerance + 2.0 * of_estimate;
  for (size_t i = 0; i < found.estimates.size(); ++i) {
    REQUIRE(are_close(found.estimates[i], expected.estimates[i], of_estimate));
  }
  for (size_t i = 0; i < found.sample_estimates.size(); ++i) {
    REQUIRE(are_close(found.sample_estimates[i], expected.sample_estimates[i], of_estimate));
  }
  for (size_t i = 0; i < found.rest_lse.size(); ++i) {
    REQUIRE(are_close(found.rest_lse[i], expected.rest_lse[i], tolerance + of_estimate));
  }
  if (c.share == 0.0) CHECK(found.counts == expected.counts);
  for (size_t i = 0; i < found.scores.size(); ++i) {
    REQUIRE(are_close(found.scores[i], expected.scores[i], of_score));
    if (is_exact_score) REQUIRE(found.positions[i] == expected.positions[i]);
  }
}

TEST_CASE("rerank: cpu_ref's results, in one piece and in pages, with a codec set per entry") {
  for (const Case& c :
       {Case{128, PKV_CODEC_SCALAR4, PKV_RANK_GROUP}, Case{128, PKV_CODEC_SCALAR4, PKV_RANK_MEAN},
        Case{24, PKV_CODEC_SCALAR5, PKV_RANK_MEAN}, Case{72, PKV_CODEC_POLAR4, PKV_RANK_GROUP}}) {
    for (const gpu_exec::Options& machine : kMachines) {
      for (const bool in_pages : {false, true}) {
        CAPTURE(c.d);
        CAPTURE(c.codec);
        CAPTURE(machine.lanes);
        CAPTURE(machine.seed);
        CAPTURE(in_pages);
        check_rerank(c, machine, in_pages);
      }
    }
  }
}

TEST_CASE("rerank: wide keys, capped logits, many heads, more hits than one block sorts") {
  REQUIRE(Traits::kHitTile == 128);
  for (const gpu_exec::Options& machine : {kMachines[0], kMachines[5]}) {
    CAPTURE(machine.lanes);
    check_rerank({256, PKV_CODEC_SCALAR4, PKV_RANK_MEAN}, machine, true);
    check_rerank({320, PKV_CODEC_SCALAR5, PKV_RANK_MEAN}, machine, false);
    check_rerank({576, PKV_CODEC_POLAR4, PKV_RANK_MEAN, 0.0F, 10, 2}, machine, true);
    check_rerank({64, PKV_CODEC_SCALAR4, PKV_RANK_GROUP, 2.5F}, machine, false);
    check_rerank({64, PKV_CODEC_SCALAR4, PKV_RANK_MEAN, 0.0F, 300, 40}, machine, true);
    check_rerank({64, PKV_CODEC_SCALAR4, PKV_RANK_MEAN, 0.0F, 0}, machine, false);
  }
}

// What is not wanted is not written, and changes nothing else.
TEST_CASE("rerank: hits without estimates, scores and samples") {
  const pkv_geometry geometry = geometry_of(64);
  Oracle oracle(geometry, 100);
  Tensor keys = Tensor::random({1, 1, 100, 64}, 3);
  oracle.encode(keys);
  Backend backend;
  const GpuStore gpu(backend, geometry, 1, 100, false);
  const Planes planes(geometry, 100);
  oracle.expect(oracle.table->store_export(oracle.device, nullptr, &geometry, &oracle.store, 0, 0,
                                           100, &planes.records));
  backend.expect(table()->store_import(backend.device(), backend.stream(), &geometry, &gpu.store, 0,
                                       0, 100, &planes.records));
  Tensor queries = Tensor::random({1, 2, 64}, 5);
  const test::Candidates candidates = test::all_candidates(100);
  pkv_rerank_args args = oracle.rerank_args(queries, {100}, candidates, 7);
  args.rank = PKV_RANK_MEAN;
  const Hits expected = oracle.rerank(args);
  args.store = gpu.store;
  std::vector<int32_t> positions(7, -7);
  int32_t count = -7;
  args.positions = positions.data();
  args.counts = &count;
  backend.run(table()->rerank, args);
  CHECK(positions == expected.positions);
  CHECK(count == 7);
}

}  // namespace
}  // namespace pkv::gpu_host
