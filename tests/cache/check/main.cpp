// pkv-cache-check: a cache on a device beside one of backend cpu, with the same tokens and codec:
// one captured decode_step over all layers, launched for every step with new keys, values and
// queries; sampled steps are compared, memory is watched. tools/gpu_check runs it. Prints one JSON
// object. Public header only.
//   pkv-cache-check [--backend NAME|PATH] [--tokens N] [--layers L] [--kv-heads H] [--steps S]
//                   [--samples N] [--flush-every N] [--rows host|device] [--candidates SHARE]
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "pariskv/pariskv.hpp"
#include "tests/cache/check/graph.h"

namespace pkv::cache_check {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Arguments {
  std::string backend = "cuda";
  std::string rows = "host";
  std::string candidates = "0.05";
  int64_t tokens = 131072;
  int64_t layers = 2;
  int64_t kv_heads = 8;
  int64_t steps = 600;
  int64_t samples = 8;
  int64_t flush_every = 256;
};

constexpr int64_t kGroup = 4;  // query heads of a KV head
constexpr int64_t kDim = 128;
constexpr int64_t kChunk = 16384;  // tokens appended at a time
constexpr int64_t kFitTokens = 4096;

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error(text); }

Arguments parse(int count, char** words) {
  Arguments out;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = words[i];
    const std::string value = words[i + 1];
    const auto number = [&](int64_t& to) { to = std::stoll(value); };
    if (name == "--backend") {
      out.backend = value;
    } else if (name == "--rows" && (value == "host" || value == "device")) {
      out.rows = value;
    } else if (name == "--candidates") {
      out.candidates = value;
    } else if (name == "--tokens") {
      number(out.tokens);
    } else if (name == "--layers") {
      number(out.layers);
    } else if (name == "--kv-heads") {
      number(out.kv_heads);
    } else if (name == "--steps") {
      number(out.steps);
    } else if (name == "--samples") {
      number(out.samples);
    } else if (name == "--flush-every") {
      number(out.flush_every);
    } else {
      fail("no such option: " + std::string(name) + " " + value);
    }
  }
  if (count % 2 == 0) fail(std::string(words[count - 1]) + ": its value is missing");
  return out;
}

// ---- Data: about normal, a function of a seed and the place ----

uint64_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

uint16_t bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void fill_range(uint64_t seed, uint16_t* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t bits = mixed(seed + static_cast<uint64_t>(i));
    int64_t sum = 0;  // of eight bytes: mean 1020, deviation 209
    for (int shift = 0; shift < 64; shift += 8) sum += static_cast<int64_t>(bits >> shift & 0xff);
    to[i] = bf16(static_cast<float>(sum - 1020) / 209.0F);
  }
}

void fill(uint64_t seed, uint16_t* to, int64_t count) {
  const int64_t threads =
      count < 65536 ? 1 : std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<std::thread> all;
  for (int64_t t = 1; t < threads; ++t) {
    all.emplace_back(fill_range, mixed(seed), to, count * t / threads, count * (t + 1) / threads);
  }
  fill_range(mixed(seed), to, 0, count / threads);
  for (std::thread& thread : all) thread.join();
}

// ---- Memory and tensors ----

