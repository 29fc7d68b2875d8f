// One decoding step of one layer by backend cpu, against a plain read of the bytes its vote reads.
//
//   pkv_bench_step --benchmark_filter=step/131072
//
// Names: step/<keys>/<candidates, ppm>/<threads>/<tail: 0 drop, 1 mean, 2 sampled>, or tail 3: vote
// and exact selection alone. 32 query heads, 8 KV heads, d = dv = 128, bf16, k = 100, 128 + 768
// dense tokens. Layers rotate so that nothing is in a cache from before, and every step has a query
// of its own. What counts is within one run: steps, then plain reads of their vote bytes on as many
// threads. PKV_BENCH_ISA names an instruction set.
//
// Reported, in ms: step_min, step_med, read_min, read_med, and ratio_min, ratio_med = step / read.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pariskv/pariskv_backend.h"

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);

namespace {

constexpr int32_t kHeads = 8;
constexpr int32_t kQueryHeads = 32;
constexpr int32_t kDim = 128;
constexpr int32_t kHits = 100;
constexpr int64_t kDense[2] = {128, 768};
constexpr int64_t kLastLevelCache = int64_t{320} << 20;
constexpr int32_t kSamples = 512;
constexpr int64_t kVoteBytes = kDim / 8 + 2;  // per key
constexpr int32_t kSelectOnly = -1;           // instead of a tail

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    state_ += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
  }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }
  float bell() { return 1.7F * (uniform() + uniform() + uniform() + uniform() - 2.0F); }

 private:
  uint64_t state_;
};

uint16_t bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void check(pkv_status status) {
  if (status == PKV_OK) return;
  std::fprintf(stderr, "status %d\n", status);
  std::exit(1);
}

double now() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

// Reads bytes on several threads that wait by spinning.
class Reader {
 public:
  explicit Reader(int threads) {
    for (int t = 1; t < threads; ++t) {
      threads_.emplace_back([this, t] { work(t); });
    }
  }
  ~Reader() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read(const std::vector<const uint8_t*>& pieces, int64_t bytes) {
    pieces_ = &pieces;
    bytes_ = bytes;
    pending_ = static_cast<int>(threads_.size());
    ++round_;
    part(0);
    while (pending_ != 0) {
    }
  }

 private:
  void work(int t) {
    for (int seen = 0; !is_over_;) {
      if (round_ == seen) continue;
      ++seen;
      part(t);
      --pending_;
    }
  }
  void part(int t) {
    const size_t count = threads_.size() + 1;
    // Two lines at a time, into sums that stay in registers.
    using Vector = uint64_t __attribute__((vector_size(16), may_alias));
    Vector a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {};
    for (size_t i = static_cast<size_t>(t); i < pieces_->size(); i += count) {
      const auto* x = reinterpret_cast<const Vector*>((*pieces_)[i]);  // rows are aligned
      for (int64_t left = bytes_ / 128; left > 0; --left, x += 8) {
        a += x[0], b += x[1], c += x[2], d += x[3];
        e += x[4], f += x[5], g += x[6], h += x[7];
      }
    }
    Vector sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    benchmark::DoNotOptimize(sum);
  }

  std::vector<std::thread> threads_;
  const std::vector<const uint8_t*>* pieces_ = nullptr;
  int64_t bytes_ = 0;
  std::atomic<int> round_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> is_over_{false};
};

struct Layer {
  pkv_store store = {};
  std::vector<uint16_t> dense[4];  // keys, values of both parts
};

