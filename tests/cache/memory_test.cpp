// Cases of tests/scenarios/scenarios.txt, area memory: what a cache says it holds, and that it
// holds no more as it goes on.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cache/fixture.h"
#include "tests/cache/heap.h"

namespace pkv::cache_model {
namespace {

pkv_cache_usage estimate(const Machine& machine, const Shape& shape,
                         const std::vector<int64_t>& lengths, bool has_queries) {
  const Desc desc(shape);
  const Config config = config_of(shape);
  auto usage = filled<pkv_cache_usage, pkv_cache_usage_init>();
  check(pkv_cache_bytes(machine.device.get(), config.get(), &desc.c, lengths.data(),
                        static_cast<int32_t>(lengths.size()), has_queries ? shape.query_dtype : 0,
                        &usage));
  return usage;
}

void check_sum(const pkv_cache_usage& usage) {
  CHECK(usage.total == usage.row_pages + usage.record_pages + usage.tables + usage.occupancy +
                           usage.codecs + usage.samples + usage.scratch);
}

TEST_CASE("memory: the estimate of bytes equals use") {
  for (const char* backend : {"cpu", "cpu_ref"}) {
    Machine machine(backend);
    for (Shape shape : property_shapes()) {
      CAPTURE(backend);
      CAPTURE(shape.name);
      shape.sequences = 4;
      for (const bool has_queries : {false, true}) {
        CAPTURE(has_queries);
        const std::vector<int64_t> lengths = {0, 3, 70, 900};
        World world(machine, shape);
        for (const int64_t length : lengths) {
          const auto first = static_cast<uint64_t>(1000 * length);
          world.append_all(world.add(), tokens_from(first, length), has_queries);
        }
        const pkv_cache_usage used = world.usage();
        const pkv_cache_usage said = estimate(machine, shape, lengths, has_queries);
        CHECK(said.row_pages == used.row_pages);
        CHECK(said.record_pages == used.record_pages);
        CHECK(said.tables == used.tables);
        CHECK(said.occupancy == used.occupancy);
        CHECK(said.codecs == used.codecs);
        CHECK(said.samples == used.samples);
        CHECK(said.partly == used.partly);
        CHECK(said.scratch == 0);
        check_sum(used);
        check_sum(said);
        CHECK(used.total - used.scratch == said.total);
      }
    }
  }
}

// Records as the canonical form counts them; the backend cpu pads theirs (decision 7).
TEST_CASE("memory: a long sequence holds what the format says, and 2 % more at most") {
  Machine machine("cpu_ref");
  Shape shape;
  shape.options = {{"k", "100"}, {"fit", "keys"}};
  shape.head_dim = shape.value_dim = 128;
  shape.dtype = PKV_DTYPE_BF16;
  shape.capacity = int64_t{1} << 30;
  shape.sink = 128;
  shape.local = shape.interval = shape.page_tokens = 512;
  shape.dense_below = 1024;
  shape.fit_positions = 256;
  const int64_t zone = 128 * 1024, tokens = shape.sink + zone + shape.local;
  const pkv_cache_usage said = estimate(machine, shape, {tokens}, false);
  const double rows = static_cast<double>(tokens) * 2 * (128 + 128) * 2;
  const double records = static_cast<double>(zone) * 2 * (16 + 2 + 48 + 2 + 66.0 / 16);
  const double sums = static_cast<double>(zone) / 512 * 2 * (128 * 8 + 8);
  CHECK(static_cast<double>(said.row_pages) <= 1.02 * rows);
  CHECK(static_cast<double>(said.row_pages) >= rows);
  CHECK(static_cast<double>(said.record_pages) <= 1.02 * (records + sums));
  CHECK(static_cast<double>(said.record_pages) >= records);
  CHECK(static_cast<double>(said.total) <= 1.02 * (rows + records + sums));
}

TEST_CASE(
    "memory: sequences of more than 32K tokens use what was estimated, and 2 % more at most") {
  Machine machine("cpu_ref");
  for (const char* profile : {"default", "paper"}) {
    CAPTURE(profile);
    Shape shape;
    shape.profile = profile;
    shape.options = {{"k", "100"}, {"fit", "keys"}};
    shape.sequences = 2;
    shape.kv_heads = 1;
    shape.query_heads = 1;
    shape.head_dim = shape.value_dim = 128;
    shape.dtype = PKV_DTYPE_BF16;
    shape.capacity = 40000;
    shape.sink = 128;
    shape.local = shape.interval = shape.page_tokens = 512;
    shape.dense_below = 1024;
    World world(machine, shape);
    const std::vector<int64_t> lengths = {33000};
    double rows = 0, records = 0, sums = 0;
    for (const int64_t length : lengths) {
      const int32_t sequence = world.add();
      world.append_all(sequence, tokens_from(static_cast<uint64_t>(100000 * length), length),
                       false);
      const auto zone = static_cast<double>(world.regions(0, sequence).zone);
      CHECK(zone > 32000);
      rows += static_cast<double>(length) * (128 + 128) * 2;
      records += zone * world.stats().bytes_per_key;
      sums += zone / 512 * (128 * 8 + 8);
    }
    const pkv_cache_usage used = world.usage(), said = estimate(machine, shape, lengths, false);
    CHECK(used.total - used.scratch == said.total);
    CHECK(used.partly == said.partly);
    const auto whole = static_cast<double>(used.row_pages + used.record_pages + used.tables);
    CHECK(whole - static_cast<double>(used.partly) <= 1.02 * (rows + records + sums));
    CHECK(whole - static_cast<double>(used.partly) >= rows + records);
  }
}

TEST_CASE("memory: 10,000 retrieves whose results are dropped hold nothing") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "12"}};
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 300));
  Found found;
  check(world.retrieve(0, {{sequence, {5000}}}, found));
  const int64_t total = world.usage().total, allocated = world.stats().allocated_bytes;
  for (uint64_t i = 0; i < 10000; ++i) check(world.retrieve(0, {{sequence, {6000 + i}}}, found));
  CHECK(world.usage().total == total);
  CHECK(world.stats().allocated_bytes == allocated);
}

