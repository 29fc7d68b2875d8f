// Cases of tests/scenarios/scenarios.txt, area concurrency: calls on one cache from many threads.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

Shape shared_shape() {
  Shape shape;
  shape.options = {{"k", "16"}};
  return shape;
}

TEST_CASE("concurrency: retrieves from four times as many threads as cores equal those of one") {
  Machine machine("cpu");
  World world(machine, shared_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 400));
  constexpr uint64_t kQueries = 10;
  std::vector<Found> expected(kQueries);
  for (uint64_t q = 0; q < kQueries; ++q) {
    check(world.retrieve(0, {{sequence, {5000 + q}}}, expected[q]));
  }
  const uint64_t threads = 4 * std::max(1U, std::thread::hardware_concurrency());
  const uint64_t calls = 10000 / threads;
  std::atomic<int64_t> wrong = 0, done = 0;
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      for (uint64_t i = 0; i < calls; ++i) {
        const uint64_t q = (t + i) % kQueries;
        Found found;
        const pkv_status status = world.retrieve(0, {{sequence, {5000 + q}}}, found);
        found.stamp = expected[q].stamp;
        if (status != PKV_OK || !(found == expected[q])) ++wrong;
        ++done;
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  CHECK(wrong == 0);
  CHECK(done == static_cast<int64_t>(threads * calls));
}

TEST_CASE("concurrency: each thread with a sequence of its own gets what it would get alone") {
  Machine machine("cpu");
  World world(machine, shared_shape());
  std::vector<std::unique_ptr<Machine>> machines;
  std::atomic<int64_t> failed = 0;
  std::vector<std::thread> all;
  std::vector<int32_t> sequences;
  for (int t = 0; t < 6; ++t) sequences.push_back(world.add());
  for (const int32_t sequence : sequences) {
    all.emplace_back([&, sequence] {
      const uint64_t first = 100000 * static_cast<uint64_t>(sequence + 1);
      for (uint64_t round = 0; round < 10; ++round) {
        Attended attended;
        const std::vector<uint64_t> prompt = tokens_from(first + 1000 * round, 37);
        if (world.append(0, {{sequence, prompt}}) != PKV_OK) ++failed;
        if (world.decode_step(0, {{sequence, {first + 1000 * round + 500}}}, 0, attended) != PKV_OK)
          ++failed;
        if (pkv_cache_truncate(world.cache(), world.stream(), sequence,
                               static_cast<int64_t>(36 * (round + 1))) != PKV_OK) {
          ++failed;
        }
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  CHECK(failed == 0);
  for (const int32_t sequence : sequences) {
    const uint64_t first = 100000 * static_cast<uint64_t>(sequence + 1);
    std::vector<uint64_t> tokens;
    for (uint64_t round = 0; round < 10; ++round) {
      tokens = joined(tokens, tokens_from(first + 1000 * round, 37));
      tokens.push_back(first + 1000 * round + 500);
      tokens.resize(36 * (round + 1));
    }
    check_equals_fresh(world, sequence, tokens);
  }
}

// Fetched rows are the caller's copies, so they stay; a fetch that comes too late is refused.
TEST_CASE("concurrency: rows that were fetched stay while another thread truncates") {
  Machine machine("cpu");
  World world(machine, shared_shape());
  const int32_t sequence = world.add();
  const std::vector<uint64_t> tokens = tokens_from(1, 300);
  world.append_all(sequence, tokens);
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> failed = 0;
  std::thread truncating([&] {
    while (!is_over) {
      if (pkv_cache_truncate(world.cache(), world.stream(), sequence, 150) != PKV_OK) ++failed;
      if (world.append(0, {{sequence, tokens_from(151, 150)}}) != PKV_OK) ++failed;
    }
  });
  const Shape& shape = world.shape();
  const auto k = static_cast<std::size_t>(world.k());
  int64_t fetched = 0, stale = 0, wrong = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    Found found;
    const Parts parts = {{sequence, {5000 + i}}};
    check(world.retrieve(0, parts, found));
    Tensor keys(shape.dtype, {0}), values(shape.dtype, {0});
    const pkv_status status = world.fetch(0, parts, found, keys, values);
    if (status != PKV_OK) {
      stale += status == PKV_FAILED_PRECONDITION ? 1 : 0;
      continue;
    }
    ++fetched;
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      for (std::size_t s = 0; s < k; ++s) {
        const std::size_t slot = static_cast<std::size_t>(h) * k + s;
        if (found.positions[slot] < 0) continue;
        const auto at = static_cast<std::size_t>(shape.sink + found.positions[slot]);
        const std::vector<float> wanted = world.content().key(tokens[at], 0, h);
        for (std::size_t j = 0; j < wanted.size(); ++j) {
          const auto element = static_cast<int64_t>(slot * wanted.size() + j);
          wrong += keys.get(element) == wanted[j] ? 0 : 1;
        }
      }
    }
  }
  is_over = true;
  truncating.join();
  CHECK(wrong == 0);
  CHECK(failed == 0);
  CHECK(fetched + stale == 300);
}

}  // namespace
}  // namespace pkv::cache_model
