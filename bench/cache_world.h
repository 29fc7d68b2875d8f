// What bench/cache.cpp compares: a cache's surroundings, and the bare stages.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pariskv/pariskv.h"
#include "pariskv/pariskv_stages.h"

namespace pkv::bench {

constexpr int64_t kHeads = 8;
constexpr int64_t kQueryHeads = 32;
constexpr int64_t kDim = 128;
constexpr int64_t kSink = 128;
constexpr int64_t kLocal = 512;
constexpr int64_t kInterval = 512;
constexpr int64_t kChunk = 4096;
constexpr int64_t kTail = kLocal + kInterval;

inline void check(pkv_status status) {
  if (status == PKV_OK) return;
  std::fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_last_error());
  std::exit(1);
}

inline double now() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Spread {
  double min, median;
};
inline Spread spread(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return {x.front(), x[x.size() / 2]};
}

class Random {
 public:
  uint64_t bits() {
    state_ += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
  }
  uint16_t bell() {  // bf16
    float x = 0;
    for (int i = 0; i < 4; ++i) x += static_cast<float>(bits() >> 40) * 0x1p-24F - 0.5F;
    x *= 1.7F;
    uint32_t word = 0;
    std::memcpy(&word, &x, sizeof word);
    return static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }

 private:
  uint64_t state_ = 1;
};

using Rows = std::vector<uint16_t>;

struct Tensor {
  int64_t shape[4], strides[4];
  pkv_tensor c{};
  Tensor(const void* data, std::initializer_list<int64_t> extents,
         std::initializer_list<int64_t> steps, pkv_dtype dtype = PKV_DTYPE_BF16) {
    std::copy(extents.begin(), extents.end(), shape);
    std::copy(steps.begin(), steps.end(), strides);
    c.data = const_cast<void*>(data);
    c.device_type = PKV_DEVICE_CPU;
    c.ndim = static_cast<int32_t>(extents.size());
    c.dtype = dtype;
    c.shape = shape;
    c.strides = strides;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
};

template <class T, pkv_status (*init)(T*, size_t)>
T made() {
  T value;
  check(init(&value, sizeof value));
  return value;
}

struct Engine {
  pkv_runtime* runtime = nullptr;
  pkv_device* device = nullptr;
  pkv_stream* stream = nullptr;
  pkv_config* config = nullptr;
  explicit Engine(int64_t dim) {
    check(pkv_runtime_create(nullptr, &runtime));
    check(pkv_device_open(runtime, "cpu", 0, &device));
    check(pkv_stream_create(device, &stream));
    check(pkv_config_create("default", &config));
    check(pkv_config_set(config, "head_dim", std::to_string(dim).c_str()));
  }
  ~Engine() {
    pkv_config_destroy(config);
    pkv_stream_destroy(stream);
    pkv_device_close(device);
    pkv_runtime_destroy(runtime);
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
};

inline pkv_cache_desc desc_of(int32_t sequences) {
  auto desc = made<pkv_cache_desc, pkv_cache_desc_init>();
  desc.layers = 1;
  desc.sequences = sequences;
  desc.kv_heads = kHeads;
  desc.query_heads = kQueryHeads;
  return desc;
}

inline pkv_codec* make_codec(const Engine& engine, Random& random) {
  const int64_t n = 4096;
  Rows keys(static_cast<size_t>(kHeads * n * kDim));
  for (uint16_t& x : keys) x = random.bell();
  const Tensor tensor(keys.data(), {kHeads, n, kDim}, {n * kDim, kDim, 1});
  pkv_codec* codec = nullptr;
  check(pkv_codec_fit_sync(engine.device, engine.stream, engine.config, &tensor.c, nullptr,
                           &tensor.c, &codec));
  return codec;
}

inline pkv_cache_batch batch_of(const int32_t* sequence, const int64_t* count) {
  auto batch = made<pkv_cache_batch, pkv_cache_batch_init>();
  batch.batch = 1;
  batch.sequences = sequence;
  batch.counts = count;
  return batch;
}

// Tokens as engines have them, [n, h, d]: rows of a pattern, no two alike.
class Source {
 public:
  explicit Source(Random& random) : random_(random), pattern_(1 << 20) {
    for (uint16_t& x : pattern_) x = random.bell();
  }
  void draw(int64_t tokens, Rows& rows) {
    rows.resize(static_cast<size_t>(tokens * kHeads * kDim));
    for (int64_t row = 0; row < tokens * kHeads; ++row) {
      const uint64_t at = random_.bits() % (pattern_.size() - kDim);
      std::memcpy(rows.data() + row * kDim, pattern_.data() + at, kDim * sizeof(uint16_t));
    }
  }

