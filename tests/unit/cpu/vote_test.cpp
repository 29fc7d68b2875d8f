// Stages vote and select of backend cpu, bit for bit those of cpu_ref. docs/algorithm.md, sections
// 4 and 5.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/format/candidates.h"
#include "tests/unit/cpu/twin.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::host_sets;
using test::kInf;
using test::kNan;
using test::Random;
using test::Tensor;
using test::Twin;
using test::View;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return a.size() == b.size();
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Votes of both backends, [b * h, stride]; entries behind a row's length are -7.
struct Votes {
  std::vector<float> ref;
  std::vector<float> cpu;
};

Votes votes_of(Twin& twin, const pkv_tensor& queries, const std::vector<int64_t>& lengths,
               int32_t vote_group, int32_t rho_of = PKV_RHO_OF_KEYS) {
  pkv_vote_args args = {};
  args.struct_size = sizeof args;
  args.queries = queries;
  args.query_heads = static_cast<int32_t>(queries.shape[1]);
  args.vote_group = vote_group;
  args.rho_of = rho_of;
  args.codec = twin.ref.codec();
  args.batch = twin.ref.batch_of(lengths);
  args.occupancy = twin.ref.geometry.vote == PKV_VOTE_TIER ? twin.ref.occupancy.data() : nullptr;
  args.votes_stride = args.batch.max_length + 3;
  const size_t size =
      lengths.size() * static_cast<size_t>(twin.ref.geometry.kv_heads * args.votes_stride);
  Votes votes = {std::vector<float>(size, -7.0F), std::vector<float>(size, -7.0F)};
  args.store = twin.ref.store;
  args.votes = votes.ref.data();
  twin.ref.run(twin.ref.table->vote, args);
  args.store = twin.store;
  args.votes = votes.cpu.data();
  twin.run(twin.cpu->vote, args);
  return votes;
}

void fill_keys(Twin& twin, int64_t n, uint32_t seed) {
  const pkv_geometry& g = twin.ref.geometry;
  Tensor keys = Tensor::random({1, g.kv_heads, n, g.head_dim}, seed);
  if (n > 5) {
    std::fill_n(keys.row(0, 0, 2), g.head_dim, 0.0F);           // a zero key
    keys.row(0, g.kv_heads - 1, n - 1)[g.head_dim - 1] = kNan;  // a bad one
    keys.row(0, 0, 4)[0] = kInf;
    std::copy_n(keys.row(0, 0, 1), g.head_dim, keys.row(0, 0, 5));  // a tie
  }
  twin.ref.encode(keys);
  twin.copy_records(n);
}

TEST_CASE("vote: the bits of cpu_ref, for every d, n, group and instruction set") {
  struct Shape {
    int32_t d, group;
    int64_t n;
  };
  const Shape shapes[] = {{8, 1, 0},      {8, 2, 1},     {16, 1, 15},  {24, 3, 16},   {32, 1, 17},
                          {40, 2, 63},    {64, 4, 64},   {72, 1, 65},  {128, 4, 255}, {128, 1, 256},
                          {136, 5, 257},  {192, 7, 100}, {256, 2, 65}, {264, 1, 66},  {576, 2, 130},
                          {128, 128, 70}, {128, 4, 4097}};
  for (const int32_t vote : {PKV_VOTE_GRADED, PKV_VOTE_TIER}) {
    for (const Shape& shape : shapes) {
      pkv_geometry g = geometry_of(shape.d, 0, PKV_CODEC_SCALAR4, vote, 2);
      Twin twin(g, shape.n + 5);
      fill_keys(twin, shape.n, static_cast<uint32_t>(shape.d + shape.n));
      Tensor queries = Tensor::random({1, 2 * shape.group, shape.d}, 9);
      View view(queries, PKV_DTYPE_BF16, 5);
      for (const std::string& isa : host_sets()) {
        twin.set("isa", isa);
        CAPTURE(vote);
        CAPTURE(shape.d);
        CAPTURE(shape.n);
        CAPTURE(isa);
        const Votes sum = votes_of(twin, view.tensor(), {shape.n}, PKV_VOTE_GROUP_SUM);
        CHECK(same_bits(sum.ref, sum.cpu));
        if (vote == PKV_VOTE_TIER) {
          const Votes other =
              votes_of(twin, view.tensor(), {shape.n}, PKV_VOTE_GROUP_SUM, PKV_RHO_OF_CENTROIDS);
          CHECK(same_bits(other.ref, other.cpu));
        } else {
          const Votes heads = votes_of(twin, view.tensor(), {shape.n}, PKV_VOTE_GROUP_HEADS);
          CHECK(same_bits(heads.ref, heads.cpu));
        }
      }
    }
  }
}

