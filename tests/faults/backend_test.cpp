// Every call of a backend failing, alone and with all behind it, as of a device that is lost: the
// call of the library is refused, cache and index are as they were, nothing of the backend's is
// kept, and the same call without the fault gives what it would have given. The backend is the
// faulty plug-in that PKV_CACHE_PLUGIN names.
#include <dlfcn.h>

#include <functional>

#include "tests/common/hits_room.h"
#include "tests/faults/faulty_backend.h"
#include "tests/faults/world.h"

namespace pkv::faults {
namespace {

struct Plugin {
  Plugin() {
    const char* path = std::getenv("PKV_CACHE_PLUGIN");
    REQUIRE(path != nullptr);
    void* library = dlopen(path, RTLD_NOW);  // the one that the runtime has loaded
    REQUIRE(library != nullptr);
    begin = reinterpret_cast<decltype(begin)>(dlsym(library, "pkv_faulty_begin"));
    end = reinterpret_cast<decltype(end)>(dlsym(library, "pkv_faulty_end"));
    slot = reinterpret_cast<decltype(slot)>(dlsym(library, "pkv_faulty_slot"));
    REQUIRE((begin != nullptr && end != nullptr && slot != nullptr));
  }
  pkv_faulty_report report() const {
    pkv_faulty_report out{};
    end(&out);
    return out;
  }
  static bool is_host() { return std::getenv("PKV_CACHE_STREAMS") == nullptr; }
  decltype(&pkv_faulty_begin) begin;
  decltype(&pkv_faulty_end) end;
  decltype(&pkv_faulty_slot) slot;
};

struct Case {
  const char* name;
  std::function<pkv_status()> call;
  std::function<void()> undo;  // back to the state before a call that was done
  bool is_final = false;       // what it has forgotten when it fails stays forgotten
};

// Of a call of the tests' world, which throws where it waits.
pkv_status status_of(const std::function<pkv_status()>& call) {
  try {
    return call();
  } catch (const Error& error) {
    return error.status();
  }
}

// Nothing that the backend gave since then may be missing when this goes.
class NoneKept {
 public:
  explicit NoneKept(const Plugin& plugin) : plugin_(plugin), before_(plugin.report()) {}
  ~NoneKept() {
    const pkv_faulty_report now = plugin_.report();
    CHECK(now.memory == before_.memory);
    CHECK(now.handles == before_.handles);
  }
  NoneKept(const NoneKept&) = delete;
  NoneKept& operator=(const NoneKept&) = delete;

