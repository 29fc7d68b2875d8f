// One index held by cpu_ref, driven through its table: owns codec, store and running sums, and
// calls a stage in one line. Any status but PKV_OK is thrown as the text that cpu_ref left.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu_ref/device.h"
#include "core/format/candidates.h"
#include "core/format/philox.h"
#include "core/format/records.h"

namespace pkv::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Uniform numbers in (-1, 1) with 24 bits, from integers alone.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed) {}
  uint32_t bits() {
    state_ = state_ * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return static_cast<uint32_t>(state_ >> 32);
  }
  float uniform() {
    const auto odd = static_cast<int32_t>(bits() >> 8) * 2 + 1 - (1 << 24);
    return static_cast<float>(odd) * 0x1p-24F;
  }
  // Sum of 4 uniform numbers: bell shaped, variance 4/3.
  float bell() { return (uniform() + uniform()) + (uniform() + uniform()); }

 private:
  uint64_t state_;
};

// A dense tensor that owns its elements.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::initializer_list<int64_t> shape) : shape_(shape), data_(element_count()) {}

  // Bell-shaped elements.
  static Tensor random(std::initializer_list<int64_t> shape, uint32_t seed) {
    Tensor tensor(shape);
    Random random(seed);
    for (float& x : tensor.data_) x = random.bell();
    return tensor;
  }

  // The row along the last axis at the given leading indices.
  template <class... Index>
  float* row(Index... index) {
    const int64_t leading[] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    size_t axis = 0;
    for (const int64_t i : leading) offset = offset * shape_[axis++] + i;
    return data_.data() + offset * shape_.back();
  }

  std::vector<float>& data() { return data_; }

  // ndim 0 if default constructed.
  pkv_tensor view() {
    pkv_tensor result = {};
    result.data = data_.data();
    result.device_type = PKV_DEVICE_CPU;
    result.ndim = static_cast<int32_t>(shape_.size());
    result.dtype = PKV_DTYPE_F32;
    result.shape = shape_.data();
    return result;
  }

 private:
  size_t element_count() const {
    size_t count = 1;
    for (const int64_t extent : shape_) count *= static_cast<size_t>(extent);
    return count;
  }

  std::vector<int64_t> shape_;
  std::vector<float> data_;
};

inline pkv_geometry geometry_of(int32_t d, int32_t dv = 0, int32_t codec = PKV_CODEC_SCALAR4,
                                int32_t vote = PKV_VOTE_GRADED, int32_t kv_heads = 1) {
  pkv_geometry geometry = {};
  geometry.struct_size = sizeof geometry;
  geometry.kv_heads = kv_heads;
  geometry.head_dim = d;
  geometry.value_dim = dv;
  geometry.v_source = dv == 0 ? PKV_V_SOURCE_NONE : PKV_V_SOURCE_OWN;
  geometry.codec = codec;
  geometry.vote = vote;
  geometry.rounds = 1;
  geometry.seed = 20250101;
  return geometry;
}

inline pkv_geometry with_sketch(pkv_geometry geometry, int32_t bits, int32_t stride = 1) {
  geometry.sketch_bits = bits;
  geometry.sketch_stride = bits == 0 ? 0 : stride;
  return geometry;
}

inline std::vector<float> sign_vector(uint64_t seed, uint32_t stream, int32_t count) {
  std::vector<float> signs;
  for (int32_t j = 0; j < count; ++j) signs.push_back(format::sign_element(seed, stream, j));
  return signs;
}

// What rerank delivers.
struct Hits {
  std::vector<int32_t> positions;       // [b * h, k]
  std::vector<float> scores;            // [b * h, k]
  std::vector<int32_t> counts;          // [b * h]
  std::vector<float> estimates;         // [b, hq, candidates_stride]
  std::vector<float> rest_lse;          // [b, hq]
  std::vector<float> sample_estimates;  // [b, hq, tail_samples]
};

// What select delivers.
struct Candidates {
  std::vector<int32_t> positions;  // [b * h, stride]
  std::vector<int32_t> counts;     // [b * h]
  int64_t stride = 0;
};

