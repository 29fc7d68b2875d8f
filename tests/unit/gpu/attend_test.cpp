// Fetch, attend and step of the GPU kernels: parts and rows in pages, two codec sets, a sequence
// named twice, soft cap and sinks. Attend against cpu_ref (docs/numerics.md, section 3), the step
// against the stages bit by bit. docs/algorithm.md, sections 7 and 8.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backends/gpu/stages.h"
#include "doctest/doctest.h"
#include "tests/unit/gpu/attend_world.h"

namespace pkv::gpu_host {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return a.size() == b.size();
  return std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

void check_near(AttendWorld& world, const StepOutputs& expected, const StepOutputs& found) {
  const double m = (1024 + 8) * kU;
  const double eps = world.logit_bound();
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    CAPTURE(i);
    const auto a = static_cast<double>(expected.lse[i]);
    const auto b = static_cast<double>(found.lse[i]);
    if (!std::isfinite(a)) {
      REQUIRE(a == b);
    } else {
      REQUIRE(std::fabs(a - b) <= eps + m + std::fabs(a) * kU);
    }
  }
  const double bound = (2.0 * (eps + m) + 8.0 * (eps + m)) * world.value_bound();  // with l
  for (size_t i = 0; i < expected.output.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::fabs(static_cast<double>(expected.output[i]) -
                      static_cast<double>(found.output[i])) <= bound);
  }
}

void check(const AttendCase& c, const gpu_exec::Options& machine, bool in_pages) {
  AttendWorld world(c, machine, in_pages);
  const auto on_ref = [&](const auto& slots, const auto& stage) { world.oracle.run(slots, stage); };
  const auto on_gpu = [&](const auto& slots, const auto& stage) {
    world.backend.run(slots, stage);
  };

  StepOutputs expected;
  pkv_step_args a = world.args(world.oracle.store, expected);
  world.retrieve(a, *world.oracle.table, on_ref);
  world.attend(a, *world.oracle.table, on_ref);

  StepOutputs of_hits = expected;  // attend alone, with the reference's hits
  std::fill(of_hits.output.begin(), of_hits.output.end(), -7.0F);
  std::fill(of_hits.lse.begin(), of_hits.lse.end(), -7.0F);
  a = world.args(world.store.store, of_hits);
  world.attend(a, *table(), on_gpu);
  if (c.k > 0) CHECK(world.has_rows_of(of_hits));
  check_near(world, expected, of_hits);

  StepOutputs stages;
  a = world.args(world.store.store, stages);
  world.retrieve(a, *table(), on_gpu);
  world.attend(a, *table(), on_gpu);
  StepOutputs whole;
  a = world.args(world.store.store, whole);
  on_gpu(step_slots(), a);
  CHECK(whole.candidates == stages.candidates);
  CHECK(whole.positions == stages.positions);
  CHECK(whole.counts == stages.counts);
  CHECK(same_bits(whole.scores, stages.scores));
  CHECK(same_bits(whole.rest_lse, stages.rest_lse));
  CHECK(same_bits(whole.output, stages.output));
  CHECK(same_bits(whole.lse, stages.lse));
}

TEST_CASE("attend, step: as cpu_ref and as the stages, in pages, with caps, sinks and sets") {
  const AttendCase cases[] = {
      {},
      {.d = 64, .dv = 64, .group = 1, .tail = PKV_TAIL_MEAN},
      {.d = 64, .dv = 24, .group = 9, .tail = PKV_TAIL_SKETCH, .bits = 2, .stride = 1},
      {.d = 128, .dv = 128, .group = 4, .tail = PKV_TAIL_SKETCH, .stride = 1, .samples = 400},
      {.d = 136, .dv = 200, .group = 5, .tail = PKV_TAIL_DROP},
      {.d = 576, .dv = 512, .group = 3, .k = 9},
      {.d = 64, .dv = 64, .group = 2, .tail = PKV_TAIL_SAMPLED, .k = 0},
  };
  for (const AttendCase& c : cases) {
    for (const gpu_exec::Options& machine : {gpu_exec::Options{32, 0}, {64, 5}}) {
      for (const bool in_pages : {false, true}) {
        CAPTURE(c.d);
        CAPTURE(c.group);
        CAPTURE(c.tail);
        CAPTURE(machine.lanes);
        CAPTURE(in_pages);
        check(c, machine, in_pages);
      }
    }
  }
}

TEST_CASE("fetch: odd widths and addresses, zeros for -1, nothing beside the rows") {
  Backend backend;
  for (const int64_t width : {1, 3, 16, 40}) {
    for (const int64_t gap : {0, 1, 16}) {
      std::vector<uint8_t> source(static_cast<size_t>(5 * (width + gap) + 1));
      for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 37 + 1);
      std::vector<uint8_t> target(static_cast<size_t>(4 * (width + gap) + 1), 0xEE);
      const int64_t shape[] = {1, 1, 5, width};
      const int64_t target_shape[] = {1, 1, 4, width};
      const int64_t strides[] = {1, 1, width + gap, 1};
      const int32_t positions[] = {4, -1, 0, 4};
      const int32_t sequences[] = {0};
      const int64_t lengths[] = {5};
      pkv_fetch_args args = {};
      args.struct_size = sizeof args;
      args.kv_heads = 1;
      args.batch.batch = 1;
      args.batch.sequences = sequences;
      args.batch.lengths = lengths;
      args.positions = positions;
      args.k = 4;
      args.source_keys.data = source.data();
      args.source_keys.byte_offset = 1;
      args.source_keys.ndim = 4;
      args.source_keys.dtype = PKV_DTYPE_U8;
      args.source_keys.shape = shape;
      args.source_keys.strides = strides;
      args.keys = args.source_keys;
      args.keys.data = target.data();
      args.keys.shape = target_shape;
      backend.run(table()->fetch, args);
      for (int64_t at = 0; at < static_cast<int64_t>(target.size()); ++at) {
        const int64_t slot = (at - 1) / (width + gap);
        const int64_t j = (at - 1) % (width + gap);
        uint8_t expected = 0xEE;
        if (at > 0 && j < width) {
          expected = positions[slot] < 0
                         ? uint8_t{0}
                         : source[static_cast<size_t>(1 + positions[slot] * (width + gap) + j)];
        }
        REQUIRE(target[static_cast<size_t>(at)] == expected);
      }
    }
  }
}

}  // namespace
}  // namespace pkv::gpu_host
