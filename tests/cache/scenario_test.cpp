// Cases of tests/scenarios/scenarios.txt, area cache: sequences that grow, shrink, part and go.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

Shape scenario_shape() {
  Shape shape;
  shape.options = {{"k", "16"}};
  shape.sink = 4;
  shape.local = 64;
  shape.interval = 128;
  shape.dense_below = 128;
  shape.page_tokens = 256;
  return shape;
}

TEST_CASE("cache: a token decoded long ago is found, in every step of a long decode") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "100"}};
  shape.head_dim = shape.value_dim = 64;
  shape.kv_heads = 1;
  shape.query_heads = 2;
  shape.sink = 128;
  shape.local = 512;
  shape.interval = 512;
  shape.dense_below = 1024;
  shape.page_tokens = 512;
  shape.capacity = 20600;
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 600));
  int64_t planted = -1;
  Attended attended;
  for (uint64_t step = 0; step < 20000; ++step) {
    const uint64_t token = step == 900 ? 77 | kPlanted : 100000 + step;
    if (step == 900) planted = world.length(0, sequence);
    if (step != 19000) {
      check(world.decode_step(0, {{sequence, {token}}}, 0, attended));
      continue;
    }
    check(world.decode_step(0, {{sequence, {77 | kAimed}}}, 0, attended));
    const auto& hits = attended.found.positions;
    CHECK(std::find(hits.begin(), hits.end(), planted - shape.sink) != hits.end());
  }
  const pkv_cache_regions regions = world.regions(0, sequence);
  CHECK(regions.zone == 19456);  // 512 * floor((20600 - 128 - 512) / 512)
  // Whole pages: no more than one that is partly filled, of rows and of records.
  const pkv_cache_usage usage = world.usage();
  CHECK(usage.row_pages < (20600 + 1024) * (64 + 64) * 4);
  CHECK(static_cast<double>(usage.record_pages) <
        (19456 + 512) * 1.35 * world.stats().bytes_per_key);
}

TEST_CASE("cache: truncated over every region border and appended to again equals a fresh one") {
  Machine machine("cpu");
  World world(machine, scenario_shape());
  const int32_t sequence = world.add();
  const std::vector<uint64_t> tokens = tokens_from(1, 1000);
  for (const int64_t left : {995, 930, 870, 800, 68, 4, 3, 0}) {
    CAPTURE(left);
    world.reset(sequence);
    world.append_all(sequence, tokens);
    world.truncate(sequence, left);
    const std::vector<uint64_t> kept(tokens.begin(), tokens.begin() + left);
    check_equals_fresh(world, sequence, kept);
    const std::vector<uint64_t> others = tokens_from(3000, 50);
    world.append_all(sequence, others);
    check_equals_fresh(world, sequence, joined(kept, others));
  }
}

TEST_CASE("cache: wrong tokens taken back leave nothing behind") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  shape.profile = "paper";  // with counts per pattern
  for (const bool is_paper : {false, true}) {
    if (!is_paper) shape.profile = "default";
    World went_wrong(machine, shape), never(machine, shape);
    const int32_t sequence = went_wrong.add();
    REQUIRE(never.add() == sequence);
    went_wrong.append_all(sequence, tokens_from(1, 700));
    went_wrong.append_all(sequence, tokens_from(5000, 300));
    went_wrong.truncate(sequence, 700);
    went_wrong.append_all(sequence, tokens_from(8000, 300));
    never.append_all(sequence, tokens_from(1, 700));
    never.append_all(sequence, tokens_from(8000, 300));
    check_same(went_wrong, sequence, never, sequence);
    CHECK(went_wrong.stats().tokens == never.stats().tokens);
    CHECK(went_wrong.stats().bad_keys == never.stats().bad_keys);
    CHECK(went_wrong.usage().row_pages == never.usage().row_pages);
    CHECK(went_wrong.usage().record_pages == never.usage().record_pages);
    CHECK(went_wrong.usage().codecs == never.usage().codecs);
    CHECK(went_wrong.usage().samples == never.usage().samples);
    shape.profile = "default";
  }
}

