// Backend cpu: options, the caller's threads, cancellation, and the layout of its store.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/layout.h"
#include "tests/unit/cpu/encode_world.h"

namespace pkv {
namespace {

using test::encode_args;
using test::exported_by_cpu;
using test::exported_by_ref;
using test::geometry_of;
using test::host_sets;
using test::Random;
using test::Sums;
using test::Tensor;
using test::Twin;
using test::with_sketch;

// Text of the refusal, empty if the option was taken.
std::string set_option(Twin& twin, const char* name, const char* value) {
  try {
    twin.set(name, value);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("cpu device: threads from 0 to 1024, anything else is refused with the choices") {
  Twin twin(geometry_of(64), 1);
  for (const char* good : {"0", "1", "2", "1024"}) CHECK(set_option(twin, "threads", good).empty());
  for (const char* bad : {"-1", "1025", "", "two", "2 ", "99999999999999999999"}) {
    CAPTURE(bad);
    const std::string text = set_option(twin, "threads", bad);
    CHECK(has(text, std::string("threads=") + bad));
    CHECK(has(text, "1024"));
  }
}

TEST_CASE("cpu device: an instruction set by name, another is refused with those of the host") {
  Twin twin(geometry_of(64), 1);
  REQUIRE_FALSE(host_sets().empty());
  CHECK(set_option(twin, "isa", "best").empty());
  for (const std::string& name : host_sets()) CHECK(set_option(twin, "isa", name.c_str()).empty());
  for (const char* bad : {"", "avx1024", "BEST"}) {
    const std::string text = set_option(twin, "isa", bad);
    CHECK(has(text, std::string("isa=") + bad));
    for (const std::string& name : host_sets()) CHECK(has(text, name));
  }
}

TEST_CASE("cpu device: an unknown option is refused with those that there are") {
  Twin twin(geometry_of(64), 1);
  const std::string text = set_option(twin, "speed", "1");
  CHECK(has(text, "speed"));
  CHECK(has(text, "threads"));
  CHECK(has(text, "isa"));
}

// A caller's threads. Index i goes to worker i % workers; `leave_out` indices are never called.
struct Runner {
  int32_t workers = 3;
  int64_t leave_out = 0;
  int32_t first_worker = 0;
  std::atomic<int64_t> calls{0};
  std::atomic<int32_t> polls_left{1 << 30};

  pkv_parallel parallel() {
    pkv_parallel result = {};
    result.struct_size = sizeof result;
    result.user = this;
    result.workers = [](void* user) { return static_cast<Runner*>(user)->workers; };
    result.run = [](void* user, int64_t count, void (*body)(void*, int64_t, int32_t),
                    void* context) { static_cast<Runner*>(user)->run(count, body, context); };
    result.cancelled = [](void* user) {
      return static_cast<Runner*>(user)->polls_left.fetch_sub(1) <= 0 ? 1 : 0;
    };
    return result;
  }

  void run(int64_t count, void (*body)(void*, int64_t, int32_t), void* context) {
    std::vector<std::thread> threads;
    for (int32_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([this, worker, count, body, context] {
        for (int64_t i = worker; i < count - leave_out; i += workers) {
          ++calls;
          body(context, i, first_worker + worker);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// An append of many pieces, done by cpu_ref.
struct Long {
  static constexpr int64_t kTokens = 5000;

  Long()
      : twin(with_sketch(geometry_of(16, 16, PKV_CODEC_SCALAR4, PKV_VOTE_TIER, 2), 4, 16), kTokens),
        keys(Tensor::random({1, 2, kTokens, 16}, 1)),
        values(Tensor::random({1, 2, kTokens, 16}, 2)),
        expected(twin.ref) {
    pkv_encode_args reference = args(expected);
    reference.store = twin.ref.store;
    twin.ref.run(twin.ref.table->encode, reference);
  }

  pkv_encode_args args(Sums& sums) {
    pkv_encode_args result =
        encode_args(twin.ref, keys.view(), values.view(), sequences, starts, counts, sums);
    result.store = twin.store;
    return result;
  }

  // Status of the append on cpu.
  pkv_status append(Sums& sums) {
    const pkv_encode_args call = args(sums);
    int64_t bytes = 0;
    REQUIRE(twin.cpu->encode.scratch_bytes(twin.device, &call, &bytes) == PKV_OK);
    std::vector<std::max_align_t> scratch(static_cast<size_t>(bytes) / sizeof(std::max_align_t) +
                                          1);
    return twin.cpu->encode.run(twin.device, nullptr, &call, scratch.data());
  }

  pkv_status use(Runner& runner) {
    const pkv_parallel parallel = runner.parallel();
    return twin.cpu->device_parallel(twin.device, &parallel);
  }

  std::vector<int32_t> sequences = {0};
  std::vector<int64_t> starts = {0};
  std::vector<int64_t> counts = {kTokens};
  Twin twin;
  Tensor keys;
  Tensor values;
  Sums expected;
};

TEST_CASE("cpu device: the caller's threads do all of the work, until NULL gives it back") {
  Long world;
  Runner runner;
  REQUIRE(world.use(runner) == PKV_OK);
  Sums sums(world.twin.ref);
  REQUIRE(world.append(sums) == PKV_OK);
  CHECK(runner.calls > 2 * Long::kTokens / 1024);
  CHECK(sums == world.expected);
  CHECK(exported_by_cpu(world.twin, 1, 0, Long::kTokens) ==
        exported_by_ref(world.twin, 1, 0, Long::kTokens));

  REQUIRE(world.twin.cpu->device_parallel(world.twin.device, nullptr) == PKV_OK);
  const int64_t calls = runner.calls;
  Sums again(world.twin.ref);
  REQUIRE(world.append(again) == PKV_OK);
  CHECK(again == world.expected);
  CHECK(runner.calls == calls);
}

TEST_CASE("cpu device: a runner that comes back early is named with how much ran") {
  Long world;
  Runner runner;
  runner.leave_out = 1;
  REQUIRE(world.use(runner) == PKV_OK);
  const Sums before(world.twin.ref);
  Sums sums = before;
  CHECK(world.append(sums) == PKV_FAILED_PRECONDITION);
  CHECK(has(world.twin.reported(), "11 of 12"));
  CHECK(sums.occupancy == before.occupancy);
  CHECK(sums.values == before.values);
  CHECK(sums.good == before.good);
}

TEST_CASE("cpu device: a cancelled append changes no sum, whenever it is cancelled") {
  Long world;
  Runner runner;
  REQUIRE(world.use(runner) == PKV_OK);
  const Sums before(world.twin.ref);
  Sums all(world.twin.ref);
  REQUIRE(world.append(all) == PKV_OK);
  const int64_t blocks = runner.calls;
  REQUIRE(blocks > 12);  // the second part of the call, the sums, too
  for (int32_t polls = 0; polls < blocks; ++polls) {
    CAPTURE(polls);
    runner.polls_left = polls;
    Sums sums = before;
    CHECK(world.append(sums) == PKV_CANCELLED);
    CHECK(sums.occupancy == before.occupancy);
    CHECK(sums.values == before.values);
    CHECK(sums.good == before.good);
    CHECK(has(world.twin.reported(), "cancelled"));
  }
}

TEST_CASE("cpu device: a runner's workers are held to their number") {
  Long world;
  Runner runner;
  for (const int32_t bad : {0, -1, 1025}) {
    runner.workers = bad;
    CHECK(world.use(runner) == PKV_INVALID_ARGUMENT);
    CHECK(has(world.twin.reported(), "workers=" + std::to_string(bad)));
  }
  runner.workers = 3;
  runner.first_worker = 1;
  REQUIRE(world.use(runner) == PKV_OK);
  Sums sums(world.twin.ref);
  CHECK(world.append(sums) == PKV_FAILED_PRECONDITION);
  CHECK(has(world.twin.reported(), "worker=3"));
}

TEST_CASE("cpu device: half a runner is refused, cancellation alone is none") {
  Long world;
  Runner runner;
  pkv_parallel parallel = runner.parallel();
  parallel.workers = nullptr;
  CHECK(world.twin.cpu->device_parallel(world.twin.device, &parallel) == PKV_INVALID_ARGUMENT);
  parallel.run = nullptr;
  REQUIRE(world.twin.cpu->device_parallel(world.twin.device, &parallel) == PKV_OK);
  Sums sums(world.twin.ref);
  REQUIRE(world.append(sums) == PKV_OK);
  CHECK(sums == world.expected);
  runner.polls_left = 2;
  CHECK(world.append(sums) == PKV_CANCELLED);
}

TEST_CASE("cpu store: areas lie apart, aligned, and within the row") {
  for (const int32_t d : {8, 24, 64, 128, 136, 576}) {
    for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
      for (const int64_t capacity : {0, 1, 64, 65, 1000}) {
        CAPTURE(d);
        CAPTURE(codec);
        CAPTURE(capacity);
        pkv_geometry geometry = with_sketch(geometry_of(d, d, codec), 4, 3);
        geometry.value_norm = 1;
        const cpu::Layout l = cpu::make_layout(geometry, capacity);
        const int64_t n = l.tokens;
        CHECK(n % 64 == 0);
        CHECK(n >= capacity);
        CHECK(l.record_bytes >= d / 2 + (codec == PKV_CODEC_SCALAR5 ? d / 8 : 0));
        CHECK(l.record_bytes % 16 == 0);
        CHECK(l.records == n / 64 * l.block_bytes);
        CHECK(l.factors >= l.record(n));
        CHECK(l.sketches >= l.factor(n));
        CHECK(l.sketch_factors >= l.sketch((n + 2) / 3));
        CHECK(l.norms >= l.sketch_factor((n + 2) / 3));
        CHECK(l.row_bytes >= l.norm(n) + 64);
        CHECK(l.row_bytes % 256 == 0);
        for (const int64_t area : {l.block_bytes, l.records, l.factors, l.sketches, l.norms}) {
          CHECK(area % 64 == 0);
        }
      }
    }
  }
  // One line for the default profile at d = 128.
  CHECK(cpu::make_layout(geometry_of(128), 64).record_bytes == 64);
}

TEST_CASE("cpu store: any range of records goes in and comes out as it was") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const int32_t bits : {2, 4}) {
      CAPTURE(codec);
      CAPTURE(bits);
      pkv_geometry geometry = with_sketch(
          geometry_of(40, 24, codec, bits == 2 ? PKV_VOTE_TIER : PKV_VOTE_GRADED), bits, 3);
      geometry.value_norm = 1;
      constexpr int64_t kKeys = 200;
      Twin twin(geometry, kKeys);
      Tensor keys = Tensor::random({1, 1, kKeys, 40}, 3);
      Tensor values = Tensor::random({1, 1, kKeys, 24}, 4);
      keys.row(0, 0, 70)[1] = test::kInf;  // a bad key among them
      twin.ref.encode(keys, values);
      twin.copy_records(kKeys);
      for (const auto& range : std::vector<std::pair<int64_t, int64_t>>{
               {0, kKeys}, {1, 1}, {63, 2}, {64, 64}, {70, 0}, {100, 100}}) {
        CAPTURE(range.first);
        CHECK(exported_by_cpu(twin, 0, range.first, range.second) ==
              exported_by_ref(twin, 0, range.first, range.second));
      }
    }
  }
}

}  // namespace
}  // namespace pkv
