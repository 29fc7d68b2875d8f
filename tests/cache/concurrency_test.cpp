// Cases of tests/scenarios/scenarios.txt, area concurrency: calls on one cache from many threads.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
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
  std::atomic<int64_t> failed = 0;
  std::jthread truncating([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
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
    check(world.retrieve(0, parts, found, 150));
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
  truncating.request_stop();
  truncating.join();
  CHECK(wrong == 0);
  CHECK(failed == 0);
  CHECK(fetched + stale == 300);
}

// Threads that exist for one call, and that stand still, if they are told to, before they do
// anything.
struct Runner {
  int32_t workers;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_held = false, has_begun = false;

  pkv_parallel parallel() {
    pkv_parallel given = {};
    given.struct_size = sizeof given;
    given.user = this;
    given.workers = [](void* user) { return static_cast<Runner*>(user)->workers; };
    given.run = [](void* user, int64_t count, void (*body)(void*, int64_t, int32_t),
                   void* context) { static_cast<Runner*>(user)->run(count, body, context); };
    return given;
  }
  void run(int64_t count, void (*body)(void*, int64_t, int32_t), void* context) {
    {
      std::unique_lock lock(mutex);
      has_begun = true;
      changed.notify_all();
      changed.wait(lock, [this] { return !is_held; });
    }
    std::vector<std::thread> threads;
    for (int32_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([=, this] {
        for (int64_t i = worker; i < count; i += workers) body(context, i, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void wait_until_begun() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return has_begun; });
  }
  void let_go() {
    const std::lock_guard lock(mutex);
    is_held = false;
    changed.notify_all();
  }
};

// What a sequence holds and answers; with a step's work in many pieces.
std::pair<std::string, std::vector<float>> told_by(Machine& machine) {
  Shape shape = shared_shape();
  shape.kv_heads = 4;
  shape.query_heads = 8;
  World world(machine, shape);
  const int32_t a = world.add(), b = world.add();
  world.append_all(a, tokens_from(1, 300));
  world.append_all(b, tokens_from(1000, 170));
  Attended attended;
  check(world.decode_step(0, {{a, {700}}, {b, {800}}}, 0, attended));
  return {world.content_of(0, a) + world.content_of(0, b), attended.output};
}

TEST_CASE("concurrency: from 1 to 64 threads, own or the caller's, give the same bits") {
  Machine first("cpu");
  check(pkv_device_set(first.device.get(), "threads", "1"));
  const auto expected = told_by(first);
  for (int32_t threads = 1; threads <= 64; ++threads) {
    CAPTURE(threads);
    Machine machine("cpu");
    check(pkv_device_set(machine.device.get(), "threads", std::to_string(threads).c_str()));
    CHECK(told_by(machine) == expected);
    if (threads > 4 && threads % 16 != 0) continue;
    Machine other("cpu");
    Runner runner{threads, {}, {}};
    const pkv_parallel parallel = runner.parallel();
    check(pkv_device_set_parallel(other.device.get(), &parallel));
    CHECK(told_by(other) == expected);
  }
}

// Every handle but that of the call goes while its work stands still.
TEST_CASE("concurrency: handles are destroyed while a step waits for the caller's threads") {
  auto machine = std::make_unique<Machine>("cpu");
  check(pkv_device_set(machine->device.get(), "threads", "4"));
  World world(*machine, shared_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 300));
  Attended expected, attended;
  check(world.attend(0, {{sequence, {700}}}, 0, expected));
  auto beside = std::make_unique<World>(*machine, shared_shape());
  beside->append_all(beside->add(), tokens_from(1, 300));
  Runner runner{3, {}, {}};
  const pkv_parallel parallel = runner.parallel();
  check(pkv_device_set_parallel(machine->device.get(), &parallel));
  runner.is_held = true;
  runner.has_begun = false;
  std::atomic<pkv_status> status{PKV_INTERNAL};
  std::thread stepping([&] { status = world.attend(0, {{sequence, {700}}}, 0, attended); });
  runner.wait_until_begun();
  beside.reset();
  {
    const Device device(std::move(machine->device));
    const Runtime runtime(std::move(machine->runtime));
  }
  runner.let_go();
  stepping.join();
  CHECK(status == PKV_OK);
  CHECK(same_bits(attended.output, expected.output));
}
}  // namespace
}  // namespace pkv::cache_model