TEST_CASE("cache: a truncation encodes and copies nothing, however long the sequence is") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  shape.capacity = 1 << 20;
  for (const int64_t tokens : {1024, 32768}) {
    CAPTURE(tokens);
    World world(machine, shape);
    const int32_t sequence = world.add();
    world.append_all(sequence, tokens_from(1, tokens));
    const pkv_cache_stats before = world.stats();
    const pkv_cache_usage used = world.usage();
    world.truncate(sequence, tokens - 3);
    CHECK(world.stats().encoded == before.encoded);
    CHECK(world.stats().fits == before.fits);
    CHECK(world.stats().allocated_bytes == before.allocated_bytes);
    CHECK(world.usage().scratch == used.scratch);
  }
}

TEST_CASE("cache: a removed sequence leaves the others at their own positions") {
  Machine machine("cpu");
  World world(machine, scenario_shape());
  Parts parts;
  for (const int64_t tokens : {100, 90, 80, 70}) {
    parts.push_back({world.add(), tokens_from(static_cast<uint64_t>(1000 * tokens), tokens)});
  }
  check(world.append(0, parts));
  world.remove(parts[0].sequence);
  Parts more;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    more.push_back({parts[i].sequence, tokens_from(500000 + 100 * i, 10)});
  }
  check(world.append(0, more));
  for (std::size_t i = 1; i < parts.size(); ++i) {
    CHECK(world.length(0, parts[i].sequence) == 110 - 10 * static_cast<int64_t>(i));
    check_equals_fresh(world, parts[i].sequence, joined(parts[i].tokens, more[i - 1].tokens));
  }
}

TEST_CASE("cache: forks at, before and behind a page's end") {
  Machine machine("cpu");
  for (const int64_t sink : {0, 4}) {
    Shape shape = scenario_shape();
    shape.sink = sink;
    for (const int64_t prefix : {255 + sink, 256 + sink, 257 + sink}) {
      CAPTURE(prefix);
      World world(machine, shape);
      const int32_t parent = world.add();
      const std::vector<uint64_t> tokens = tokens_from(1, prefix);
      world.append_all(parent, tokens);
      const int32_t child = world.fork(parent, -1);
      CHECK(world.stats().shared_pages > 0);
      world.append_all(parent, tokens_from(2000, 3));
      world.append_all(child, tokens_from(3000, 3));
      check_equals_fresh(world, parent, joined(tokens, tokens_from(2000, 3)));
      check_equals_fresh(world, child, joined(tokens, tokens_from(3000, 3)));
    }
  }
}

TEST_CASE("cache: a fork that goes while it is appended to leaves its relatives alone") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  World world(machine, shape);
  const int32_t a = world.add();
  const std::vector<uint64_t> tokens = tokens_from(1, 500);
  world.append_all(a, tokens);
  for (int round = 0; round < 20; ++round) {
    const int32_t b = world.fork(a, -1);
    const int32_t c = world.fork(a, 300);
    std::atomic<pkv_status> status = PKV_OK;
    std::thread appending([&] {
      for (uint64_t i = 0; i < 10 && status == PKV_OK; ++i) {
        status = world.append(0, {{b, tokens_from(10000 + 100 * i, 40)}});
      }
    });
    world.remove(b);
    appending.join();
    const bool is_clean = status == PKV_OK || status == PKV_FAILED_PRECONDITION;
    CHECK(is_clean);
    const int32_t again = world.fork(c, -1);  // where b was
    CHECK(again == b);
    check_equals_fresh(world, a, tokens);
    check_equals_fresh(world, c, tokens_from(1, 300));
    check_equals_fresh(world, again, tokens_from(1, 300));
    world.remove(again);
    world.remove(c);
  }
}

