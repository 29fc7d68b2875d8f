// What a cache refuses, call by call: the text has the value and what is accepted, and afterwards
// every sequence holds what it held, to the byte.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "tests/cache/fixture.h"
#include "tests/common/folder.h"

namespace pkv::cache_model {
namespace {

Shape small_shape() {
  Shape shape;
  shape.options = {{"k", "12"}};
  return shape;
}

struct Held {
  Held(World& world, int32_t sequence)
      : content(world.content_of(0, sequence)), usage(world.usage()), stats(world.stats()) {}
  bool operator==(const Held& other) const {
    return content == other.content && usage.row_pages == other.usage.row_pages &&
           usage.record_pages == other.usage.record_pages && usage.tables == other.usage.tables &&
           usage.codecs == other.usage.codecs && usage.samples == other.usage.samples &&
           stats.sequences == other.stats.sequences && stats.tokens == other.stats.tokens &&
           stats.appended == other.stats.appended && stats.fits == other.stats.fits;
  }
  std::string content;
  pkv_cache_usage usage;
  pkv_cache_stats stats;
};

TEST_CASE("refusals: a removed sequence is refused by every call that takes one") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    World world(machine, small_shape());
    const int32_t stays = world.add(), gone = world.add();
    world.append_all(stays, tokens_from(1, 150));
    world.append_all(gone, tokens_from(5000, 150));
    Found found;
    check(world.retrieve(0, {{gone, {7}}}, found));
    world.remove(gone);
    const Held before(world, stays);
    Attended attended;
    Tensor keys(PKV_DTYPE_F32, {0}), values(PKV_DTYPE_F32, {0});
    int32_t slot = 0;
    int64_t tokens = 0;
    auto regions = filled<pkv_cache_regions, pkv_cache_regions_init>();
    auto rows = filled<pkv_rows, pkv_rows_init>();
    pkv_records records = {};
    records.struct_size = sizeof records;
    pkv_codec* codec = nullptr;
    pkv_cache* const cache = world.cache();
    pkv_stream* const stream = world.stream();
    const test::Folder folder;
    const std::string path = folder.file("refused.pkv");
    const struct {
      std::string name;
      std::function<pkv_status()> call;
    } calls[] = {
        {"append",
         [&] {
           return world.append(0, {{stays, {1}}, {gone, {2}}});
         }},
        {"decode_step",
         [&] {
           return world.decode_step(0, {{stays, {1}}, {gone, {2}}}, 0, attended);
         }},
        {"attend",
         [&] {
           return world.attend(0, {{stays, {1}}, {gone, {2}}}, 0, attended);
         }},
        {"retrieve",
         [&] {
           return world.retrieve(0, {{gone, {2}}}, found);
         }},
        {"fetch",
         [&] {
           return world.fetch(0, {{gone, {7}}}, found, keys, values);
         }},
        {"truncate", [&] { return pkv_cache_truncate(cache, stream, gone, 0); }},
        {"fork", [&] { return pkv_cache_fork(cache, stream, gone, -1, &slot); }},
        {"reset", [&] { return pkv_cache_reset(cache, stream, gone); }},
        {"remove", [&] { return pkv_cache_remove(cache, stream, gone); }},
        {"length", [&] { return pkv_cache_length(cache, 0, gone, &tokens); }},
        {"regions", [&] { return pkv_cache_regions_get(cache, 0, gone, &regions); }},
        {"refit", [&] { return pkv_cache_refit(cache, stream, 0, gone, nullptr); }},
        {"codec", [&] { return pkv_cache_codec(cache, 0, gone, &codec); }},
        {"export",
         [&] { return pkv_cache_export_sync(cache, stream, 0, gone, 0, 0, 1, &records); }},
        {"rows", [&] { return pkv_cache_rows_sync(cache, stream, 0, gone, 0, 0, &rows); }},
        {"sums",
         [&] { return pkv_cache_sums_sync(cache, stream, 0, gone, nullptr, nullptr, nullptr); }},
        {"save", [&] { return pkv_cache_save_sync(cache, stream, gone, path.c_str(), 0); }},
    };
    for (const auto& call : calls) {
      CAPTURE(call.name);
      check_refused(call.call(), PKV_FAILED_PRECONDITION, {"sequence 1", "not in use"});
      CHECK(Held(world, stays) == before);
    }
    CHECK_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("refusals: a step of a wrong number of tokens appends nothing") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    const Shape shape = small_shape();
    World world(machine, shape);
    const int32_t sequence = world.add();
    world.append_all(sequence, tokens_from(1, 150));
    const Held before(world, sequence);
    // Keys, queries and outputs of `n` tokens for a batch that says `count`.
    const auto step = [&](int64_t count, int64_t key_n, int64_t query_n, int64_t output_n) {
      const auto rows = [](int64_t n) { return tokens_from(9000, n); };
      const Tensor keys = world.content().keys(rows(key_n), 0);
      const Tensor values = world.content().values(rows(key_n), 0);
      const Tensor queries = world.content().queries(rows(query_n), 0);
      const Tensor output(PKV_DTYPE_F32, {output_n, shape.query_heads, shape.value_dim});
      auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
      attention.query = queries.view();
      attention.output = output.view();
      Batch batch(Parts{{sequence, {0}}});
      batch.counts = {count};
      const pkv_tensor k = keys.view(), v = values.view();
      return pkv_cache_decode_step(world.cache(), world.stream(), 0, &batch.c, &k, &v, &attention);
    };
    const int64_t most = shape.local + 1;  // 17
    check_refused(step(18, 18, 18, 18), PKV_INVALID_ARGUMENT, {"counts[0]=18", "0..17"});
    check_refused(step(-1, 1, 1, 1), PKV_INVALID_ARGUMENT, {"counts[0]=-1", "0..4096"});
    check_refused(step(4097, 1, 1, 1), PKV_INVALID_ARGUMENT, {"counts[0]=4097", "0..4096"});
    check_refused(step(3, 2, 3, 3), PKV_INVALID_ARGUMENT, {"keys", "2", "3"});
    check_refused(step(3, 3, 4, 3), PKV_INVALID_ARGUMENT, {"query", "4", "3"});
    check_refused(step(3, 3, 3, 1), PKV_INVALID_ARGUMENT, {"output", "1", "3"});
    CHECK(Held(world, sequence) == before);
    Attended attended;
    check_refused(world.attend(0, {{sequence, tokens_from(1, most + 1)}}, 0, attended),
                  PKV_INVALID_ARGUMENT, {"counts[0]=18", "0..17"});
    check_refused(world.attend(0, {{sequence, tokens_from(1, 151)}}, PKV_CACHE_EXACT, attended),
                  PKV_OUT_OF_RANGE, {"counts[0]=151", "0..150"});
    CHECK(Held(world, sequence) == before);
    check(step(most, most, most, most));
    CHECK(world.length(0, sequence) == 150 + most);
  }
}