class Oracle {
 public:
  Oracle(const pkv_geometry& shape, int64_t capacity, int32_t sequences = 1)
      : geometry(shape),
        table(pkv_cpu_ref_query(PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR, &host_)) {
    host_.struct_size = sizeof host_;
    host_.user = this;
    host_.report = [](const pkv_host* host, const char* text) {
      static_cast<Oracle*>(host->user)->reported = text;
    };
    expect(table->device_open(&host_, 0, &device));
    const auto d = static_cast<size_t>(geometry.head_dim);
    const auto dv = static_cast<size_t>(geometry.value_dim);
    const auto h = static_cast<size_t>(geometry.kv_heads);
    const auto rows = static_cast<size_t>(sequences) * h;
    center.assign(h * d, 0.0F);
    balance.assign(h * d, 1.0F);
    value_center.assign(h * dv, 0.0F);
    signs_1 = sign_vector(geometry.seed, format::kStreamKey1, geometry.head_dim);
    signs_2 = sign_vector(geometry.seed, format::kStreamKey2, geometry.head_dim);
    value_signs_1 = sign_vector(geometry.seed, format::kStreamValue1, geometry.value_dim);
    value_signs_2 = sign_vector(geometry.seed, format::kStreamValue2, geometry.value_dim);
    occupancy.assign(rows * (d / 8) * 256, 0);
    value_sums.assign(rows * dv, 0.0);
    good_counts.assign(rows, 0);
    store.capacity = capacity;
    expect(table->store_row_bytes(device, &geometry, capacity, &store.row_bytes));
    store_bytes_ = std::max<int64_t>(256, store.row_bytes * static_cast<int64_t>(rows));
    expect(table->memory_alloc(device, PKV_MEMORY_DEVICE, store_bytes_, &store.base));
    expect(table->memory_fill(device, nullptr, store.base, 0xA5, store_bytes_));
  }
  ~Oracle() {
    table->memory_free(device, PKV_MEMORY_DEVICE, store.base, store_bytes_);
    table->device_close(device);
  }
  Oracle(const Oracle&) = delete;
  Oracle& operator=(const Oracle&) = delete;

  pkv_codec_params codec() {
    inv_balance.clear();
    for (const float s : balance) inv_balance.push_back(1.0F / s);
    pkv_codec_params params = {};
    params.geometry = &geometry;
    params.center = center.data();
    params.balance = balance.data();
    params.inv_balance = inv_balance.data();
    params.signs_1 = signs_1.data();
    params.signs_2 = signs_2.data();
    params.value_center = value_center.data();
    params.value_signs_1 = value_signs_1.data();
    params.value_signs_2 = value_signs_2.data();
    return params;
  }

  // supports, scratch_bytes, run with poisoned scratch of exactly that size.
  template <class Slots, class Args>
  void run(const Slots& slots, const Args& args) {
    expect(slots.supports(device, &args));
    int64_t bytes = -1;
    expect(slots.scratch_bytes(device, &args, &bytes));
    void* scratch = nullptr;
    if (bytes > 0) {
      expect(table->memory_alloc(device, PKV_MEMORY_DEVICE, bytes, &scratch));
      std::memset(scratch, 0xA5, static_cast<size_t>(bytes));
    }
    const pkv_status status = slots.run(device, nullptr, &args, scratch);
    if (scratch != nullptr) table->memory_free(device, PKV_MEMORY_DEVICE, scratch, bytes);
    expect(status);
  }