TEST_CASE("cache: a fork at a point inside the zone equals a fresh sequence of that length") {
  Machine machine("cpu");
  World world(machine, scenario_shape());
  const int32_t parent = world.add();
  world.append_all(parent, tokens_from(1, 1000));
  const int32_t child = world.fork(parent, 500);
  check_equals_fresh(world, child, tokens_from(1, 500));
  check_equals_fresh(world, parent, tokens_from(1, 1000));
  int32_t none = 7;
  check_refused(pkv_cache_fork(world.cache(), world.stream(), parent, 1001, &none),
                PKV_OUT_OF_RANGE, {"1001", "1000"});
}

TEST_CASE("cache: at once, one by one and in three pieces are the same") {
  for (const char* backend : backends()) {
    Machine machine(backend);
    for (const int64_t piece : {1, 500}) {
      World world(machine, scenario_shape());
      const int32_t sequence = world.add();
      for (int64_t at = 0; at < 1500; at += piece) {
        world.append_all(sequence, tokens_from(static_cast<uint64_t>(1 + at), piece));
      }
      check_equals_fresh(world, sequence, tokens_from(1, 1500));
    }
  }
}

TEST_CASE("cache: layer by layer, each step sees the newest token in every layer") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  shape.layers = 2;
  World world(machine, shape);
  Naive naive(shape);
  const int32_t sequence = world.add();
  naive.add();
  world.append_all(sequence, tokens_from(1, 1000));
  naive.append_all(sequence, tokens_from(1, 1000));
  for (uint64_t step = 0; step < 5; ++step) {
    const Parts parts = {{sequence, {5000 + step}}};
    for (int32_t layer = 0; layer < 2; ++layer) {
      Attended attended;
      check(world.decode_step(layer, parts, 0, attended));
      naive.append(layer, sequence, parts[0].tokens);
      CHECK_NOTHROW(judge_step(world, naive, layer, parts, 0, attended));
      CHECK_NOTHROW(judge_rows(world, naive, layer, sequence, 995 + static_cast<int64_t>(step), 6));
    }
  }
}

TEST_CASE("cache: with rows in host memory and on the device every step gives the same") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "100"}};
  shape.layers = 2;
  shape.capacity = 4096;
  shape.local = shape.interval = 128;
  Shape on_device = shape;
  on_device.rows_memory = PKV_ALLOC_DEVICE;
  World offloaded(machine, shape);
  World resident(machine, on_device);
  const int32_t a = offloaded.add();
  const int32_t b = resident.add();
  const int64_t steps = std::getenv("PKV_CACHE_PLUGIN") == nullptr ? 300 : 10;
  offloaded.append_all(a, tokens_from(1, 3000 - steps));
  resident.append_all(b, tokens_from(1, 3000 - steps));
  for (int64_t step = 0; step < steps; ++step) {
    const uint64_t token = 50000 + static_cast<uint64_t>(step);
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      Attended from_host, from_device;
      check(offloaded.decode_step(layer, {{a, {token}}}, 0, from_host));
      check(resident.decode_step(layer, {{b, {token}}}, 0, from_device));
      from_host.found.stamp = from_device.found.stamp = 0;
      REQUIRE(from_host.found == from_device.found);
      REQUIRE(same_bits(from_host.output, from_device.output));
      REQUIRE(same_bits(from_host.lse, from_device.lse));
    }
  }
  check_same(offloaded, a, resident, b);
}

TEST_CASE("cache: past the capacity need and room are named, and room can be made") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  shape.capacity = 1000;
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 990));
  check_refused(world.append(0, {{sequence, tokens_from(2000, 50)}}), PKV_RESOURCE_EXHAUSTED,
                {"50", "10"});
  check_equals_fresh(world, sequence, tokens_from(1, 990));
  world.append_all(sequence, tokens_from(2000, 10));
  check_refused(world.append(0, {{sequence, {3000}}}), PKV_RESOURCE_EXHAUSTED, {"1"});
  world.truncate(sequence, 960);
  world.append_all(sequence, tokens_from(4000, 40));
  check_equals_fresh(world, sequence, joined(tokens_from(1, 960), tokens_from(4000, 40)));
}