 private:
  const Plugin& plugin_;
  pkv_faulty_report before_;
};

// What an object offers to a test of it.
struct Subject {
  std::function<std::string()> lengths;  // what it says without its device
  std::function<std::string()> state;    // all of it
  // What its header asks for where a device has failed in the middle of a call.
  std::function<void()> mend;
  // From the beginning: what lay on a device that failed for good may be gone.
  std::function<void()> renew;
};

void disturb(const Plugin& plugin, const Case& c, const Subject& subject) {
  const auto& state = subject.state;
  CAPTURE(std::string(c.name));
  check(c.call());  // scratch has grown, threads are there
  const std::string after = state();
  c.undo();
  check(c.call());
  c.undo();
  const std::string before = state();
  const std::string lengths = subject.lengths();
  int64_t made = 0, refused = 0, mended = 0, renewed = 0;
  for (const bool lasts : {false, true}) {
    // Behind a device that is lost everything is made anew, which takes its time: every seventh.
    const int64_t stride = lasts && !Plugin::is_host() ? 7 : 1;
    for (int64_t at = 1;; at += stride) {
      CAPTURE(lasts);
      CAPTURE(at);
      plugin.begin(at, lasts ? 1 : 0);
      const pkv_status status = c.call();
      const std::string text = status == PKV_OK ? "" : pkv_last_error();
      const pkv_faulty_report report = plugin.report();
      CAPTURE(std::string(report.first == nullptr ? "" : report.first));
      CAPTURE(text);
      if (status == PKV_OK) {
        REQUIRE(state() == after);  // done another way
        c.undo();
      } else {
        REQUIRE((status == PKV_UNAVAILABLE || status == PKV_RESOURCE_EXHAUSTED));
        REQUIRE(!text.empty());
        ++refused;
        if (lasts && !Plugin::is_host()) {  // what lay on the device is lost with it
          REQUIRE((c.is_final || subject.lengths() == lengths));
          subject.renew();
          ++renewed;
        }
        if (c.is_final && subject.lengths() != lengths) {
          subject.mend();
          REQUIRE(state() == after);
          c.undo();
        }
        REQUIRE(subject.lengths() == lengths);
        if (state() != before) {
          subject.mend();
          ++mended;
        }
        if (lasts && state() != before) {
          subject.renew();
          ++renewed;
        }
      }
      REQUIRE(state() == before);
      if (report.faults == 0) {
        REQUIRE(status == PKV_OK);
        break;
      }
      ++made;
    }
  }
  check(c.call());
  CHECK(state() == after);
  c.undo();
  CHECK(refused > 0);
  MESSAGE(std::string(c.name), ": ", made, " faults, ", refused, " calls refused, ", mended,
          " mended, ", renewed, " renewed");
}

TEST_CASE("faults: any call of the backend in any call of a cache: nothing is lost") {
  Machine machine("cpu");
  const Plugin plugin;
  const NoneKept none_kept(plugin);
  const int32_t first = 0, second = 1;
  const cache_model::Parts parts = {{first, {700}}, {second, {800}}};
  cache_model::Found found;  // of case retrieve, for case fetch
  std::unique_ptr<World> kept;
  const auto renew = [&] {
    kept = std::make_unique<World>(machine, small_shape());
    CHECK(kept->add() == first);
    CHECK(kept->add() == second);
    kept->append_all(first, tokens_from(1, 61));
    kept->append_all(second, tokens_from(200, 30));
    kept->append_all(second, tokens_from(230, 30));
    check(kept->retrieve(0, parts, found));
  };
  renew();
  const Folder folder;
  const std::string path = folder.file("cache.pkv");
  int32_t made = -1, loaded[3] = {}, loaded_count = 0;
  const auto cut = [&] {
    kept->truncate(first, 61);
    kept->truncate(second, 60);
  };
  const auto nothing = [] {};
  Tokens long_one(*kept, 0, {{first, tokens_from(300, 40)}});
  Tokens window(*kept, 1, {{second, tokens_from(300, 40)}});
  Tokens two(*kept, 0, {{first, tokens_from(300, 5)}, {second, tokens_from(400, 70)}});
  Tokens step(*kept, 0, {{first, {700}}, {second, {800}}});
  const auto fill_second = [&] {
    kept->append_all(second, tokens_from(200, 30));
    kept->append_all(second, tokens_from(230, 30));
  };
  cache_model::Tensor keys(PKV_DTYPE_F32, {0}), values(keys);
  const Case cases[] = {
      {"append with a fit", [&] { return long_one.append(*kept); }, cut},
      {"append to a window layer", [&] { return window.append(*kept); }, cut},
      {"append to two sequences", [&] { return two.append(*kept); }, cut},
      {"decode_step", [&] { return step.decode(*kept); }, cut},
      {"attend", [&] { return step.attend(*kept); }, nothing},
      {"attend, exact", [&] { return step.attend(*kept, PKV_CACHE_EXACT); }, nothing},
      {"retrieve", [&] { return status_of([&] { return kept->retrieve(0, parts, found); }); },
       nothing},
      {"fetch",
       [&] { return status_of([&] { return kept->fetch(0, parts, found, keys, values); }); },
       nothing},
      {"refit", [&] { return pkv_cache_refit(kept->cache(), kept->stream(), 0, second, nullptr); },
       [&] {
         kept->reset(second);
         fill_second();
       }},
      {"truncate", [&] { return pkv_cache_truncate(kept->cache(), kept->stream(), second, 21); },
       [&] {
         kept->reset(second);
         fill_second();
       },
       true},
      {"reset", [&] { return pkv_cache_reset(kept->cache(), kept->stream(), second); }, fill_second,
       true},
      {"fork", [&] { return pkv_cache_fork(kept->cache(), kept->stream(), first, -1, &made); },
       [&] { kept->remove(made); }},
      {"fork within a page",
       [&] { return pkv_cache_fork(kept->cache(), kept->stream(), first, 37, &made); },
       [&] { kept->remove(made); }},
      {"save",
       [&] {
         return pkv_cache_save_sync(kept->cache(), kept->stream(), -1, path.c_str(),
                                    PKV_SAVE_OVERWRITE);
       },
       nothing},
      {"load",
       [&] {
         return pkv_cache_load_sync(kept->cache(), kept->stream(), path.c_str(), 3, loaded,
                                    &loaded_count);
       },
       [&] {
         for (int32_t i = 0; i < loaded_count; ++i) kept->remove(loaded[i]);
       }},
  };
  const auto lengths = [&] {
    return std::to_string(kept->length(0, first)) + "," + std::to_string(kept->length(0, second));
  };
  // A zone in the middle of whose change the device fails is attended in full until the next flush.
  const auto flush = [&] { kept->flush(); };
  for (const Case& c : cases) {
    disturb(plugin, c, {lengths, [&] { return state_of(*kept); }, flush, renew});
  }
  CHECK(folder.names() == std::vector<std::string>{"cache.pkv"});
}

TEST_CASE("faults: any call of the backend while a cache is made: no object, nothing kept") {
  Machine machine("cpu");
  const Plugin plugin;
  const Shape shape = small_shape();
  const Config config = cache_model::config_of(shape);
  const cache_model::Desc desc(shape);
  const pkv_faulty_report held = plugin.report();
  int64_t refused = 0;
  for (const bool lasts : {false, true}) {
    for (int64_t at = 1;; ++at) {
      CAPTURE(at);
      pkv_cache* cache = nullptr;
      plugin.begin(at, lasts ? 1 : 0);
      const pkv_status status =
          pkv_cache_create(machine.device.get(), config.get(), &desc.c, &cache);
      const pkv_faulty_report report = plugin.report();
      REQUIRE((status == PKV_OK) == (cache != nullptr));
      pkv_cache_destroy(cache);
      const pkv_faulty_report now = plugin.report();
      REQUIRE((now.memory == held.memory && now.handles == held.handles));
      if (report.faults == 0) break;
      refused += status == PKV_OK ? 0 : 1;
    }
  }
  CHECK(refused > 0);
}

// What is destroyed on a device that is lost gives everything back all the same.
TEST_CASE("faults: objects on a lost device can be destroyed") {
  Machine machine("cpu");
  const Plugin plugin;
  const NoneKept none_kept(plugin);
  World world(machine, small_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 90));
  Tokens step(world, 0, {{sequence, {700}}});
  plugin.begin(1, 1);
  CHECK(step.decode(world) == PKV_UNAVAILABLE);
  CHECK(step.append(world) == PKV_UNAVAILABLE);
  CHECK(step.attend(world) == PKV_UNAVAILABLE);
  CHECK(pkv_cache_flush(world.cache(), world.stream()) == PKV_UNAVAILABLE);
  CHECK(world.length(0, sequence) == 90);
}

// An index of two sequences with all that is made of it.
struct Indexed {
  explicit Indexed(Machine& machine)
      : device(machine.device),
        stream(machine.stream),
        config("default"),
        content(shape()),
        codec(fitted()),
        index(device, codec, 2, 200) {
    append(0, 80);
    append(1, 30);
  }
  static const Shape& shape() {
    static const Shape kept = small_shape();
    return kept;
  }
  Codec fitted() {
    for (const auto& [name, value] :
         {std::pair{"head_dim", "8"}, {"k", "4"}, {"tail", "sampled"}, {"tail_samples", "16"}}) {
      config.set(name, value);
    }
    const cache_model::Tensor keys = content.head_keys(tokens_from(1, 60), 0);
    const cache_model::Tensor values = content.head_values(tokens_from(1, 60), 0);
    const pkv_tensor k = keys.view(), v = values.view();
    return Codec::fit_sync(device, stream, config, k, nullptr, &v);
  }
  pkv_status try_append(int32_t sequence, int64_t count) {
    const cache_model::Tensor keys = content.head_keys(tokens_from(7, count), 0);
    const cache_model::Tensor values = content.head_values(tokens_from(7, count), 0);
    const pkv_tensor k = keys.view(), v = values.view();
    return pkv_index_append_sync(index.get(), stream.get(), sequence, &k, &v);
  }
  void append(int32_t sequence, int64_t count) { check(try_append(sequence, count)); }
  void refill() {
    for (const int32_t s : {0, 1}) check(pkv_index_reset(index.get(), stream.get(), s));
    append(0, 80);
    append(1, 30);
  }
  std::string lengths() const {
    int64_t first = 0, second = 0;
    check(pkv_index_length(index.get(), 0, &first));
    check(pkv_index_length(index.get(), 1, &second));
    return std::to_string(first) + "," + std::to_string(second);
  }
  std::string state(const Folder& folder) {
    const std::string path = folder.file("state.pkv");
    const pkv_status status =
        pkv_index_save_sync(index.get(), stream.get(), path.c_str(), PKV_SAVE_OVERWRITE);
    if (status == PKV_UNAVAILABLE) return pkv_last_error();  // half changed: it says so
    check(status);
    return read_file(path);
  }