TEST_CASE("vote: a query of zeros, a bad one and a huge one") {
  Twin twin(geometry_of(64, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 1), 200);
  fill_keys(twin, 200, 3);
  Tensor queries({1, 1, 64});
  for (const float x : {0.0F, kNan, kInf, 1e18F, 1e-30F}) {
    std::fill_n(queries.row(0, 0), 64, x);
    const Votes votes = votes_of(twin, queries.view(), {200}, PKV_VOTE_GROUP_SUM);
    CAPTURE(x);
    CHECK(same_bits(votes.ref, votes.cpu));
  }
}

// ---- select ------------------------------------------------------------------------------------

void check_select(Twin& twin, const std::vector<float>& votes, const pkv_candidate_rule& rule) {
  const auto n = static_cast<int64_t>(votes.size());
  pkv_select_args args = {};
  args.struct_size = sizeof args;
  args.kv_heads = 1;
  args.batch = twin.ref.batch_of({n});
  args.rule = rule;
  args.votes = votes.data();
  args.votes_stride = n;
  args.candidates_stride = format::candidate_count(rule, n) + 3;
  const auto size = static_cast<size_t>(args.candidates_stride);
  std::vector<int32_t> expected(size, -9);
  std::vector<int32_t> found(size, -8);
  int32_t expected_count = -9;
  int32_t found_count = -8;
  args.candidates = expected.data();
  args.candidate_counts = &expected_count;
  twin.ref.run(twin.ref.table->select, args);
  args.candidates = found.data();
  args.candidate_counts = &found_count;
  twin.run(twin.cpu->select, args);
  CHECK(expected_count == found_count);
  CHECK(expected == found);
}

TEST_CASE("select: the candidates of cpu_ref, whatever the votes") {
  Twin twin(geometry_of(8), 1);
  const auto fill = [](int64_t n, auto vote_of) {
    std::vector<float> votes;
    for (int64_t i = 0; i < n; ++i) votes.push_back(vote_of(i));
    return votes;
  };
  Random random(5);
  for (const int64_t n : {0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 4097, 20000, 70001}) {
    const std::vector<std::vector<float>> lists = {
        fill(n, [&](int64_t) { return random.bell(); }),
        fill(n, [&](int64_t) { return random.bell() * 1e38F; }),
        fill(n, [](int64_t) { return 0.0F; }),
        fill(n, [](int64_t i) { return i % 2 == 0 ? -0.0F : 0.0F; }),
        fill(n, [&](int64_t) { return static_cast<float>(random.bits() % 7); }),
        fill(n, [](int64_t i) { return static_cast<float>(i); }),
        fill(n, [](int64_t i) { return -static_cast<float>(i); }),
        fill(n, [](int64_t) { return kNan; }),
        fill(n, [&](int64_t i) { return i % 3 != 0 ? kNan : random.uniform(); }),
        fill(n, [&](int64_t i) { return i % 3 != 0 ? -kInf : random.uniform(); }),
        fill(n, [&](int64_t i) { return i % 5 != 0 ? kInf : random.uniform(); }),
        fill(n, [&](int64_t i) { return i == 7 ? 3e38F : random.uniform() * 1e-30F; }),
        // The best are where the sample does not look, or all in one place.
        fill(n, [&](int64_t i) { return i % 1000 == 999 ? 100.0F + random.uniform() : 0.1F; }),
        fill(n, [&](int64_t i) { return i < n / 40 ? 5.0F : random.uniform(); }),
        fill(n, [&](int64_t i) { return i > n - n / 40 ? 5.0F : random.uniform(); }),
    };
    for (size_t list = 0; list < lists.size(); ++list) {
      for (const int64_t ppm : {0, 1, 10000, 50000, 500000, 1000000}) {
        for (const int32_t k : {0, 1, 100}) {
          CAPTURE(n);
          CAPTURE(list);
          CAPTURE(ppm);
          CAPTURE(k);
          check_select(twin, lists[list], format::candidate_rule(ppm, k));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pkv
