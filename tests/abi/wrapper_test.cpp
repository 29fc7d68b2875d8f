// pariskv.hpp: handles move and destroy once, failures are thrown with status and text.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "pariskv/pariskv.hpp"

namespace {

int failures = 0;

void check_that(bool holds, const char* text, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "wrapper_test.cpp:%d: failed: %s\n", line, text);
}
#define CHECK(condition) check_that((condition), #condition, __LINE__)

static_assert(std::is_nothrow_move_constructible_v<pkv::Runtime>);
static_assert(std::is_nothrow_move_assignable_v<pkv::Index>);
static_assert(!std::is_copy_constructible_v<pkv::Device>);
static_assert(!std::is_copy_assignable_v<pkv::Memory>);

template <class Body>
void check_throws(pkv_status status, const char* text, int line, Body body) {
  try {
    body();
    check_that(false, "nothing was thrown", line);
  } catch (const pkv::Error& error) {
    check_that(error.status() == status, pkv_status_name(error.status()), line);
    check_that(std::strstr(error.what(), text) != nullptr, error.what(), line);
  }
}

void test_errors() {
  pkv::Config config;
  check_throws(PKV_NOT_FOUND, "head_dim", __LINE__, [&] { config.set("hed_dim", "128"); });
  check_throws(PKV_INVALID_ARGUMENT, "profile", __LINE__, [] { pkv::Config other("slow"); });
  pkv::Runtime runtime;
  check_throws(PKV_NOT_FOUND, "cpu_ref", __LINE__, [&] { pkv::Device device(runtime, "nix"); });
  CHECK(config.set("k", "7").set("tail", "drop").get("k") == "7");
}

void test_handles() {
  pkv::Runtime runtime;
  CHECK(runtime.backend_count() >= 1);
  CHECK(std::strcmp(runtime.backend(0).name, "cpu_ref") == 0);
  pkv::Device first(runtime);
  pkv::Device device = std::move(first);
  CHECK(first.get() == nullptr);
  pkv::Memory memory(device, 256);
  pkv::Memory moved = std::move(memory);
  CHECK(memory.data() == nullptr);
  CHECK(reinterpret_cast<uintptr_t>(moved.data()) % 256 == 0);
  pkv::Stream stream(device);
  const int source = 5;
  stream.copy(moved.data(), &source, sizeof(source));
  stream.sync();
  CHECK(*moved.as<int>() == 5);
  pkv::Event event(device);
  event.record(stream);
  stream = pkv::Stream::wrap(device, 0);
  event.wait(stream);
}

pkv_tensor view(float* data, const int64_t* shape) {
  pkv_tensor tensor{};
  tensor.data = data;
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.ndim = 3;
  tensor.dtype = PKV_DTYPE_F32;
  tensor.shape = shape;
  return tensor;
}

// The key that equals the query, among keys of other directions, is found first.
void test_step() {
  constexpr int kTokens = 64;
  constexpr int kDim = 8;
  std::vector<float> key_data(kTokens * kDim, 0.0F);
  for (int i = 0; i < kTokens; ++i) key_data[i * kDim + i % 7] = 1.0F + 0.01F * i;
  key_data[42 * kDim + 7] = 9.0F;
  std::vector<float> query_data(kDim, 0.0F);
  query_data[7] = 1.0F;
  const int64_t key_shape[] = {1, kTokens, kDim};
  const int64_t query_shape[] = {1, 1, kDim};
  const pkv_tensor keys = view(key_data.data(), key_shape);
  const pkv_tensor query = view(query_data.data(), query_shape);

  pkv::Runtime runtime;
  pkv::Device device(runtime, "cpu_ref");
  pkv::Stream stream(device);
  pkv::Config config;
  config.set("head_dim", "8").set("v_source", "none").set("tail", "drop").set("k", "4");
  const pkv::Codec codec = pkv::Codec::fit_sync(device, stream, config, keys);
  CHECK(codec.geometry().head_dim == kDim);
  CHECK(codec.data().kv_heads == 1);
  pkv::Index index(device, codec, 1, 1024);
  index.append_sync(stream, 0, keys);
  CHECK(index.length(0) == kTokens);
  CHECK(index.stats_sync(stream).tokens == kTokens);

  pkv_plan_desc desc = pkv::plan_desc();
  desc.batch = 1;
  desc.query_heads = 1;
  desc.owns_scratch = 1;
  const pkv::Plan plan(index, config, desc);
  CHECK(plan.candidates() >= 4);
  CHECK(!plan.describe().empty());
  int32_t positions[4] = {};
  int32_t count = 0;
  pkv_hits hits = pkv::hits();
  hits.positions = positions;
  hits.counts = &count;
  plan.retrieve(stream, query, nullptr, hits);
  stream.sync();
  CHECK(count == 4);
  CHECK(positions[0] == 42);
}

}  // namespace

int main() {
  test_errors();
  test_handles();
  test_step();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