class Memory {
 public:
  Memory(pkv_device* device, int32_t kind, int64_t bytes) : device_(device), bytes_(bytes) {
    check(pkv_device_alloc(device, kind, bytes, &data_));
  }
  ~Memory() { pkv_device_free(device_, data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  pkv_device* device_;
  int64_t bytes_;
  void* data_ = nullptr;
};

struct View {
  View(void* data, pkv_device_type type, pkv_dtype dtype, int64_t a, int64_t b, int64_t c)
      : shape{a, b, c} {
    tensor.data = data;
    tensor.device_type = type;
    tensor.ndim = 3;
    tensor.dtype = dtype;
    tensor.shape = shape.data();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  std::array<int64_t, 3> shape;
  pkv_tensor tensor{};
};

template <class Struct, pkv_status (*kInit)(Struct*, size_t)>
Struct filled() {
  Struct value{};
  check(kInit(&value, sizeof value));
  return value;
}

Config config_of(const Arguments& arguments) {
  Config config;
  config.set("head_dim", std::to_string(kDim));
  config.set("value_dim", std::to_string(kDim));
  config.set("candidates", arguments.candidates);
  config.set("tail", "mean");
  return config;
}

// A cache, and the tensors of one step in each layer.
class Side {
 public:
  Side(Device& device, Stream& stream, pkv_device_type type, const Arguments& arguments)
      : arguments_(arguments),
        device_(device),
        stream_(stream),
        type_(type),
        hq_(arguments.kv_heads * kGroup),
        inputs_(device.get(), PKV_ALLOC_DEVICE, arguments.layers * input_bytes()),
        outputs_(device.get(), PKV_ALLOC_DEVICE, arguments.layers * output_bytes()) {
    const Config config = config_of(arguments);
    auto desc = filled<pkv_cache_desc, pkv_cache_desc_init>();
    desc.layers = static_cast<int32_t>(arguments.layers);
    desc.kv_heads = static_cast<int32_t>(arguments.kv_heads);
    desc.query_heads = static_cast<int32_t>(hq_);
    desc.deferred = 1;
    desc.rows_memory = arguments.rows == "host" ? PKV_ALLOC_HOST : PKV_ALLOC_DEVICE;
    check(pkv_cache_create(device.get(), config.get(), &desc, &cache_));
    const int64_t most = arguments.tokens + arguments.steps + kChunk;
    check(pkv_cache_reserve(cache_, stream.get(), most, most, 1));
    int32_t sequence = -1;
    check(pkv_cache_add(cache_, &sequence));
  }
  ~Side() { pkv_cache_destroy(cache_); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  pkv_cache* cache() const { return cache_; }
  void import_codec(const pkv_codec_data& data) {
    const Codec codec = Codec::from(device_, config_of(arguments_), data);
    for (int32_t layer = 0; layer < arguments_.layers; ++layer) {
      check(pkv_cache_import_codec(cache_, layer, codec.get()));
    }
  }

  // `count` tokens at host memory that the device reads.
  void append(int32_t layer, void* keys, void* values, int64_t count, pkv_device_type type) {
    const View k(keys, type, PKV_DTYPE_BF16, count, arguments_.kv_heads, kDim);
    const View v(values, type, PKV_DTYPE_BF16, count, arguments_.kv_heads, kDim);
    const pkv_cache_batch batch = batch_of(&count);
    check(pkv_cache_append(cache_, stream_.get(), layer, &batch, &k.tensor, &v.tensor, nullptr));
  }
  void advance(int64_t count) {
    const pkv_cache_batch batch = batch_of(&count);
    check(pkv_cache_advance(cache_, stream_.get(), -1, &batch));
  }
  void flush() { check(pkv_cache_flush(cache_, stream_.get())); }

  // Keys, values and queries of a step, all layers.
  int64_t input_bytes() const { return (2 * arguments_.kv_heads + hq_) * kDim * 2; }
  void set_inputs(const void* host) {
    stream_.copy(inputs_.data(), host, arguments_.layers * input_bytes());
  }
  // decode_step, or attend for a token that is there already, in each layer.
  void step(bool appends) {
    for (int32_t layer = 0; layer < arguments_.layers; ++layer) {
      auto* input = inputs_.as<std::byte>() + layer * input_bytes();
      const int64_t rows = arguments_.kv_heads * kDim * 2;
      const View k(input, type_, PKV_DTYPE_BF16, 1, arguments_.kv_heads, kDim);
      const View v(input + rows, type_, PKV_DTYPE_BF16, 1, arguments_.kv_heads, kDim);
      const View q(input + 2 * rows, type_, PKV_DTYPE_BF16, 1, hq_, kDim);
      const View o(outputs_.as<std::byte>() + layer * output_bytes(), type_, PKV_DTYPE_F32, 1, hq_,
                   kDim);
      auto attention = filled<pkv_cache_attention, pkv_cache_attention_init>();
      attention.query = q.tensor;
      attention.output = o.tensor;
      const int64_t one = 1;
      const pkv_cache_batch batch = batch_of(&one);
      check(appends ? pkv_cache_decode_step(cache_, stream_.get(), layer, &batch, &k.tensor,
                                            &v.tensor, &attention)
                    : pkv_cache_attend(cache_, stream_.get(), layer, &batch, &attention));
    }
  }
  int64_t output_bytes() const { return hq_ * kDim * 4; }
  std::vector<float> outputs() {
    std::vector<float> host(static_cast<std::size_t>(arguments_.layers * hq_ * kDim));
    stream_.copy(host.data(), outputs_.data(), arguments_.layers * output_bytes());
    stream_.sync();
    return host;
  }
  int64_t allocated() {
    auto stats = filled<pkv_cache_stats, pkv_cache_stats_init>();
    check(pkv_cache_stats_sync(cache_, stream_.get(), &stats));
    auto usage = filled<pkv_cache_usage, pkv_cache_usage_init>();
    check(pkv_cache_usage_get(cache_, &usage));
    return stats.allocated_bytes + usage.tables + usage.codecs + usage.scratch;
  }

 private:
  static pkv_cache_batch batch_of(const int64_t* count) {
    static const int32_t sequence = 0;
    auto batch = filled<pkv_cache_batch, pkv_cache_batch_init>();
    batch.batch = 1;
    batch.sequences = &sequence;
    batch.counts = count;
    return batch;
  }

  const Arguments& arguments_;
  Device& device_;
  Stream& stream_;
  pkv_device_type type_;
  int64_t hq_;
  Memory inputs_, outputs_;
  pkv_cache* cache_ = nullptr;
};

// ---- The check ----

struct Difference {
  double most = 0;    // of an output
  double square = 0;  // sums
  double norm = 0;
  void add(const std::vector<float>& is, const std::vector<float>& wanted) {
    for (std::size_t i = 0; i < is.size(); ++i) {
      const double difference = std::fabs(double{is[i]} - double{wanted[i]});
      most = difference > most || std::isnan(difference) ? difference : most;
      square += difference * difference;
      norm += double{wanted[i]} * double{wanted[i]};
    }
  }
  double relative() const { return std::sqrt(square / norm); }
};

Codec fit(Device& device, Stream& stream, const Arguments& arguments) {
  const int64_t kv_heads = arguments.kv_heads;
  std::vector<uint16_t> keys(static_cast<std::size_t>(kv_heads * kFitTokens * kDim));
  fill(99, keys.data(), static_cast<int64_t>(keys.size()));
  const View view(keys.data(), PKV_DEVICE_CPU, PKV_DTYPE_BF16, kv_heads, kFitTokens, kDim);
  return Codec::fit_sync(device, stream, config_of(arguments), view.tensor);
}

int run(const Arguments& arguments) {
  Runtime runtime;
  std::string name = arguments.backend;
  if (name.find('/') != std::string::npos) {
    name = runtime.backend(runtime.load(name.c_str())).name;
  }
  Device device(runtime, name.c_str());
  Device cpu(runtime, "cpu");
  Stream cpu_stream(cpu);
  const std::unique_ptr<Graph> graph = make_graph(device, name);
  Stream& stream = graph->stream();
  const pkv_device_type type = graph->device_type();
  // Pinned memory of the device's vendor.
  const pkv_device_type host_type =
      type == PKV_DEVICE_CUDA ? pkv_device_type{PKV_DEVICE_CUDA_HOST} : type;

  const auto begin = Clock::now();
  Side ours(device, stream, type, arguments);
  Side reference(cpu, cpu_stream, PKV_DEVICE_CPU, arguments);
  {
    const Codec codec = fit(cpu, cpu_stream, arguments);
    ours.import_codec(codec.data());
    reference.import_codec(codec.data());
  }
  const double made = seconds_since(begin);

  const int64_t row = arguments.kv_heads * kDim;
  const Memory room(device.get(), PKV_ALLOC_HOST, 2 * kChunk * row * 2);
  double append_seconds = 0;
  for (int32_t layer = 0; layer < arguments.layers; ++layer) {
    for (int64_t done = 0; done < arguments.tokens; done += kChunk) {
      const int64_t count = std::min(kChunk, arguments.tokens - done);
      auto* keys = room.as<uint16_t>();
      fill(static_cast<uint64_t>(layer) << 40 | static_cast<uint64_t>(done), keys, 2 * count * row);
      const auto start = Clock::now();
      ours.append(layer, keys, keys + count * row, count, host_type);
      stream.sync();
      append_seconds += seconds_since(start);
      reference.append(layer, keys, keys + count * row, count, PKV_DEVICE_CPU);
    }
  }
  const auto encode_begin = Clock::now();
  ours.flush();
  stream.sync();
  const double encode_seconds = seconds_since(encode_begin);
  reference.flush();

  const auto inputs_of = [&](int64_t step, uint16_t* to) {
    fill(uint64_t{1} << 60 | static_cast<uint64_t>(step) << 20, to,
         arguments.layers * ours.input_bytes() / 2);
  };
  graph->begin();
  ours.step(true);
  graph->end();
  const int64_t allocated = ours.allocated();
  const int64_t free_before = graph->free_bytes();

  // Each step's input has a place of its own in pinned memory, so that nothing waits.
  const int64_t bytes = arguments.layers * ours.input_bytes();
  const int64_t sample_every = std::max<int64_t>(1, arguments.steps / arguments.samples);
  const Memory inputs(device.get(), PKV_ALLOC_HOST, sample_every * bytes);
  Difference difference;
  int64_t compared = 0;
  double step_seconds = 0;
  for (int64_t first = 0; first < arguments.steps; first += sample_every) {
    const int64_t last = std::min(first + sample_every, arguments.steps);
    for (int64_t step = first; step < last; ++step) {
      inputs_of(step, inputs.as<uint16_t>() + (step - first) * bytes / 2);
    }
    const auto start = Clock::now();
    for (int64_t step = first; step < last; ++step) {
      if (step % arguments.flush_every == 0) ours.flush();
      ours.set_inputs(inputs.as<std::byte>() + (step - first) * bytes);
      ours.advance(1);
      graph->launch();
    }
    stream.sync();
    step_seconds += seconds_since(start);
    for (int64_t step = first; step < last; ++step) {
      if (step % arguments.flush_every == 0) reference.flush();
      auto* input = inputs.as<std::byte>() + (step - first) * bytes;
      for (int32_t layer = 0; layer < arguments.layers; ++layer) {
        auto* keys = input + layer * ours.input_bytes();
        reference.append(layer, keys, keys + row * 2, 1, PKV_DEVICE_CPU);
      }
    }
    reference.set_inputs(inputs.as<std::byte>() + (last - 1 - first) * bytes);
    reference.step(false);
    difference.add(ours.outputs(), reference.outputs());
    ++compared;
  }
  const int64_t grown = ours.allocated() - allocated;
  const int64_t taken = free_before - graph->free_bytes();

  // Outputs are means of values of deviation 1. Two tokens whose scores differ by less than rerank
  // errs (docs/numerics.md, 3) may change places at the last hit: one row then counts by its
  // estimate, an error of a part of its weight, which is far below the thousandth allowed here.
  constexpr double kTolerance = .001;
  const bool is_equal = difference.relative() <= kTolerance;
  std::printf(
      "{\"backend\": \"%s\", \"tokens\": %lld, \"layers\": %lld, \"kv_heads\": %lld, "
      "\"rows\": \"%s\", \"candidates\": \"%s\", \"steps\": %lld, \"captures\": 1, "
      "\"step_us\": %.1f, \"append_gb_s\": %.2f, \"encode_ms\": %.1f, \"create_s\": %.1f, "
      "\"compared\": %lld, \"relative_error\": %.3g, \"largest_error\": %.3g, "
      "\"tolerance\": %g, \"equal\": %s, \"grown_bytes\": %lld, \"device_bytes_taken\": %lld}\n",
      name.c_str(), static_cast<long long>(arguments.tokens),
      static_cast<long long>(arguments.layers), static_cast<long long>(arguments.kv_heads),
      arguments.rows.c_str(), arguments.candidates.c_str(), static_cast<long long>(arguments.steps),
      step_seconds * 1e6 / static_cast<double>(arguments.steps),
      static_cast<double>(arguments.layers * arguments.tokens * row * 4) / append_seconds / 1e9,
      encode_seconds * 1e3, made, static_cast<long long>(compared), difference.relative(),
      difference.most, kTolerance, is_equal ? "true" : "false", static_cast<long long>(grown),
      static_cast<long long>(taken));
  return is_equal && grown == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pkv::cache_check

int main(int count, char** words) {
  try {
    return pkv::cache_check::run(pkv::cache_check::parse(count, words));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pkv-cache-check: %s\n", error.what());
    return 2;
  }
}
