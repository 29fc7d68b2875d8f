// Store and vote of the GPU kernels against cpu_ref, in pages and with a codec set per entry.
// docs/algorithm.md, sections 3 and 4: exact.
#include <bit>
#include <vector>

#include "backends/gpu/layout.h"
#include "doctest/doctest.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_store.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {
namespace {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

constexpr int32_t kSequences = 2;
constexpr int64_t kTokens = 200;  // three pages of 64 and a part of one

// The reference's records of all rows, into the store.
void copy_records(Oracle& oracle, Backend& backend, const pkv_store& store) {
  const int64_t rows = int64_t{kSequences} * oracle.geometry.kv_heads;
  for (int64_t row = 0; row < rows; ++row) {
    const Planes planes(oracle.geometry, kTokens);
    oracle.expect(oracle.table->store_export(oracle.device, nullptr, &oracle.geometry,
                                             &oracle.store, row, 0, kTokens, &planes.records));
    backend.expect(table()->store_import(backend.device(), backend.stream(), &oracle.geometry,
                                         &store, row, 0, kTokens, &planes.records));
  }
}

void fill(Oracle& oracle, uint32_t seed) {
  const pkv_geometry& g = oracle.geometry;
  Tensor keys = Tensor::random({kSequences, g.kv_heads, kTokens, g.head_dim}, seed);
  keys.row(1, 0, 70)[3] = test::kNan;
  if (g.value_dim == 0) {
    oracle.encode(keys);
    return;
  }
  Tensor values = Tensor::random({kSequences, g.kv_heads, kTokens, g.value_dim}, seed + 1);
  oracle.encode(keys, values);
}

TEST_CASE("store: pages give back the records that went in") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const bool in_pages : {false, true}) {
      pkv_geometry geometry =
          test::with_sketch(geometry_of(72, 40, codec, PKV_VOTE_GRADED, 2), 4, 16);
      geometry.value_norm = 1;
      Oracle oracle(geometry, kTokens, kSequences);
      fill(oracle, 5);
      Backend backend;
      const GpuStore gpu(backend, geometry, kSequences, kTokens, in_pages);
      copy_records(oracle, backend, gpu.store);
      for (int64_t row = 0; row < 2 * kSequences; ++row) {
        const Planes expected(geometry, kTokens);
        const Planes found(geometry, kTokens);
        oracle.expect(oracle.table->store_export(oracle.device, nullptr, &geometry, &oracle.store,
                                                 row, 0, kTokens, &expected.records));
        backend.expect(table()->store_export(backend.device(), backend.stream(), &geometry,
                                             &gpu.store, row, 0, kTokens, &found.records));
        CHECK(found == expected);
      }
    }
  }
}

struct VoteCase {
  int32_t d;
  int32_t vote;
  int32_t vote_group;
};

// Votes of three entries, one sequence twice, of both backends.
void check_votes(const VoteCase& c, const gpu_exec::Options& machine, bool in_pages) {
  const pkv_geometry geometry = geometry_of(c.d, 0, PKV_CODEC_SCALAR4, c.vote, 2);
  Oracle oracle(geometry, kTokens, kSequences);
  fill(oracle, 11);
  Backend backend(machine);
  const GpuStore gpu(backend, geometry, kSequences, kTokens, in_pages);
  copy_records(oracle, backend, gpu.store);

  // A second set: other balances.
  const std::vector<int32_t> set_of = {1, 0, 1};
  const size_t of_set = oracle.balance.size();
  for (size_t j = 0; j < of_set; ++j) {
    oracle.center.push_back(0.25F);
    oracle.balance.push_back(0.5F + static_cast<float>(j % 7));
  }
  Tensor queries = Tensor::random({3, 6, c.d}, 23);
  const std::vector<int32_t> sequences = {1, 0, 1};
  const std::vector<int64_t> lengths = {kTokens, 129, 64};
  pkv_vote_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = 6;
  args.vote_group = c.vote_group;
  args.rho_of = PKV_RHO_OF_KEYS;
  args.codec = oracle.codec();
  args.codec.set_of = set_of.data();
  args.batch.batch = 3;
  args.batch.sequences = sequences.data();
  args.batch.lengths = lengths.data();
  args.batch.max_length = kTokens;
  args.queries = queries.view();
  args.occupancy = c.vote == PKV_VOTE_TIER ? oracle.occupancy.data() : nullptr;
  args.votes_stride = kTokens + 3;
  std::vector<float> expected(static_cast<size_t>(6 * args.votes_stride), -7.0F);
  std::vector<float> found = expected;
  args.store = oracle.store;
  args.votes = expected.data();
  oracle.run(oracle.table->vote, args);
  args.store = gpu.store;
  args.votes = found.data();
  backend.run(table()->vote, args);
  for (size_t i = 0; i < found.size(); ++i) {
    const bool both_nan = found[i] != found[i] && expected[i] != expected[i];
    CAPTURE(i);
    REQUIRE(
        (both_nan || std::bit_cast<uint32_t>(found[i]) == std::bit_cast<uint32_t>(expected[i])));
  }
}

TEST_CASE("vote: the bits of cpu_ref, in one piece and in pages, with a codec set per entry") {
  for (const VoteCase& c : {VoteCase{128, PKV_VOTE_GRADED, PKV_VOTE_GROUP_SUM},
                            VoteCase{24, PKV_VOTE_GRADED, PKV_VOTE_GROUP_HEADS},
                            VoteCase{72, PKV_VOTE_TIER, PKV_VOTE_GROUP_SUM}}) {
    for (const gpu_exec::Options& machine : kMachines) {
      for (const bool in_pages : {false, true}) {
        CAPTURE(c.d);
        CAPTURE(machine.lanes);
        CAPTURE(machine.seed);
        CAPTURE(in_pages);
        check_votes(c, machine, in_pages);
      }
    }
  }
}

TEST_CASE("device: options and streams of gpu-host") {
  Backend backend;
  CHECK(table()->device_set(backend.device(), "lanes", "48") == PKV_INVALID_ARGUMENT);
  CHECK(backend.reported() == "lanes=48: must be 32 or 64");
  CHECK(table()->device_set(backend.device(), "seed", "x") == PKV_INVALID_ARGUMENT);
  CHECK(table()->device_set(backend.device(), "threads", "2") == PKV_INVALID_ARGUMENT);
  CHECK(backend.reported() == "device option threads: gpu-host has lanes, seed, streams and graph");
  pkv_backend_stream* stream = nullptr;
  CHECK(table()->stream_wrap(backend.device(), 5, &stream) == PKV_INVALID_ARGUMENT);
  CHECK(table()->score == 0);
}

}  // namespace
}  // namespace pkv::gpu_host