TEST_CASE("memory: what is reserved is not allocated again") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "12"}};
  shape.refits = 0;
  World world(machine, shape);
  const int32_t a = world.add(), b = world.add();
  check(pkv_cache_reserve(world.cache(), world.stream(), 600, 1200, 4));
  world.append_all(a, tokens_from(1, 100));  // the fit
  world.append_all(b, tokens_from(1000, 100));
  const int64_t allocated = world.stats().allocated_bytes, scratch = world.usage().scratch;
  Attended attended;
  for (uint64_t step = 0; step < 500; ++step) {
    check(world.decode_step(0, {{a, {5000 + step}}, {b, {9000 + step}}}, 0, attended));
  }
  CHECK(world.length(0, a) == 600);
  CHECK(world.stats().allocated_bytes == allocated);
  CHECK(world.usage().scratch == scratch);
}

TEST_CASE("memory: eight rows of a million keys keep to the scratch that was stated") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int64_t kKeys = 50000;
#else
  constexpr int64_t kKeys = 1000000;
#endif
  constexpr int64_t kRows = 8, kDim = 8, kGroup = 4, kHits = 2048, kGuard = 4096;
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "2048"}, {"tail", "drop"}};
  shape.v_source = PKV_V_SOURCE_NONE;
  shape.head_dim = shape.value_dim = kDim;
  const Config config = config_of(shape);
  std::vector<float> keys(static_cast<std::size_t>(kKeys * kDim));
  uint32_t word = 1;
  for (float& key : keys) {
    word = word * 1664525 + 1013904223;
    key = static_cast<float>(word >> 8) * 0x1p-24F - 0.5F;
  }
  const int64_t key_shape[] = {1, kKeys, kDim};
  pkv_tensor tensor{};
  tensor.data = keys.data();
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.ndim = 3;
  tensor.dtype = PKV_DTYPE_F32;
  tensor.shape = key_shape;
  pkv_codec* codec = nullptr;
  check(pkv_codec_fit_sync(machine.device.get(), machine.stream.get(), config.get(), &tensor,
                           nullptr, nullptr, &codec));
  pkv_index* index = nullptr;
  check(pkv_index_create(machine.device.get(), codec, kRows, kKeys, &index));
  for (int32_t row = 0; row < kRows; ++row) {
    check(pkv_index_append(index, machine.stream.get(), row, &tensor, nullptr));
  }
  auto desc = filled<pkv_plan_desc, pkv_plan_desc_init>();
  desc.batch = kRows;
  desc.query_heads = kGroup;
  pkv_plan* plan = nullptr;
  check(pkv_plan_create(index, config.get(), &desc, &plan));
  int64_t stated = 0;
  check(pkv_plan_scratch_bytes(plan, &stated));
  // Votes of all rows at once are all that may grow with rows times keys.
  CHECK(stated <= kRows * kKeys * int64_t{sizeof(float)} + (int64_t{64} << 20));
  std::vector<unsigned char> memory(static_cast<std::size_t>(stated + kGuard + 256), 0xa5);
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256;
  auto* scratch = reinterpret_cast<unsigned char*>(begin);
  std::vector<int32_t> positions(static_cast<std::size_t>(kRows * kHits)), counts(kRows);
  auto hits = filled<pkv_hits, pkv_hits_init>();
  hits.positions = positions.data();
  hits.counts = counts.data();
  const int64_t query_shape[] = {kRows, kGroup, kDim};
  pkv_tensor query = tensor;
  query.shape = query_shape;
  check(pkv_retrieve(plan, machine.stream.get(), &query, scratch, &hits));  // threads start
  const std::size_t before = heap_bytes();
  for (int i = 0; i < 5; ++i) {
    check(pkv_retrieve(plan, machine.stream.get(), &query, scratch, &hits));
    CHECK(heap_bytes() == before);
  }
  CHECK(std::all_of(scratch + stated, scratch + stated + kGuard,
                    [](unsigned char byte) { return byte == 0xa5; }));
  for (const int32_t count : counts) CHECK(count == kHits);
  pkv_plan_destroy(plan);
  pkv_index_destroy(index);
  pkv_codec_destroy(codec);
}

