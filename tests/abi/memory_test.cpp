// No host memory: allocation number i of each call fails, i = 1, 2, .. until the call needs no
// more. Each gives RESOURCE_EXHAUSTED, or does without; nothing crosses the C boundary, and all
// objects can still be used and destroyed.
#include "tests/abi/memory_test.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "tests/common/hits_room.h"

namespace {

long fail_at = 0;  // counts down; 0: allocations succeed
bool has_failed = false;

void* allocate_or_null(std::size_t size, std::size_t alignment) noexcept {
  if (fail_at > 0 && --fail_at == 0) {
    has_failed = true;
    return nullptr;
  }
  const std::size_t whole = (size + alignment) / alignment * alignment;
  return std::aligned_alloc(alignment, whole);
}

void* allocate(std::size_t size, std::size_t alignment) {
  void* data = allocate_or_null(size, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// The library's allocations come here too: a program's operator new goes before that of libstdc++.
void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, alignof(std::max_align_t));
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace {

int failures = 0;
long injected = 0;

void complain(const char* name, long i, const char* what) {
  ++failures;
  std::fprintf(stderr, "%s, allocation %ld: %s: %s\n", name, i, what, pkv_last_error());
}

}  // namespace

void exhaust(const char* name, const std::function<pkv_status()>& call,
             const std::function<void()>& undo) {
  constexpr long kEnough = 100000;
  long refused = 0;
  for (long i = 1; i < kEnough; ++i) {
    has_failed = false;
    fail_at = i;
    const pkv_status status = call();
    fail_at = 0;
    if (status != PKV_OK && status != PKV_RESOURCE_EXHAUSTED) complain(name, i, "other status");
    if (status != PKV_OK && !has_failed) complain(name, i, "fails with memory to spare");
    undo();
    if (!has_failed) {
      // A call that allocates has to notice at least one of its allocations fail.
      if (i > 1 && refused == 0) complain(name, i, "no failure was noticed");
      injected += i - 1;
      return;
    }
    if (status == PKV_RESOURCE_EXHAUSTED) ++refused;
  }
  complain(name, kEnough, "never gets through");
}

pkv_tensor view(std::vector<float>& data, const std::vector<int64_t>& shape) {
  pkv_tensor tensor{};
  tensor.data = data.data();
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.dtype = PKV_DTYPE_F32;
  tensor.shape = shape.data();
  return tensor;
}

std::vector<float> noise(int count) {
  std::vector<float> numbers(count);
  uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525U + 1013904223U;
    number = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
  }
  return numbers;
}

namespace {

template <class T>
std::function<void()> destroy(T*& object, void (*function)(T*)) {
  return [&object, function] {
    function(object);
    object = nullptr;
  };
}

void test_all() {
  pkv_runtime* runtime = nullptr;
  pkv_device* device = nullptr;
  pkv_stream* stream = nullptr;
  pkv_event* event = nullptr;
  pkv_config* config = nullptr;
  pkv_codec* codec = nullptr;
  pkv_index* index = nullptr;
  pkv_plan* plan = nullptr;
  void* memory = nullptr;
  const char* text = nullptr;

  const auto create_runtime = [&] { return pkv_runtime_create(nullptr, &runtime); };
  exhaust("runtime_create", create_runtime, destroy(runtime, pkv_runtime_destroy));
  create_runtime();
  int32_t backend = 0;
  exhaust("runtime_backend_load",
          [&] { return pkv_runtime_backend_load(runtime, PKV_TEST_BACKEND, &backend); });
  pkv_backend_info info;
  pkv_backend_info_init(&info, sizeof(info));
  exhaust("runtime_backend_info",
          [&] { return pkv_runtime_backend_info(runtime, backend, &info); });
  exhaust("runtime_describe", [&] { return pkv_runtime_describe(runtime, &text); });

  const auto open_device = [&] { return pkv_device_open(runtime, "auto", 0, &device); };
  exhaust("device_open", open_device, destroy(device, pkv_device_close));
  open_device();
  exhaust("device_describe", [&] { return pkv_device_describe(device, &text); });
  exhaust(
      "device_alloc", [&] { return pkv_device_alloc(device, PKV_ALLOC_HOST, 64, &memory); },
      [&] {
        pkv_device_free(device, memory);
        memory = nullptr;
      });
  exhaust("device_set", [&] { return pkv_device_set(device, "threads", "2"); });

  const auto create_stream = [&] { return pkv_stream_create(device, &stream); };
  exhaust("stream_create", create_stream, destroy(stream, pkv_stream_destroy));
  exhaust(
      "stream_wrap", [&] { return pkv_stream_wrap(device, 0, &stream); },
      destroy(stream, pkv_stream_destroy));
  create_stream();
  exhaust(
      "event_create", [&] { return pkv_event_create(device, &event); },
      destroy(event, pkv_event_destroy));

  const auto create_config = [&] { return pkv_config_create("default", &config); };
  exhaust("config_create", create_config, destroy(config, pkv_config_destroy));
  create_config();
  exhaust("config_set", [&] { return pkv_config_set(config, "head_dim", "32"); });
  pkv_config_set(config, "k", "8");
  exhaust("config_get", [&] { return pkv_config_get(config, "head_dim", &text); });

  std::vector<float> key_data = noise(kHeads * kTokens * kDim);
  std::vector<float> query_data = noise(kHeads * kDim);
  const std::vector<int64_t> key_shape = {kHeads, kTokens, kDim};
  const std::vector<int64_t> sample_shape = {kHeads, 1, kDim};
  const std::vector<int64_t> query_shape = {1, kHeads, kDim};
  const std::vector<int64_t> source_shape = {1, kHeads, kTokens, kDim};
  const std::vector<int64_t> row_shape = {1, kHeads, kK, kDim};
  const pkv_tensor keys = view(key_data, key_shape);
  const pkv_tensor sample = view(query_data, sample_shape);
  const pkv_tensor query = view(query_data, query_shape);

  const auto fit = [&] {
    return pkv_codec_fit_sync(device, stream, config, &keys, &sample, &keys, &codec);
  };
  exhaust("codec_fit_sync", fit, destroy(codec, pkv_codec_destroy));
  fit();
  pkv_codec_data numbers;
  pkv_codec_data_init(&numbers, sizeof(numbers));
  exhaust("codec_export", [&] { return pkv_codec_export(codec, &numbers); });
  pkv_codec* imported = nullptr;
  exhaust(
      "codec_import", [&] { return pkv_codec_import(device, config, &numbers, &imported); },
      destroy(imported, pkv_codec_destroy));
  pkv_geometry geometry;
  pkv_geometry_init(&geometry, sizeof(geometry));
  exhaust("codec_geometry", [&] { return pkv_codec_geometry(codec, &geometry); });
  test_stages(device, stream, geometry);

  int64_t bytes = 0;
  exhaust("index_bytes", [&] { return pkv_index_bytes(device, codec, 1, 4096, &bytes); });
  const auto create_index = [&] { return pkv_index_create(device, codec, 1, 4096, &index); };
  exhaust("index_create", create_index, destroy(index, pkv_index_destroy));
  create_index();
  exhaust(
      "index_append_sync", [&] { return pkv_index_append_sync(index, stream, 0, &keys, &keys); },
      [&] { pkv_index_reset(index, stream, 0); });
  exhaust(
      "index_append", [&] { return pkv_index_append(index, stream, 0, &keys, &keys); },
      [&] { pkv_index_reset(index, stream, 0); });
  pkv_index_append_sync(index, stream, 0, &keys, &keys);
  pkv_index_stats stats;
  pkv_index_stats_init(&stats, sizeof(stats));
  exhaust("index_stats_sync", [&] { return pkv_index_stats_sync(index, stream, &stats); });

  std::vector<uint16_t> plane(kTokens * kDim);  // more than any has: what is in it does not count
  pkv_records records{};
  records.struct_size = sizeof(records);
  records.signs = records.codes = reinterpret_cast<uint8_t*>(plane.data());
  records.value_signs = records.value_codes = records.signs;
  records.vote_factors = records.factors = records.value_factors = plane.data();
  exhaust("index_export_sync",
          [&] { return pkv_index_export_sync(index, stream, 0, 1, 0, kTokens, &records); });

  char path[] = "/tmp/pariskv_memory_test_XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) complain("mkstemp", 0, "no temporary file");
  close(file);
  exhaust("index_save_sync",
          [&] { return pkv_index_save_sync(index, stream, path, PKV_SAVE_OVERWRITE); });
  pkv_index_save_sync(index, stream, path, PKV_SAVE_OVERWRITE);
  pkv_index* loaded = nullptr;
  exhaust(
      "index_load_sync",
      [&] { return pkv_index_load_sync(device, stream, path, &loaded, nullptr); },
      destroy(loaded, pkv_index_destroy));
  exhaust("index_restore_sync", [&] { return pkv_index_restore_sync(index, stream, path); });
  unlink(path);

  pkv_plan_desc desc;
  pkv_plan_desc_init(&desc, sizeof(desc));
  desc.batch = 1;
  desc.query_heads = kHeads;
  desc.owns_scratch = 1;
  const auto create_plan = [&] { return pkv_plan_create(index, config, &desc, &plan); };
  exhaust("plan_create", create_plan, destroy(plan, pkv_plan_destroy));
  create_plan();
  exhaust("plan_describe", [&] { return pkv_plan_describe(plan, &text); });

  int64_t c = 0;
  pkv_plan_candidates(plan, &c);
  const pkv::test::HitsRoom room({kHeads, kHeads, kK, c, kSamples});
  const pkv_hits& hits = room.hits;
  std::vector<float> row_keys(kHeads * kK * kDim);
  std::vector<float> row_values(kHeads * kK * kDim);
  std::vector<float> output(kHeads * kDim);
  exhaust("retrieve", [&] { return pkv_retrieve(plan, stream, &query, nullptr, &hits); });
  pkv_rows source;
  pkv_rows_init(&source, sizeof(source));
  source.keys = source.values = view(key_data, source_shape);
  pkv_attention attention;
  pkv_attention_init(&attention, sizeof(attention));
  pkv_rows_init(&attention.rows, sizeof(attention.rows));
  attention.rows.keys = view(row_keys, row_shape);
  attention.rows.values = view(row_values, row_shape);
  exhaust("fetch", [&] { return pkv_fetch(plan, stream, &source, &hits, &attention.rows); });
  attention.query = query;
  attention.hits = &hits;
  attention.output = view(output, query_shape);
  exhaust("attend", [&] { return pkv_attend(plan, stream, &attention); });
  pkv_step step;
  pkv_step_init(&step, sizeof(step));
  step.query = query;
  step.source = source;
  step.hits = &hits;
  step.output = attention.output;
  exhaust("step_run", [&] { return pkv_step_run(plan, stream, &step); });
  step.hits = nullptr;
  exhaust("step_run without hits", [&] { return pkv_step_run(plan, stream, &step); });

  pkv_runtime_destroy(runtime);
  pkv_device_close(device);
  pkv_codec_destroy(codec);
  pkv_config_destroy(config);
  pkv_index_destroy(index);
  pkv_plan_destroy(plan);
  pkv_stream_destroy(stream);
}

}  // namespace

int main() {
  test_all();
  std::printf("%ld failed allocations, %d failures\n", injected, failures);
  return failures == 0 && injected > 0 ? 0 : 1;
}