TEST_CASE("cache: without room for pages an append is refused and nothing has changed") {
  Machine machine("cpu");
  Shape shape = scenario_shape();
  shape.max_bytes = 600000;
  World world(machine, shape);
  const int32_t a = world.add(), b = world.add();
  world.append_all(a, tokens_from(1, 300));
  check_refused(world.append(0, {{a, tokens_from(5000, 10)}, {b, tokens_from(6000, 2000)}}),
                PKV_RESOURCE_EXHAUSTED, {"600000"});
  CHECK(world.length(0, b) == 0);
  check_equals_fresh(world, a, tokens_from(1, 300));
  world.append_all(b, tokens_from(7000, 100));
  check_equals_fresh(world, b, tokens_from(7000, 100));
}

TEST_CASE("cache: a sequence is refused by number outside, after removal, and twice in a batch") {
  Machine machine("cpu");
  World world(machine, scenario_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 100));
  const int32_t gone = world.add();
  world.remove(gone);
  int64_t length = 0;
  int32_t slot = 0;
  check_refused(pkv_cache_length(world.cache(), 0, 8, &length), PKV_OUT_OF_RANGE, {"8", "7"});
  check_refused(pkv_cache_length(world.cache(), 1, sequence, &length), PKV_OUT_OF_RANGE, {"1"});
  check_refused(pkv_cache_length(world.cache(), 0, gone, &length), PKV_FAILED_PRECONDITION, {"1"});
  check_refused(pkv_cache_truncate(world.cache(), world.stream(), gone, 0), PKV_FAILED_PRECONDITION,
                {"1"});
  check_refused(pkv_cache_remove(world.cache(), world.stream(), gone), PKV_FAILED_PRECONDITION,
                {"1"});
  check_refused(pkv_cache_fork(world.cache(), world.stream(), gone, -1, &slot),
                PKV_FAILED_PRECONDITION, {"1"});
  check_refused(world.append(0, {{sequence, {1}}, {sequence, {2}}}), PKV_INVALID_ARGUMENT, {"0"});
  check_refused(world.append(0, {{sequence, {1}}, {gone, {2}}}), PKV_FAILED_PRECONDITION, {"1"});
  Attended attended;
  check_refused(world.attend(0, {{sequence, tokens_from(1, 66)}}, 0, attended),
                PKV_INVALID_ARGUMENT, {"66", "65"});
  check_refused(world.attend(0, {{sequence, tokens_from(1, 101)}}, PKV_CACHE_EXACT, attended),
                PKV_OUT_OF_RANGE, {"101", "100"});
  check_equals_fresh(world, sequence, tokens_from(1, 100));
}

TEST_CASE("cache: hits of a layer that has changed since are stale") {
  Machine machine("cpu");
  World world(machine, scenario_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 600));
  const Parts parts = {{sequence, {5000}}};
  Found found;
  check(world.retrieve(0, parts, found));
  Tensor keys(PKV_DTYPE_F32, {0}), values(PKV_DTYPE_F32, {0});
  check(world.fetch(0, parts, found, keys, values));
  world.append_all(sequence, tokens_from(7000, 100));
  check_refused(world.fetch(0, parts, found, keys, values), PKV_FAILED_PRECONDITION, {});
  check(world.retrieve(0, parts, found));
  check(world.fetch(0, parts, found, keys, values));
  found.positions[3] = 512 + 128;
  check_refused(world.fetch(0, parts, found, keys, values), PKV_OUT_OF_RANGE, {"640"});
}

}  // namespace
}  // namespace pkv::cache_model