class World {
 public:
  World(int64_t n, int32_t threads, int32_t tail) : n_(n), tail_(tail) {
    host_.struct_size = sizeof host_;
    host_.report = [](const pkv_host*, const char* text) { std::fprintf(stderr, "%s\n", text); };
    table_ = pkv_cpu_query(PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR, &host_);
    check(table_->device_open(&host_, 0, &device_));
    check(table_->device_set(device_, "threads", std::to_string(threads).c_str()));
    if (const char* isa = std::getenv("PKV_BENCH_ISA")) {
      check(table_->device_set(device_, "isa", isa));
    }
    geometry_.struct_size = sizeof geometry_;
    geometry_.kv_heads = kHeads;
    geometry_.head_dim = geometry_.value_dim = kDim;
    geometry_.v_source = PKV_V_SOURCE_OWN;
    geometry_.codec = PKV_CODEC_SCALAR4;
    geometry_.vote = PKV_VOTE_GRADED;
    geometry_.rounds = 1;
    geometry_.sketch_bits = 4;
    geometry_.sketch_stride = 16;
    make_codec();
    const int64_t touched = n * kHeads * kVoteBytes;
    layers_.resize(static_cast<size_t>(std::max<int64_t>(3, kLastLevelCache / touched + 2)));
    make_planes();
    for (size_t i = 0; i < layers_.size(); ++i) make_layer(layers_[i], i);
    zone_.resize(static_cast<size_t>(2 * n * kHeads * kDim));
    fill(zone_);
    queries_.resize(static_cast<size_t>(kQueryHeads * kDim));
    make_outputs();
  }
  ~World() {
    for (Layer& layer : layers_) {
      table_->memory_free(device_, PKV_MEMORY_DEVICE, layer.store.base, store_bytes(layer));
    }
    table_->device_close(device_);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void prepare(int64_t ppm) {
    pkv_step_args a = args(layers_[0], ppm);
    stride_ = std::max<int64_t>(kHits, (n_ * ppm + 999999) / 1000000);
    candidates_.resize(static_cast<size_t>(kHeads * stride_));
    estimates_.resize(static_cast<size_t>(kQueryHeads * stride_));
    a = args(layers_[0], ppm);
    check(table_->step.supports(device_, &a));
    int64_t bytes = 0;
    check(table_->step.scratch_bytes(device_, &a, &bytes));
    scratch_.resize(static_cast<size_t>(bytes + 256));
  }

  double step(size_t i, int64_t ppm) {
    for (uint16_t& q : queries_) q = bf16(random_.bell());
    const pkv_step_args a = args(layers_[i % layers_.size()], ppm);
    auto* scratch = reinterpret_cast<uint8_t*>(
        (reinterpret_cast<uintptr_t>(scratch_.data()) + 255) / 256 * 256);
    const double begin = now();
    check(table_->step.run(device_, nullptr, &a, scratch));
    return now() - begin;
  }

  double plain_read(size_t i, Reader& reader) {
    const pkv_store& store = layers_[i % layers_.size()].store;
    std::vector<const uint8_t*> rows;
    for (int64_t h = 0; h < kHeads; ++h) {
      rows.push_back(static_cast<const uint8_t*>(store.base) + h * store.row_bytes);
    }
    const double begin = now();
    reader.read(rows, n_ * kVoteBytes);
    return now() - begin;
  }

  size_t layers() const { return layers_.size(); }

 private:
  static int64_t store_bytes(const Layer& layer) { return kHeads * layer.store.row_bytes; }

  void fill(std::vector<uint16_t>& x) {
    std::vector<uint16_t> pattern(1 << 16);
    for (uint16_t& v : pattern) v = bf16(random_.bell());
    for (size_t i = 0; i < x.size(); i += pattern.size()) {
      std::copy_n(pattern.begin(), std::min(pattern.size(), x.size() - i),
                  x.begin() + static_cast<int64_t>(i));
    }
  }

  void make_codec() {
    const size_t size = static_cast<size_t>(kHeads * kDim);
    center_.resize(size);
    for (float& x : center_) x = 0.1F * random_.bell();
    ones_.assign(size, 1.0F);
    signs_.resize(kDim);
    for (float& x : signs_) x = (random_.bits() & 1) != 0 ? 1.0F : -1.0F;
    value_sums_.assign(size, 1.0);
    good_counts_.assign(kHeads, n_);
  }

  void make_planes() {
    const int64_t sketches = (n_ + 15) / 16;
    bytes_.resize(static_cast<size_t>(n_ * 48 + 64));
    for (size_t i = 0; i + 8 <= bytes_.size(); i += 8) {
      const uint64_t x = random_.bits();
      std::memcpy(bytes_.data() + i, &x, 8);
    }
    const auto factors = [&](std::vector<uint16_t>& out, int64_t count, float size) {
      out.resize(static_cast<size_t>(count));
      for (uint16_t& f : out) f = bf16(size * (0.6F + 0.8F * random_.uniform()));
    };
    factors(vote_factors_, n_, 0.8F);
    factors(factors_, n_, 0.01F);
    factors(value_factors_, sketches, 0.001F);
  }

  void make_layer(Layer& layer, size_t index) {
    layer.store.capacity = n_;
    check(table_->store_row_bytes(device_, &geometry_, n_, &layer.store.row_bytes));
    check(table_->memory_alloc(device_, PKV_MEMORY_DEVICE, store_bytes(layer), &layer.store.base));
    for (int64_t h = 0; h < kHeads; ++h) {
      if (index > 0 || h > 0) {  // turned round a little, so that no two rows are the same
        const Layer& from = index > 0 ? layers_[0] : layer;
        const int64_t row = index > 0 ? (h + static_cast<int64_t>(index)) % kHeads : 0;
        if (index > 0) {
          std::memcpy(static_cast<uint8_t*>(layer.store.base) + h * layer.store.row_bytes,
                      static_cast<const uint8_t*>(from.store.base) + row * from.store.row_bytes,
                      static_cast<size_t>(layer.store.row_bytes));
          continue;
        }
      }
      import_row(layer, h);
    }
    for (int i = 0; i < 4; ++i) {
      layer.dense[i].resize(static_cast<size_t>(kDense[i / 2] * kHeads * kDim));
      fill(layer.dense[i]);
    }
  }

  void import_row(Layer& layer, int64_t h) {
    for (int64_t i = 0; i < n_ * 2; ++i) {
      bytes_[random_.bits() % bytes_.size()] ^= static_cast<uint8_t>(random_.bits());
    }
    pkv_records records = {};
    records.struct_size = sizeof records;
    records.row_tokens = n_;
    records.signs = bytes_.data();
    records.vote_factors = vote_factors_.data();
    records.codes = bytes_.data();
    records.factors = factors_.data();
    records.value_signs = bytes_.data();
    records.value_codes = bytes_.data();
    records.value_factors = value_factors_.data();
    check(table_->store_import(device_, nullptr, &geometry_, &layer.store, h, 0, n_, &records));
  }

  void make_outputs() {
    positions_.resize(kHeads * kHits);
    counts_.resize(kHeads);
    candidate_counts_.resize(kHeads);
    scores_.resize(kHeads * kHits);
    rest_.resize(kQueryHeads);
    samples_.resize(kQueryHeads * kSamples);
    output_.resize(kQueryHeads * kDim);
    lse_.resize(kQueryHeads);
  }

  static pkv_tensor tensor(void* data, int32_t ndim, const int64_t* shape) {
    pkv_tensor t = {};
    t.data = data;
    t.device_type = PKV_DEVICE_CPU;
    t.ndim = ndim;
    t.dtype = PKV_DTYPE_BF16;
    t.shape = shape;
    return t;
  }

  pkv_step_args args(Layer& layer, int64_t ppm) {
    pkv_codec_params codec = {};
    codec.geometry = &geometry_;
    codec.center = center_.data();
    codec.balance = codec.inv_balance = ones_.data();
    codec.signs_1 = codec.signs_2 = codec.value_signs_1 = codec.value_signs_2 = signs_.data();
    codec.value_center = center_.data();
    pkv_batch batch = {};
    batch.batch = 1;
    batch.sequences = &sequence_;
    batch.lengths = &n_;
    batch.max_length = n_;
    const pkv_tensor queries = tensor(queries_.data(), 3, query_shape_);

    pkv_step_args a = {};
    a.struct_size = sizeof a;
    a.vote.struct_size = sizeof a.vote;
    a.vote.query_heads = a.rerank.query_heads = a.attend.query_heads = kQueryHeads;
    a.vote.vote_group = PKV_VOTE_GROUP_SUM;
    a.vote.rho_of = PKV_RHO_OF_KEYS;
    a.vote.codec = a.rerank.codec = a.attend.codec = codec;
    a.vote.batch = a.select.batch = a.rerank.batch = a.fetch.batch = a.attend.batch = batch;
    a.vote.queries = a.rerank.queries = a.attend.queries = queries;
    a.vote.store = a.rerank.store = a.attend.store = layer.store;
    a.vote.votes_stride = n_;

    a.select.struct_size = sizeof a.select;
    a.select.kv_heads = a.fetch.kv_heads = kHeads;
    a.select.rule.below[0] = INT64_MAX;
    a.select.rule.ppm[0] = ppm;
    a.select.rule.k = kHits;
    a.select.rule.steps = 1;
    a.select.candidates_stride = a.rerank.candidates_stride = a.attend.candidates_stride = stride_;
    a.select.candidates = candidates_.data();
    a.select.candidate_counts = candidate_counts_.data();

    a.rerank.struct_size = sizeof a.rerank;
    a.rerank.rank = PKV_RANK_GROUP;
    a.rerank.k = a.fetch.k = a.attend.k = kHits;
    a.rerank.tail_samples = a.attend.tail_samples = kSamples;
    a.rerank.scale = a.attend.scale = 0.0883883476F;
    a.rerank.candidates = a.attend.candidates = candidates_.data();
    a.rerank.candidate_counts = a.attend.candidate_counts = candidate_counts_.data();
    a.rerank.positions = positions_.data();
    a.rerank.scores = scores_.data();
    a.rerank.counts = counts_.data();
    a.rerank.estimates = estimates_.data();
    a.attend.estimates = estimates_.data();
    if (tail_ != PKV_TAIL_DROP) {
      a.rerank.rest_lse = rest_.data();
      a.attend.rest_lse = rest_.data();
      a.rerank.sample_estimates = samples_.data();
      a.attend.sample_estimates = samples_.data();
    }

    a.fetch.struct_size = sizeof a.fetch;
    a.fetch.positions = a.attend.positions = positions_.data();
    zone_shape_[2] = n_;
    for (int32_t s = 0; s < 3; ++s) zone_strides_[s] = zone_unit(s);
    a.fetch.source_keys = tensor(zone_.data(), 4, zone_shape_);
    a.fetch.source_values = tensor(zone_.data() + kDim, 4, zone_shape_);
    a.fetch.source_keys.strides = a.fetch.source_values.strides = zone_strides_;

    a.attend.struct_size = sizeof a.attend;
    a.attend.tail = tail_;
    a.attend.part_count = 2;
    for (int p = 0; p < 2; ++p) {
      dense_shapes_[p][2] = kDense[p];
      a.attend.parts[p].keys = tensor(layer.dense[2 * p].data(), 4, dense_shapes_[p]);
      a.attend.parts[p].values = tensor(layer.dense[2 * p + 1].data(), 4, dense_shapes_[p]);
    }
    a.attend.counts = counts_.data();
    a.attend.value_sums = value_sums_.data();
    a.attend.good_counts = good_counts_.data();
    a.attend.output = tensor(output_.data(), 3, query_shape_);
    a.attend.lse = lse_.data();
    if (tail_ == kSelectOnly) {
      a.rerank.k = a.fetch.k = 0;
      a.rerank.estimates = a.rerank.rest_lse = a.rerank.sample_estimates = nullptr;
      a.attend = {};
      a.attend.struct_size = sizeof a.attend;
    }
    return a;
  }

  // K and V of a token lie side by side: 512 B.
  int64_t zone_unit(int32_t axis) const {
    const int64_t units[] = {kHeads * n_ * 2 * kDim, n_ * 2 * kDim, 2 * kDim};
    return units[axis];
  }

  pkv_host host_ = {};
  const pkv_backend* table_ = nullptr;
  pkv_backend_device* device_ = nullptr;
  pkv_geometry geometry_ = {};
  Random random_{7};
  int64_t n_;
  int32_t tail_;
  int64_t stride_ = kHits;
  int32_t sequence_ = 0;
  int64_t query_shape_[3] = {1, kQueryHeads, kDim};
  int64_t zone_shape_[4] = {1, kHeads, 0, kDim};
  int64_t zone_strides_[4] = {0, 0, 0, 1};
  int64_t dense_shapes_[2][4] = {{1, kHeads, 0, kDim}, {1, kHeads, 0, kDim}};
  std::vector<Layer> layers_;
  std::vector<float> center_, ones_, signs_;
  std::vector<double> value_sums_;
  std::vector<int64_t> good_counts_;
  std::vector<uint8_t> bytes_, scratch_;
  std::vector<uint16_t> vote_factors_, factors_, value_factors_, zone_, queries_, output_;
  std::vector<int32_t> candidates_, candidate_counts_, positions_, counts_;
  std::vector<float> scores_, estimates_, rest_, samples_, lse_;
};

void step(benchmark::State& state) {
  const int64_t n = state.range(0);
  const int64_t ppm = state.range(1);
  const auto threads = static_cast<int32_t>(state.range(2));
  const int32_t tails[] = {PKV_TAIL_DROP, PKV_TAIL_MEAN, PKV_TAIL_SAMPLED, kSelectOnly};
  World world(n, threads, tails[state.range(3)]);
  world.prepare(ppm);
  std::vector<double> steps;
  std::vector<double> reads;
  size_t i = 0;
  for (auto _ : state) {
    const double time = world.step(i, ppm);
    state.SetIterationTime(time / 1e3);
    if (i >= 3) steps.push_back(time);
    ++i;
  }
  {
    Reader reader(threads);
    for (size_t r = 0; r < steps.size() + 3; ++r) {
      const double time = world.plain_read(i + r, reader);
      if (r >= 3) reads.push_back(time);
    }
  }
  const double step_min = *std::min_element(steps.begin(), steps.end());
  const double read_min = *std::min_element(reads.begin(), reads.end());
  state.counters["step_min"] = step_min;
  state.counters["step_med"] = median(steps);
  state.counters["read_min"] = read_min;
  state.counters["read_med"] = median(reads);
  state.counters["ratio_min"] = step_min / read_min;
  state.counters["ratio_med"] = median(steps) / median(reads);
}

BENCHMARK(step)
    ->Args({32768, 50000, 2, 2})
    ->Args({131072, 20000, 2, 2})
    ->Args({32768, 50000, 1, 2})
    ->Args({131072, 20000, 1, 2})
    ->Args({1048576, 10000, 2, 2})
    ->Args({1048576, 10000, 1, 2})
    ->Args({262144, 1000, 1, 3})
    ->Args({262144, 1000, 2, 3})
    ->Args({131072, 20000, 1, 3})
    ->Args({131072, 20000, 2, 3})
    ->Iterations(60)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