  // keys [b, h, t, d], values [b, h, t, dv] or empty: all t tokens of entry i go to sequence
  // sequences[i] (default: i) from `start`. Returns first_bad [b, h].
  std::vector<int64_t> encode(const pkv_tensor& keys, const pkv_tensor& values, int64_t start = 0,
                              std::vector<int32_t> sequences = {}) {
    const auto b = static_cast<size_t>(keys.shape[0]);
    if (sequences.empty()) sequences = first(b);
    const std::vector<int64_t> starts(b, start);
    const std::vector<int64_t> counts(b, keys.shape[2]);
    std::vector<int64_t> first_bad(b * static_cast<size_t>(geometry.kv_heads), -2);
    pkv_encode_args args = {};
    args.struct_size = sizeof args;
    args.batch = static_cast<int32_t>(b);
    args.codec = codec();
    args.keys = keys;
    args.values = values;
    args.sequences = sequences.data();
    args.starts = starts.data();
    args.counts = counts.data();
    args.store = store;
    args.occupancy = geometry.vote == PKV_VOTE_TIER ? occupancy.data() : nullptr;
    args.value_sums = values.ndim == 0 ? nullptr : value_sums.data();
    args.good_counts = good_counts.data();
    args.first_bad = first_bad.data();
    run(table->encode, args);
    return first_bad;
  }
  std::vector<int64_t> encode(Tensor& keys) { return encode(keys.view(), pkv_tensor{}); }
  std::vector<int64_t> encode(Tensor& keys, Tensor& values) {
    return encode(keys.view(), values.view());
  }

  // queries [b, hq, d]; sequence i has lengths[i] keys. Returns [b * h, max length], NaN beyond.
  std::vector<float> vote(Tensor& queries, const std::vector<int64_t>& lengths,
                          int32_t vote_group = PKV_VOTE_GROUP_SUM,
                          int32_t rho_of = PKV_RHO_OF_KEYS) {
    pkv_vote_args args = {};
    args.struct_size = sizeof args;
    args.queries = queries.view();
    args.query_heads = static_cast<int32_t>(args.queries.shape[1]);
    args.vote_group = vote_group;
    args.rho_of = rho_of;
    args.codec = codec();
    args.batch = batch_of(lengths);
    args.store = store;
    args.occupancy = geometry.vote == PKV_VOTE_TIER ? occupancy.data() : nullptr;
    args.votes_stride = args.batch.max_length;
    std::vector<float> votes(
        lengths.size() * static_cast<size_t>(geometry.kv_heads * args.votes_stride), kNan);
    args.votes = votes.data();
    run(table->vote, args);
    return votes;
  }

  // votes [b * h, votes_stride], votes_stride the largest length.
  Candidates select(const std::vector<float>& votes, const std::vector<int64_t>& lengths,
                    const pkv_candidate_rule& rule, int64_t extra_stride = 0) {
    pkv_select_args args = {};
    args.struct_size = sizeof args;
    args.kv_heads = geometry.kv_heads;
    args.batch = batch_of(lengths);
    args.rule = rule;
    args.votes = votes.data();
    args.votes_stride = args.batch.max_length;
    Candidates result;
    result.stride = extra_stride;
    for (int64_t n = 0; n <= args.batch.max_length; ++n) {
      result.stride = std::max(result.stride, format::candidate_count(rule, n) + extra_stride);
    }
    const size_t rows = lengths.size() * static_cast<size_t>(geometry.kv_heads);
    result.positions.assign(rows * static_cast<size_t>(result.stride), -7);
    result.counts.assign(rows, -7);
    args.candidates = result.positions.data();
    args.candidates_stride = result.stride;
    args.candidate_counts = result.counts.data();
    run(table->select, args);
    return result;
  }

