// Encode of a long append by backend cpu: keys per second.
//
//   pkv_bench_encode --benchmark_filter=encode/best
//
// Names: encode/<instruction set>/<threads>/<d>/<codec>/<dtype>/<with values and sampled sketch>.
// 2 KV heads of 64 Ki keys each, scalar4 and graded unless said; keys and records are larger than
// the caches of one core. keys_per_cpu_s is by the time that the threads were running, which is
// what a busy machine leaves comparable; items_per_second is by the clock.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "pariskv/pariskv_backend.h"

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);

namespace {

constexpr int32_t kHeads = 2;
constexpr int64_t kKeys = 65536;

struct Shape {
  std::string isa;
  std::string threads;
  int32_t d;
  int32_t codec;
  pkv_dtype dtype;
  bool has_values;
};

void must(pkv_status status) {
  if (status != PKV_OK) std::exit(1);  // the host has said why
}

const pkv_host& host() {
  static pkv_host result = [] {
    pkv_host h = {};
    h.struct_size = sizeof h;
    h.abi_major = PKV_BACKEND_ABI_MAJOR;
    h.abi_minor = PKV_BACKEND_ABI_MINOR;
    h.report = [](const pkv_host*, const char* text) { std::fprintf(stderr, "%s\n", text); };
    return h;
  }();
  return result;
}

// Seconds that all threads of the process were running.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Memory of the device.
class Block {
 public:
  Block(const pkv_backend& table, pkv_backend_device* device, int64_t bytes)
      : table_(table), device_(device), bytes_(bytes > 0 ? bytes : 1) {
    must(table.memory_alloc(device, PKV_MEMORY_DEVICE, bytes_, &data_));
    must(table.memory_fill(device, nullptr, data_, 1, bytes_));  // its pages are there from now on
  }
  ~Block() { table_.memory_free(device_, PKV_MEMORY_DEVICE, data_, bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* data() const { return data_; }

 private:
  const pkv_backend& table_;
  pkv_backend_device* device_;
  int64_t bytes_;
  void* data_ = nullptr;
};

// Bell-shaped numbers in the high halves of fp32, so as bf16, and as f32 or f16 of some kind.
void fill_rows(void* data, int64_t elements, pkv_dtype dtype) {
  uint64_t state = 1;
  const auto uniform = [&state] {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return static_cast<float>(state >> 40) * 0x1p-23F - 1.0F;
  };
  for (int64_t i = 0; i < elements; ++i) {
    const float x = uniform() + uniform() + uniform();
    if (dtype == PKV_DTYPE_F32) {
      static_cast<float*>(data)[i] = x;
      continue;
    }
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    // f16 of x / 4 or so: sign, exponent less 112, ten places.
    const uint32_t half = (bits >> 31 << 15) | (((bits & 0x7fffffffU) >> 13) & 0x3fffU);
    static_cast<uint16_t*>(data)[i] =
        static_cast<uint16_t>(dtype == PKV_DTYPE_BF16 ? bits >> 16 : half);
  }
}

void encode(benchmark::State& state, const Shape& shape) {
  const pkv_backend* table =
      pkv_cpu_query(PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR, &host());
  if (table == nullptr) std::exit(1);
  pkv_backend_device* device = nullptr;
  must(table->device_open(&host(), 0, &device));
  must(table->device_set(device, "threads", shape.threads.c_str()));
  if (table->device_set(device, "isa", shape.isa.c_str()) != PKV_OK) {
    state.SkipWithError("not on this host");
    table->device_close(device);
    return;
  }

  pkv_geometry geometry = {};
  geometry.struct_size = sizeof geometry;
  geometry.kv_heads = kHeads;
  geometry.head_dim = shape.d;
  geometry.value_dim = shape.has_values ? shape.d : 0;
  geometry.v_source = shape.has_values ? PKV_V_SOURCE_OWN : PKV_V_SOURCE_NONE;
  geometry.codec = shape.codec;
  geometry.vote = PKV_VOTE_GRADED;
  geometry.rounds = 1;
  geometry.sketch_bits = shape.has_values ? 4 : 0;
  geometry.sketch_stride = shape.has_values ? 16 : 0;

  const auto d = static_cast<size_t>(shape.d);
  const std::vector<float> center(kHeads * d, 0.1F);
  const std::vector<float> balance(kHeads * d, 1.5F);
  std::vector<float> signs(d, 1.0F);
  for (size_t j = 0; j < d; j += 3) signs[j] = -1.0F;

  pkv_encode_args args = {};
  args.struct_size = sizeof args;
  args.batch = 1;
  args.codec = {&geometry,    center.data(), balance.data(), balance.data(), signs.data(),
                signs.data(), center.data(), signs.data(),   signs.data()};
  const int64_t shape4[4] = {1, kHeads, kKeys, shape.d};
  const int64_t elements = kHeads * kKeys * shape.d;
  const int64_t bytes = elements * (shape.dtype == PKV_DTYPE_F32 ? 4 : 2);
  {
    const Block keys(*table, device, bytes);
    const Block values(*table, device, shape.has_values ? bytes : 0);
    fill_rows(keys.data(), elements, shape.dtype);
    args.keys = {keys.data(), PKV_DEVICE_CPU, 0, 4, shape.dtype, shape4, nullptr, 0};
    std::vector<double> sums(kHeads * d, 0.0);
    if (shape.has_values) {
      fill_rows(values.data(), elements, shape.dtype);
      args.values = args.keys;
      args.values.data = values.data();
      args.value_sums = sums.data();
    }
    const int32_t sequence = 0;
    const int64_t start = 0;
    int64_t good[kHeads] = {};
    args.sequences = &sequence;
    args.starts = &start;
    args.counts = &kKeys;
    args.good_counts = good;
    args.store.capacity = kKeys;
    must(table->store_row_bytes(device, &geometry, kKeys, &args.store.row_bytes));
    const Block store(*table, device, kHeads * args.store.row_bytes);
    args.store.base = store.data();
    int64_t scratch_bytes = 0;
    must(table->encode.supports(device, &args));
    must(table->encode.scratch_bytes(device, &args, &scratch_bytes));
    const Block scratch(*table, device, scratch_bytes);

    const double before = cpu_seconds();
    for (auto _ : state) must(table->encode.run(device, nullptr, &args, scratch.data()));
    const double keys_done = static_cast<double>(state.iterations()) * kHeads * kKeys;
    state.counters["keys_per_cpu_s"] = keys_done / (cpu_seconds() - before);
    state.SetItemsProcessed(static_cast<int64_t>(keys_done));
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes);
  }
  table->device_close(device);
}

void add(const Shape& shape) {
  const char* codecs[] = {"", "polar4", "scalar4", "scalar5"};
  const char* dtype = shape.dtype == PKV_DTYPE_F32   ? "f32"
                      : shape.dtype == PKV_DTYPE_F16 ? "f16"
                                                     : "bf16";
  const std::string name = "encode/" + shape.isa + "/" + shape.threads + "/" +
                           std::to_string(shape.d) + "/" + codecs[shape.codec] + "/" + dtype + "/" +
                           (shape.has_values ? "values" : "keys");
  benchmark::RegisterBenchmark(name.c_str(), encode, shape)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  const Shape usual = {"best", "1", 128, PKV_CODEC_SCALAR4, PKV_DTYPE_BF16, false};
  add(usual);
  Shape other = usual;
  other.has_values = true;
  add(other);
  for (const char* threads : {"2", "0"}) {
    other = usual;
    other.threads = threads;
    add(other);
  }
  for (const char* isa : {"avx3", "avx2", "sse4", "neon"}) {
    other = usual;
    other.isa = isa;
    add(other);
  }
  for (const int32_t d : {64, 80, 192, 256, 576}) {
    other = usual;
    other.d = d;
    add(other);
  }
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_F32}) {
    other = usual;
    other.dtype = dtype;
    add(other);
  }
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR5}) {
    other = usual;
    other.codec = codec;
    add(other);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
