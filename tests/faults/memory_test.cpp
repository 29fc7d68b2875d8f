// Every host allocation of the calls of a cache failing, alone and with all behind it: a code for
// it, the cache as it was, and the same call without the fault gives what it would have given.
#include <functional>

#include "tests/faults/world.h"

namespace pkv::faults {
namespace {

struct Case {
  const char* name;
  // The call that is disturbed. What it makes is for `undo`.
  std::function<pkv_status(World&)> call;
  // Back to the state before a call that was done.
  std::function<void(World&)> undo;
};

struct Counts {
  int64_t made = 0, refused = 0;
};

Counts disturb(World& world, const Case& c) {
  Counts counts;
  check(c.call(world));  // scratch has grown, threads are there
  const std::string after = state_of(world);
  c.undo(world);
  const std::string before = state_of(world);
  for (const bool lasts : {false, true}) {
    for (int64_t at = 1;; ++at) {
      CAPTURE(std::string(c.name));
      CAPTURE(lasts);
      CAPTURE(at);
      begin_memory(at, lasts);
      const pkv_status status = c.call(world);
      const MemoryReport report = end_memory();
      if (status == PKV_OK) {
        REQUIRE(state_of(world) == after);
        c.undo(world);
      } else {
        REQUIRE(status == PKV_RESOURCE_EXHAUSTED);
        ++counts.refused;
      }
      REQUIRE(state_of(world) == before);
      if (!report.was_made) {
        REQUIRE(status == PKV_OK);
        break;
      }
      ++counts.made;
    }
  }
  check(c.call(world));
  CHECK(state_of(world) == after);
  c.undo(world);
  return counts;
}

TEST_CASE("faults: no host memory at any point of a cache's calls: nothing is lost") {
  Machine machine("cpu");
  check(pkv_device_set(machine.device.get(), "threads", "1"));
  World world(machine, small_shape());
  const int32_t first = world.add(), second = world.add();
  world.append_all(first, tokens_from(1, 61));
  world.append_all(second, tokens_from(200, 30));
  world.append_all(second, tokens_from(230, 30));
  const Folder folder;
  const std::string path = folder.file("cache.pkv");
  int32_t made = -1, loaded[3] = {}, loaded_count = 0;
  const auto cut = [&](World& w) {
    w.truncate(first, 61);
    w.truncate(second, 60);
  };
  Tokens long_one(world, 0, {{first, tokens_from(300, 40)}});
  Tokens window(world, 1, {{second, tokens_from(300, 40)}});
  Tokens two(world, 0, {{first, tokens_from(300, 5)}, {second, tokens_from(400, 70)}});
  Tokens step(world, 0, {{first, {700}}, {second, {800}}});
  const Case cases[] = {
      {"append with a fit", [&](World& w) { return long_one.append(w); }, cut},
      {"append to a window layer", [&](World& w) { return window.append(w); }, cut},
      {"append to two sequences", [&](World& w) { return two.append(w); }, cut},
      {"decode_step", [&](World& w) { return step.decode(w); }, cut},
      {"refit",
       [&](World& w) { return pkv_cache_refit(w.cache(), w.stream(), 0, second, nullptr); },
       [&](World& w) {
         w.reset(second);
         w.append_all(second, tokens_from(200, 30));
         w.append_all(second, tokens_from(230, 30));
       }},
      {"fork", [&](World& w) { return pkv_cache_fork(w.cache(), w.stream(), first, -1, &made); },
       [&](World& w) { w.remove(made); }},
      {"fork within a page",
       [&](World& w) { return pkv_cache_fork(w.cache(), w.stream(), first, 37, &made); },
       [&](World& w) { w.remove(made); }},
      {"save",
       [&](World& w) {
         return pkv_cache_save_sync(w.cache(), w.stream(), -1, path.c_str(), PKV_SAVE_OVERWRITE);
       },
       [](World& /*w*/) {}},
      {"load",
       [&](World& w) {
         return pkv_cache_load_sync(w.cache(), w.stream(), path.c_str(), 3, loaded, &loaded_count);
       },
       [&](World& w) {
         for (int32_t i = 0; i < loaded_count; ++i) w.remove(loaded[i]);
       }},
  };
  int64_t all = 0;
  for (const Case& c : cases) {
    const Counts counts = disturb(world, c);
    CAPTURE(std::string(c.name));
    CHECK(counts.made > 0);
    CHECK(counts.refused > 0);
    all += counts.made;
    MESSAGE(std::string(c.name), ": ", counts.made, " failed allocations, ", counts.refused,
            " calls refused");
  }
  // No half file and no temporary one, however saves ended.
  CHECK(folder.names() == std::vector<std::string>{"cache.pkv"});
  CHECK(all > 100);
}

TEST_CASE("faults: no host memory at any point of create: no object, and none is left over") {
  Machine machine("cpu");
  const Shape shape = small_shape();
  const Config config = cache_model::config_of(shape);
  const cache_model::Desc desc(shape);
  int64_t refused = 0;
  for (const bool lasts : {false, true}) {
    for (int64_t at = 1;; ++at) {
      CAPTURE(at);
      pkv_cache* cache = nullptr;
      begin_memory(at, lasts);
      const pkv_status status =
          pkv_cache_create(machine.device.get(), config.get(), &desc.c, &cache);
      const MemoryReport report = end_memory();
      REQUIRE((status == PKV_OK) == (cache != nullptr));
      pkv_cache_destroy(cache);
      if (!report.was_made) {
        REQUIRE(status == PKV_OK);
        break;
      }
      if (status != PKV_OK) {
        REQUIRE(status == PKV_RESOURCE_EXHAUSTED);
        ++refused;
      }
    }
  }
  CHECK(refused > 20);
}

}  // namespace
}  // namespace pkv::faults