  Device& device;
  Stream& stream;
  Config config;
  cache_model::Content content;
  Codec codec;
  Index index;
};

TEST_CASE("faults: any call of the backend in any call of an index, a plan, a codec") {
  Machine machine("cpu");
  const Plugin plugin;
  const NoneKept none_kept(plugin);
  Indexed it(machine);
  const Folder folder;
  const std::string path = folder.file("index.pkv");
  auto desc = plan_desc();
  desc.query_heads = 2;
  desc.batch = 2;
  desc.owns_scratch = 1;
  const int32_t sequences[] = {0, 1};
  desc.sequences = sequences;
  pkv_plan* plan = nullptr;
  check(pkv_plan_create(it.index.get(), it.config.get(), &desc, &plan));
  const cache_model::Tensor query(PKV_DTYPE_F32, {2, 2, 8});
  const cache_model::Tensor source(PKV_DTYPE_F32, {2, 1, 80, 8});
  const cache_model::Tensor output(PKV_DTYPE_F32, {2, 2, 8});
  const pkv_tensor q = query.view();
  int64_t width = 0;
  check(pkv_plan_candidates(plan, &width));
  const test::HitsRoom found({2, 4, 4, width, 16});
  auto whole = step();
  whole.query = q;
  whole.source = rows();
  whole.source.keys = source.view();
  whole.source.values = source.view();
  whole.output = output.view();
  pkv_plan* other = nullptr;
  pkv_index* loaded = nullptr;
  pkv_codec* codec = nullptr;
  const cache_model::Tensor keys = it.content.head_keys(tokens_from(1, 60), 0);
  const pkv_tensor k = keys.view();
  const auto nothing = [] {};
  const auto refill = [&] { it.refill(); };
  const Case cases[] = {
      {"append", [&] { return it.try_append(1, 20); }, refill},
      {"reset", [&] { return pkv_index_reset(it.index.get(), it.stream.get(), 1); }, refill},
      {"save",
       [&] {
         return pkv_index_save_sync(it.index.get(), it.stream.get(), path.c_str(),
                                    PKV_SAVE_OVERWRITE);
       },
       nothing},
      {"restore",
       [&] { return pkv_index_restore_sync(it.index.get(), it.stream.get(), path.c_str()); },
       nothing},
      {"load",
       [&] {
         return pkv_index_load_sync(it.device.get(), it.stream.get(), path.c_str(), &loaded,
                                    &codec);
       },
       [&] {
         pkv_index_destroy(loaded);
         pkv_codec_destroy(codec);
       }},
      {"fit",
       [&] {
         return pkv_codec_fit_sync(it.device.get(), it.stream.get(), it.config.get(), &k, nullptr,
                                   &k, &codec);
       },
       [&] { pkv_codec_destroy(codec); }},
      {"plan", [&] { return pkv_plan_create(it.index.get(), it.config.get(), &desc, &other); },
       [&] { pkv_plan_destroy(other); }},
      {"retrieve", [&] { return pkv_retrieve(plan, it.stream.get(), &q, nullptr, &found.hits); },
       nothing},
      {"step", [&] { return pkv_step_run(plan, it.stream.get(), &whole); }, nothing},
  };
  const Subject subject = {[&] { return it.lengths(); }, [&] { return it.state(folder); }, refill,
                           refill};
  for (const Case& c : cases) disturb(plugin, c, subject);
  pkv_plan_destroy(plan);
}

// Behind the others, in their order: a slot that their calls reach has failed in one of them. What
// only stands in for a step that was refused is reached behind another fault.
TEST_CASE("faults: every slot that calls reach has failed") {
  Machine machine("cpu");
  const Plugin plugin;
  const char* name = nullptr;
  int64_t calls = 0, faults = 0, failed = 0;
  for (int32_t i = 0; plugin.slot(i, &name, &calls, &faults) != 0; ++i) {
    CAPTURE(std::string(name));
    if (std::string_view(name) == "device_open") continue;  // before any fault can be ordered
    const bool stands_in =
        std::getenv("PKV_FAULTY_STAGES") == nullptr && std::string_view(name).starts_with("rerank");
    CHECK((calls == 0 || faults > 0 || stands_in));
    failed += faults > 0 ? 1 : 0;
  }
  CHECK(failed > 20);
}

}  // namespace
}  // namespace pkv::faults