TEST_CASE("memory: what cannot be had is refused with the bytes, and the cache goes on") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "12"}};
  shape.head_dim = shape.value_dim = 576;
  shape.capacity = 2147483647;
  World world(machine, shape);
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 200));
  const pkv_cache_usage before = world.usage();
  check_refused(
      pkv_cache_reserve(world.cache(), world.stream(), shape.capacity, 8 * shape.capacity, 1),
      PKV_RESOURCE_EXHAUSTED, {"host", "bytes=", "max_bytes"});
  CHECK(world.usage().total == before.total);
  check_equals_fresh(world, sequence, tokens_from(1, 200));

  shape.capacity = 4096;
  shape.max_bytes = 1 << 20;
  World limited(machine, shape);
  check_refused(pkv_cache_reserve(limited.cache(), limited.stream(), 4096, 4096, 1),
                PKV_RESOURCE_EXHAUSTED, {"1048576", "max_bytes"});
}

TEST_CASE("memory: forks share pages until they write") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "12"}};
  World world(machine, shape);
  const int32_t parent = world.add();
  world.append_all(parent, tokens_from(1, 1000));
  const pkv_cache_usage alone = world.usage();
  for (int i = 0; i < 5; ++i) world.fork(parent, -1);
  const pkv_cache_usage forked = world.usage();
  CHECK(forked.row_pages == alone.row_pages);
  CHECK(forked.record_pages == alone.record_pages);
  CHECK(world.stats().tokens == 6000);
  world.append_all(1, {7000});
  // The sink is full, so one page of rows is written to: the last.
  CHECK(world.usage().row_pages > alone.row_pages);
  CHECK(world.usage().row_pages <= alone.row_pages + 64 * 2 * (32 + 32) * 4 + 256);
}

}  // namespace
}  // namespace pkv::cache_model
