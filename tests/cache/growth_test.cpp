// A cache that serves for days: sequences come, fork, are cut back and go, and nothing grows.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/cache/fixture.h"
#include "tests/cache/heap.h"

namespace pkv::cache_model {
namespace {

TEST_CASE("memory: 10^5 steps of a rolling workload hold no more than the first twentieth") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kSteps = 10000;
#else
  constexpr uint64_t kSteps = 100000;
#endif
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "4"}};
  shape.sequences = 6;
  shape.kv_heads = shape.query_heads = 1;
  shape.head_dim = shape.value_dim = 8;
  World world(machine, shape);
  std::vector<int32_t> live;
  int64_t most_allocated = 0, most_total = 0;
  std::size_t most_heap = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    // Every 50 steps one comes and the oldest goes; every fourth is a fork.
    if (step % 50 == 0) {
      if (live.size() == 3) {
        world.remove(live.front());
        live.erase(live.begin());
      }
      if (step % 200 == 150) {
        live.push_back(world.fork(live.back(), 100));
      } else {
        live.push_back(world.add());
        world.append_all(live.back(), tokens_from(1000 * step, 120));
      }
    }
    Attended attended;
    Parts parts;
    for (const int32_t sequence : live) {
      parts.push_back({sequence, {500000000 + 10 * step + static_cast<uint64_t>(sequence)}});
    }
    check(world.decode_step(0, parts, 0, attended));
    if (step % 16 == 15) world.truncate(live.back(), world.length(0, live.back()) - 5);
    const int64_t allocated = world.stats().allocated_bytes, total = world.usage().total;
    const std::size_t heap = heap_bytes();
    if (step < kSteps / 20) {
      most_allocated = std::max(most_allocated, allocated);
      most_total = std::max(most_total, total);
      most_heap = std::max(most_heap, heap);
      continue;
    }
    REQUIRE(allocated <= most_allocated);
    REQUIRE(total <= most_total);
    REQUIRE(heap <= most_heap + 65536);  // a byte per step would be more
  }
  for (const int32_t sequence : live) world.remove(sequence);
  const pkv_cache_usage left = world.usage();
  CHECK(left.row_pages == 0);
  CHECK(left.record_pages == 0);
  CHECK(left.samples == 0);
  CHECK(left.partly == 0);
}

}  // namespace
}  // namespace pkv::cache_model