 private:
  Random& random_;
  Rows pattern_;
};

// An index, and rows by head: [h, capacity, d].
class Bare {
 public:
  Bare(const Engine& engine, const pkv_codec* codec, int64_t zone)
      : engine_(engine), capacity_(zone + 4 * kTail) {
    check(pkv_index_create(engine.device, codec, 1, capacity_, &index_));
    for (Rows* rows : {&keys_, &values_}) {
      rows->assign(static_cast<size_t>(kHeads * capacity_ * kDim), 0);
    }
    for (Rows* rows : {&sink_keys_, &sink_values_, &tail_keys_, &tail_values_}) {
      rows->assign(static_cast<size_t>(kHeads * kTail * kDim), 0x3f80);
    }
  }
  ~Bare() {
    pkv_plan_destroy(plan_);
    pkv_index_destroy(index_);
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;

  void append(const Rows& keys, const Rows& values, int64_t tokens) {
    copy(keys, tokens, keys_, zone_, capacity_);
    copy(values, tokens, values_, zone_, capacity_);
    encode(tokens);
  }
  void reset() {
    check(pkv_index_reset(index_, engine_.stream, 0));
    zone_ = 0;
  }
  void plan() {
    auto desc = made<pkv_plan_desc, pkv_plan_desc_init>();
    desc.query_heads = kQueryHeads;
    desc.owns_scratch = 1;
    check(pkv_plan_create(index_, engine_.config, &desc, &plan_));
  }
  void step(const Rows& key, const Rows& value, const Rows& query, float* output) {
    copy(key, 1, tail_keys_, tail_, kTail);
    copy(value, 1, tail_values_, tail_, kTail);
    if (++tail_ == kTail) leave_tail();
    const Tensor keys(keys_.data(), {1, kHeads, zone_, kDim}, {0, capacity_ * kDim, kDim, 1});
    const Tensor values(values_.data(), {1, kHeads, zone_, kDim}, {0, capacity_ * kDim, kDim, 1});
    const auto part = [](const Rows& rows, int64_t tokens) {
      return Tensor(rows.data(), {1, kHeads, tokens, kDim}, {0, kTail * kDim, kDim, 1});
    };
    const Tensor parts[] = {part(sink_keys_, kSink), part(sink_values_, kSink),
                            part(tail_keys_, tail_), part(tail_values_, tail_)};
    const Tensor q(query.data(), {1, kQueryHeads, kDim}, {kQueryHeads * kDim, kDim, 1});
    const Tensor out(output, {1, kQueryHeads, kDim}, {kQueryHeads * kDim, kDim, 1}, PKV_DTYPE_F32);
    auto step = made<pkv_step, pkv_step_init>();
    step.query = q.c;
    step.output = out.c;
    step.source.struct_size = sizeof step.source;
    step.source.keys = keys.c;
    step.source.values = values.c;
    step.dense_count = 2;
    for (int i = 0; i < 2; ++i) {
      step.dense[i].rows.struct_size = sizeof step.dense[i].rows;
      step.dense[i].rows.keys = parts[2 * i].c;
      step.dense[i].rows.values = parts[2 * i + 1].c;
    }
    check(pkv_step_run(plan_, engine_.stream, &step));
  }
  void set_tail(int64_t tokens) { tail_ = tokens; }

 private:
  static void copy(const Rows& from, int64_t tokens, Rows& to, int64_t at, int64_t capacity) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::memcpy(to.data() + (head * capacity + at + t) * kDim,
                    from.data() + (t * kHeads + head) * kDim, kDim * sizeof(uint16_t));
      }
    }
  }
  void encode(int64_t tokens) {
    const auto view = [&](const Rows& rows) {
      return Tensor(rows.data() + zone_ * kDim, {kHeads, tokens, kDim},
                    {capacity_ * kDim, kDim, 1});
    };
    const Tensor keys = view(keys_), values = view(values_);
    check(pkv_index_append(index_, engine_.stream, 0, &keys.c, &values.c));
    zone_ += tokens;
  }
  void leave_tail() {
    for (auto [tail, rows] : {std::pair(&tail_keys_, &keys_), std::pair(&tail_values_, &values_)}) {
      for (int64_t head = 0; head < kHeads; ++head) {
        uint16_t* from = tail->data() + head * kTail * kDim;
        std::copy_n(from, kInterval * kDim, rows->data() + (head * capacity_ + zone_) * kDim);
        std::copy_n(from + kInterval * kDim, kLocal * kDim, from);
      }
    }
    encode(kInterval);
    tail_ = kLocal;
  }

  const Engine& engine_;
  int64_t capacity_;
  int64_t zone_ = 0;
  int64_t tail_ = kLocal;
  pkv_index* index_ = nullptr;
  pkv_plan* plan_ = nullptr;
  Rows keys_, values_, sink_keys_, sink_values_, tail_keys_, tail_values_;
};

}  // namespace pkv::bench
