// What is left of a cache in the child of a fork: refusals of what the parent made, nothing that
// hangs, and new objects that work.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

Shape process_shape() {
  Shape shape;
  shape.options = {{"k", "16"}};
  return shape;
}

// Runs it in a child that ends by itself, or is ended after a minute; 0: `body` returned true.
int in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);
    bool is_right = false;
    try {
      is_right = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(is_right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

bool is_refused(const char* call, pkv_status status) {
  const bool is_right = status == PKV_FAILED_PRECONDITION &&
                        std::string_view(pkv_last_error()).find("forked") != std::string_view::npos;
  if (!is_right) std::fprintf(stderr, "child: %s: %s\n", call, pkv_status_name(status));
  return is_right;
}

// Every kind of object that the parent made, each in one of its calls.
struct Made {
  explicit Made(Machine& machine) : world(machine, process_shape()), config("default") {
    sequence = world.add();
    world.append_all(sequence, tokens_from(1, 300));
    config.set("head_dim", "8");
    const Tensor keys(PKV_DTYPE_F32, {1, 64, 8});
    const pkv_tensor k = keys.view();
    check(pkv_codec_fit_sync(machine.device.get(), machine.stream.get(), config.get(), &k, nullptr,
                             &k, &codec));
    check(pkv_index_create(machine.device.get(), codec, 1, 64, &index));
    pkv_plan_desc desc = filled<pkv_plan_desc, pkv_plan_desc_init>();
    desc.query_heads = 1;
    desc.batch = 1;
    desc.owns_scratch = 1;
    check(pkv_plan_create(index, config.get(), &desc, &plan));
    check(pkv_event_create(machine.device.get(), &event));
  }
  ~Made() { destroy(); }
  void destroy() {
    pkv_event_destroy(std::exchange(event, nullptr));
    pkv_plan_destroy(std::exchange(plan, nullptr));
    pkv_index_destroy(std::exchange(index, nullptr));
    pkv_codec_destroy(std::exchange(codec, nullptr));
  }

  bool all_are_refused() {
    Machine& machine = world.machine();
    int32_t number = 0;
    int64_t count = 0;
    const char* text = nullptr;
    void* data = nullptr;
    pkv_device* device = nullptr;
    pkv_stream* stream = nullptr;
    bool right = is_refused("candidates", pkv_cache_candidates(world.cache(), 300, &count));
    right &= is_refused("append", world.append(0, {{sequence, {700}}}));
    right &= is_refused("cache_length", pkv_cache_length(world.cache(), 0, sequence, &count));
    right &= is_refused("index_length", pkv_index_length(index, 0, &count));
    right &= is_refused("plan_candidates", pkv_plan_candidates(plan, &count));
    right &= is_refused("event_record", pkv_event_record(event, machine.stream.get()));
    right &= is_refused("stream_sync", pkv_stream_sync(machine.stream.get()));
    right &= is_refused("stream_create", pkv_stream_create(machine.device.get(), &stream));
    right &= is_refused("device_alloc", pkv_device_alloc(machine.device.get(), 0, 64, &data));
    right &= is_refused("device_describe", pkv_device_describe(machine.device.get(), &text));
    right &= is_refused("backend_count", pkv_runtime_backend_count(machine.runtime.get(), &number));
    right &=
        is_refused("device_open", pkv_device_open(machine.runtime.get(), "cpu_ref", 0, &device));
    pkv_codec* other = nullptr;
    const pkv_tensor none = no_tensor();
    right &=
        is_refused("codec_fit", pkv_codec_fit_sync(machine.device.get(), machine.stream.get(),
                                                   config.get(), &none, nullptr, nullptr, &other));
    destroy();
    pkv_cache_destroy(world.cache());
    return right;
  }

  World world;
  Config config;
  int32_t sequence = 0;
  pkv_codec* codec = nullptr;
  pkv_index* index = nullptr;
  pkv_plan* plan = nullptr;
  pkv_event* event = nullptr;
};

// Of a cache of its own, from its runtime on.
std::vector<float> answer(const char* backend) {
  Machine machine(backend);
  World world(machine, process_shape());
  const int32_t sequence = world.add();
  world.append_all(sequence, tokens_from(1, 300));
  Attended attended;
  check(world.decode_step(0, {{sequence, {700}}}, 0, attended));
  return attended.output;
}

TEST_CASE(
    "process: the child of a fork is refused by all objects of its parent, and destroys none") {
  for (const char* backend : backends()) {
    CAPTURE(std::string(backend));
    Machine machine(backend);
    Made made(machine);
    const std::string before = made.world.content_of(0, made.sequence);
    CHECK(in_child([&] { return made.all_are_refused(); }) == 0);
    CHECK(made.world.content_of(0, made.sequence) == before);
  }
}

TEST_CASE("process: a runtime that the child of a fork makes gives what the parent's gives") {
  for (const char* backend : backends()) {
    CAPTURE(std::string(backend));
    const std::vector<float> expected = answer(backend);
    CHECK(in_child([&] { return same_bits(answer(backend), expected); }) == 0);
    CHECK(in_child([&] {  // and a child of the child
            return in_child([&] { return same_bits(answer(backend), expected); }) == 0;
          }) == 0);
  }
}

// Not under sanitizers, whose allocators may be locked by a thread that the child lacks.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("process: a fork in the middle of another thread's calls leaves a child that goes on") {
  const std::vector<float> expected = answer("cpu");
  Machine machine("cpu");
  Made made(machine);
  std::atomic<bool> is_over{false};
  std::atomic<int64_t> failed{0}, steps{0};
  std::thread decoding([&] {
    for (uint64_t token = 1000; !is_over; ++token) {
      Attended attended;
      const Parts parts = {{made.sequence, {token}}};
      if (made.world.decode_step(0, parts, 0, attended) != PKV_OK) ++failed;
      if (pkv_cache_truncate(made.world.cache(), made.world.stream(), made.sequence, 300) != PKV_OK)
        ++failed;
      ++steps;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const int64_t seen = steps;
    while (steps == seen) std::this_thread::yield();
    CHECK(in_child([&] { return made.all_are_refused() && same_bits(answer("cpu"), expected); }) ==
          0);
  }
  is_over = true;
  decoding.join();
  CHECK(failed == 0);
}
#endif

}  // namespace
}  // namespace pkv::cache_model