TEST_CASE("refusals: hits are stale after every kind of change, and nothing is written") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    World world(machine, small_shape());
    const int32_t sequence = world.add(), other = world.add();
    world.append_all(sequence, tokens_from(1, 200));
    world.append_all(other, tokens_from(5000, 3));
    const Parts query = {{sequence, {7}}};
    Attended attended;
    const struct {
      std::string name;
      std::function<void()> change;
    } changes[] = {
        {"append", [&] { world.append_all(sequence, {9000}); }},
        {"append to another one", [&] { world.append_all(other, {9000}); }},
        {"decode_step",
         [&] {
           check(world.decode_step(0, {{sequence, {9001}}}, 0, attended));
         }},
        {"refit", [&] { check(world.refit(0, sequence, nullptr)); }},
        {"truncate", [&] { world.truncate(sequence, 190); }},
    };
    for (const auto& step : changes) {
      CAPTURE(step.name);
      Found found;
      check(world.retrieve(0, query, found));
      const uint64_t stamp = found.stamp;
      step.change();
      const Held before(world, sequence);
      Tensor keys(PKV_DTYPE_F32, {0}), values(PKV_DTYPE_F32, {0});
      check_refused(world.fetch(0, query, found, keys, values), PKV_FAILED_PRECONDITION,
                    {"stale", "state " + std::to_string(stamp)});
      CHECK(keys.numbers() == std::vector<float>(keys.numbers().size(), keys.get(0)));
      CHECK(Held(world, sequence) == before);
      check(world.retrieve(0, query, found));
      check(world.fetch(0, query, found, keys, values));
    }
  }
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A process that the system kills in the middle of a write. Backend cpu_ref, which has no threads
// that a child would lack.
TEST_CASE("refusals: a crash in the middle of saving leaves the old file") {
  const test::Folder folder;
  const std::string path = folder.file("cache.pkv");
  const auto save = [&](int64_t tokens, rlim_t limit) {
    const pid_t child = fork();
    if (child != 0) {
      int how = 0;
      REQUIRE(waitpid(child, &how, 0) == child);
      return how;
    }
    try {
      Machine machine("cpu_ref");
      World world(machine, small_shape());
      world.append_all(world.add(), tokens_from(1, tokens));
      const rlimit none = {0, 0}, limited = {limit, limit};
      setrlimit(RLIMIT_CORE, &none);
      std::signal(SIGXFSZ, SIG_DFL);
      setrlimit(RLIMIT_FSIZE, &limited);
      check(
          pkv_cache_save_sync(world.cache(), world.stream(), -1, path.c_str(), PKV_SAVE_OVERWRITE));
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  };
  REQUIRE(save(150, RLIM_INFINITY) == 0);
  const std::string old = bytes_of(path);
  REQUIRE(save(300, RLIM_INFINITY) == 0);
  const auto size = static_cast<rlim_t>(bytes_of(path).size());
  REQUIRE(save(150, RLIM_INFINITY) == 0);
  REQUIRE(bytes_of(path) == old);
  for (const rlim_t limit : {rlim_t{1}, rlim_t{1000}, size / 2, size - 1}) {
    CAPTURE(limit);
    const int how = save(300, limit);
    REQUIRE(WIFSIGNALED(how));
    CHECK(WTERMSIG(how) == SIGXFSZ);
    CHECK(bytes_of(path) == old);
  }
  REQUIRE(save(300, size) == 0);  // beside what the dead ones have left
  Machine machine("cpu_ref");
  World world(machine, small_shape());
  int32_t sequence = -1, count = 0;
  check(pkv_cache_load_sync(world.cache(), world.stream(), path.c_str(), 1, &sequence, &count));
  check_equals_fresh(world, sequence, tokens_from(1, 300));
}

}  // namespace
}  // namespace pkv::cache_model