  // Default arguments of rerank; change what a test is about, then call rerank().
  pkv_rerank_args rerank_args(Tensor& queries, const std::vector<int64_t>& lengths,
                              const Candidates& candidates, int32_t k) {
    pkv_rerank_args args = {};
    args.struct_size = sizeof args;
    args.queries = queries.view();
    args.query_heads = static_cast<int32_t>(args.queries.shape[1]);
    args.rank = PKV_RANK_GROUP;
    args.k = k;
    args.tail_samples = 512;
    args.scale = 1.0F / std::sqrt(static_cast<float>(geometry.head_dim));
    args.codec = codec();
    args.batch = batch_of(lengths);
    args.store = store;
    args.candidates = candidates.positions.data();
    args.candidates_stride = candidates.stride;
    args.candidate_counts = candidates.counts.data();
    return args;
  }
  Hits rerank(pkv_rerank_args args, bool with_tail = true) {
    const auto b = static_cast<size_t>(args.batch.batch);
    const auto rows = b * static_cast<size_t>(geometry.kv_heads);
    const auto heads = b * static_cast<size_t>(args.query_heads);
    Hits hits;
    hits.positions.assign(rows * static_cast<size_t>(args.k), -7);
    hits.scores.assign(rows * static_cast<size_t>(args.k), kNan);
    hits.counts.assign(rows, -7);
    args.positions = hits.positions.data();
    args.scores = hits.scores.data();
    args.counts = hits.counts.data();
    if (with_tail) {
      hits.estimates.assign(heads * static_cast<size_t>(args.candidates_stride), kNan);
      hits.rest_lse.assign(heads, kNan);
      hits.sample_estimates.assign(heads * static_cast<size_t>(args.tail_samples), -7.0F);
      args.estimates = hits.estimates.data();
      args.rest_lse = hits.rest_lse.data();
      args.sample_estimates = hits.sample_estimates.data();
    }
    run(table->rerank, args);
    return hits;
  }

  // The records of one token, read through export; value parts are 0 without a sketch there.
  struct Record {
    std::vector<uint8_t> signs, codes, value_signs, value_codes;
    std::vector<uint16_t> factors;
    uint16_t vote_factor = 0, value_factor = 0, value_norm = 0;
  };
  Record record(int64_t row, int64_t position) {
    const format::RecordSizes sizes = format::record_sizes(geometry);
    Record out;
    out.signs.resize(static_cast<size_t>(sizes.signs));
    out.codes.resize(static_cast<size_t>(sizes.codes));
    out.value_signs.resize(static_cast<size_t>(sizes.value_signs));
    out.value_codes.resize(static_cast<size_t>(sizes.value_codes));
    out.factors.resize(static_cast<size_t>(sizes.factors / 2));
    pkv_records records = {};
    records.struct_size = sizeof records;
    records.row_tokens = 1;
    records.signs = out.signs.data();
    records.vote_factors = &out.vote_factor;
    records.codes = out.codes.data();
    records.factors = out.factors.data();
    records.value_signs = out.value_signs.data();
    records.value_codes = out.value_codes.data();
    records.value_factors = &out.value_factor;
    records.value_norms = &out.value_norm;
    expect(table->store_export(device, nullptr, &geometry, &store, row, position, 1, &records));
    return out;
  }

  // Sequences 0, 1, .. with these lengths.
  pkv_batch batch_of(const std::vector<int64_t>& lengths) {
    lengths_ = lengths;
    sequences_ = first(lengths.size());
    pkv_batch batch = {};
    batch.batch = static_cast<int32_t>(lengths.size());
    batch.sequences = sequences_.data();
    batch.lengths = lengths_.data();
    for (const int64_t n : lengths) batch.max_length = std::max(batch.max_length, n);
    return batch;
  }

  void expect(pkv_status status) const {
    if (status != PKV_OK) throw std::runtime_error(reported);
  }

 private:
  pkv_host host_ = {};
  int64_t store_bytes_ = 0;
  std::vector<int64_t> lengths_;
  std::vector<int32_t> sequences_;

  static std::vector<int32_t> first(size_t count) {
    std::vector<int32_t> result;
    for (size_t i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(i));
    return result;
  }

 public:
  pkv_geometry geometry;
  const pkv_backend* table;
  pkv_backend_device* device = nullptr;
  pkv_store store = {};
  std::string reported;
  std::vector<float> center, balance, inv_balance, value_center;
  std::vector<float> signs_1, signs_2, value_signs_1, value_signs_2;
  std::vector<int32_t> occupancy;    // [rows, d/8, 256]
  std::vector<double> value_sums;    // [rows, dv]
  std::vector<int64_t> good_counts;  // [rows]
};

// All of the first `count` positions as candidates of one row.
inline Candidates all_candidates(int32_t count) {
  Candidates result;
  for (int32_t i = 0; i < count; ++i) result.positions.push_back(i);
  result.counts = {count};
  result.stride = count;
  return result;
}

}  // namespace pkv::test
