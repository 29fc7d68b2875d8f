// A zone with its keys in both backends and its K/V in pages, dense parts, queries: what a step of
// the GPU kernels needs, with two codec sets and a sequence named twice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/format/candidates.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/gpu/gpu_store.h"
#include "tests/unit/gpu/run_kernel.h"

namespace pkv::gpu_host {

using test::geometry_of;
using test::Oracle;
using test::Tensor;

inline constexpr double kU = 0x1p-24;
inline constexpr int32_t kSequences = 2;
inline constexpr int32_t kHeads = 2;
inline constexpr int32_t kBatch = 3;
inline constexpr int64_t kTokens = 300;
inline constexpr int64_t kPage = 7;  // tokens of a page of K/V
inline constexpr int64_t kWindow = 50;

// Vectors [sequences, h, n, width] in pages: heads from the last to the first, tokens backwards.
class PagedVectors {
 public:
  explicit PagedVectors(Tensor& source) : tensor_(source.view()) {
    const int64_t* shape = tensor_.shape;
    const int64_t width = shape[3];
    const int64_t per_row = (shape[2] + kPage - 1) / kPage;
    const int64_t page_floats = shape[1] * kPage * width;
    pool_.assign(static_cast<size_t>(shape[0] * per_row * page_floats), test::kNan);
    pages_.table_stride = per_row;
    pages_.page_tokens = kPage;
    pages_.head_bytes = -kPage * width * 4;
    pages_.token_bytes = -width * 4;
    pages_.offset = (page_floats - width) * 4;
    for (int64_t i = 0; i < shape[0] * per_row; ++i) {
      table_.push_back(pool_.data() + (shape[0] * per_row - 1 - i) * page_floats);
    }
    pages_.table = table_.data();
    for (int64_t s = 0; s < shape[0]; ++s) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t t = 0; t < shape[2]; ++t) {
          auto* page = static_cast<std::byte*>(
              const_cast<void*>(table_[static_cast<size_t>(s * per_row + t / kPage)]));
          std::memcpy(page + pages_.offset + h * pages_.head_bytes + t % kPage * pages_.token_bytes,
                      source.row(s, h, t), static_cast<size_t>(width) * 4);
        }
      }
    }
    tensor_.data = nullptr;
  }

  const pkv_pages& pages() const { return pages_; }
  const pkv_tensor& tensor() const { return tensor_; }

 private:
  pkv_tensor tensor_;
  pkv_pages pages_ = {};
  std::vector<float> pool_;
  std::vector<const void*> table_;
};

struct AttendCase {
  int32_t d = 72;
  int32_t dv = 40;
  int32_t group = 3;
  int32_t tail = PKV_TAIL_SAMPLED;
  int32_t bits = 4;
  int32_t stride = 16;
  int32_t samples = 33;
  int32_t k = 20;
};

// What a step writes.
struct StepOutputs {
  std::vector<int32_t> candidates, candidate_counts, positions, counts;
  std::vector<float> scores, estimates, rest_lse, samples, output, lse;
};

class AttendWorld {
 public:
  AttendWorld(const AttendCase& c, const gpu_exec::Options& machine, bool in_pages)
      : c_(c),
        oracle(test::with_sketch(geometry_of(c.d, c.dv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kHeads),
                                 c.bits, c.stride),
               kTokens, kSequences),
        backend(machine),
        store(backend, oracle.geometry, kSequences, kTokens, in_pages),
        keys(Tensor::random({kSequences, kHeads, kTokens, c.d}, 1)),
        values(Tensor::random({kSequences, kHeads, kTokens, c.dv}, 2)),
        recent_keys(Tensor::random({kBatch, kHeads, kWindow, c.d}, 3)),
        recent_values(Tensor::random({kBatch, kHeads, kWindow, c.dv}, 4)),
        queries(Tensor::random({kBatch, kHeads * c.group, c.d}, 5)),
        paged_keys(keys),
        paged_values(values) {
    test::Random random(6);
    add_set(random);
    keys.row(1, 0, 32)[3] = test::kNan;  // a bad key, where samples are
    oracle.encode(keys, values);
    keys.row(1, 0, 32)[3] = 0.0F;
    queries.row(1, 0)[2] = test::kInf;  // a bad query
    add_set(random);                    // the second: other centres of the same records
    for (int64_t row = 0; row < int64_t{kSequences} * kHeads; ++row) {
      const Planes planes(oracle.geometry, kTokens);
      oracle.expect(oracle.table->store_export(oracle.device, nullptr, &oracle.geometry,
                                               &oracle.store, row, 0, kTokens, &planes.records));
      backend.expect(table()->store_import(backend.device(), backend.stream(), &oracle.geometry,
                                           &store.store, row, 0, kTokens, &planes.records));
    }
  }

  int32_t query_heads() const { return kHeads * c_.group; }
  int64_t stride() const {
    return format::candidate_count(format::candidate_rule(100000, c_.k), kTokens) + 3;
  }

  pkv_step_args args(const pkv_store& records, StepOutputs& out) {
    pkv_step_args a = {};
    a.struct_size = sizeof a;
    pkv_codec_params codec = oracle.codec();
    codec.set_of = set_of_.data();
    pkv_batch batch = {};
    batch.batch = kBatch;
    batch.sequences = sequences_.data();
    batch.lengths = lengths_.data();
    batch.max_length = kTokens;

    a.vote.query_heads = a.rerank.query_heads = a.attend.query_heads = query_heads();
    a.vote.codec = a.rerank.codec = a.attend.codec = codec;
    a.vote.batch = a.select.batch = a.rerank.batch = a.fetch.batch = a.attend.batch = batch;
    a.vote.queries = a.rerank.queries = a.attend.queries = queries.view();
    a.vote.store = a.rerank.store = a.attend.store = records;
    a.vote.vote_group = PKV_VOTE_GROUP_SUM;
    a.vote.rho_of = PKV_RHO_OF_KEYS;
    a.vote.votes_stride = a.select.votes_stride = kTokens;
    a.select.kv_heads = a.fetch.kv_heads = kHeads;
    a.select.rule = format::candidate_rule(100000, c_.k);
    a.select.candidates_stride = a.rerank.candidates_stride = a.attend.candidates_stride = stride();
    a.rerank.rank = PKV_RANK_GROUP;
    a.rerank.k = a.fetch.k = a.attend.k = c_.k;
    a.rerank.tail_samples = a.attend.tail_samples = c_.samples;
    a.rerank.scale = a.attend.scale = scale();
    a.rerank.soft_cap = a.attend.soft_cap = kCap;

    a.fetch.source_keys = paged_keys.tensor();
    a.fetch.source_values = paged_values.tensor();
    a.fetch.key_pages = paged_keys.pages();
    a.fetch.value_pages = paged_values.pages();

    a.attend.tail = c_.tail;
    a.attend.part_count = 2;
    a.attend.parts[0].keys = recent_keys.view();
    a.attend.parts[0].values = recent_values.view();
    a.attend.parts[0].lengths = part_lengths_.data();
    window_keys_ = {kBatch, kHeads, 40, c_.d};
    window_values_ = {kBatch, kHeads, 40, c_.dv};
    pkv_part& window = a.attend.parts[1];
    window.keys = paged_keys.tensor();
    window.keys.shape = window_keys_.data();
    window.values = paged_values.tensor();
    window.values.shape = window_values_.data();
    window.key_pages = paged_keys.pages();
    window.value_pages = paged_values.pages();
    window.starts = starts_.data();
    window.lengths = window_lengths_.data();
    a.attend.sink_logits = sinks();
    a.attend.value_sums = oracle.value_sums.data();
    a.attend.good_counts = oracle.good_counts.data();

    point_to(a, out);
    return a;
  }

  // vote, select, rerank.
  template <class Run>
  void retrieve(pkv_step_args& a, const pkv_backend& of, Run run) {
    std::vector<float> votes(static_cast<size_t>(kBatch * kHeads * kTokens));
    a.vote.votes = votes.data();
    a.select.votes = votes.data();
    run(of.vote, a.vote);
    run(of.select, a.select);
    run(of.rerank, a.rerank);
  }
  template <class Run>
  void attend(pkv_step_args& a, const pkv_backend& of, Run run) {
    row_keys_ = Tensor({kBatch, kHeads, c_.k, c_.d});
    row_values_ = Tensor({kBatch, kHeads, c_.k, c_.dv});
    a.fetch.keys = a.attend.row_keys = row_keys_.view();
    a.fetch.values = a.attend.row_values = row_values_.view();
    if (c_.k > 0) run(of.fetch, a.fetch);
    run(of.attend, a.attend);
  }
  // Whether fetch has left the values of the hits.
  bool has_rows_of(const StepOutputs& hits) {
    for (int64_t r = 0; r < int64_t{kBatch} * kHeads; ++r) {
      for (int64_t slot = 0; slot < c_.k; ++slot) {
        const int32_t position = hits.positions[static_cast<size_t>(r * c_.k + slot)];
        const int32_t sequence = sequences_[static_cast<size_t>(r / kHeads)];
        for (int32_t j = 0; j < c_.dv; ++j) {
          const float expected =
              position < 0 ? 0.0F : values.row(sequence, r % kHeads, position)[j];
          if (row_values_.row(r / kHeads, r % kHeads, slot)[j] != expected) return false;
        }
      }
    }
    return true;
  }

  // Bounds of section 3 with the largest magnitudes of the case.
  double logit_bound() {
    const double product =
        norm(queries, c_.d) * std::max(norm(keys, c_.d), norm(recent_keys, c_.d));
    return (c_.d + 2) * kU * static_cast<double>(scale()) * product +
           (8.0 + 2.0) * kU * static_cast<double>(kCap);
  }
  double value_bound() {
    return 1.0 + 1.5 * std::max(norm(values, c_.dv), norm(recent_values, c_.dv));
  }

  static constexpr float kCap = 20.0F;

 private:
  void add_set(test::Random& random) {
    const auto extend = [](std::vector<float>& x, size_t count, auto next) {
      if (x.size() > count) return;
      for (size_t j = 0; j < count; ++j) x.push_back(next());
    };
    const size_t dims = static_cast<size_t>(kHeads * c_.d);
    if (!has_set_) {
      for (float& mu : oracle.center) mu = 0.3F * random.uniform();
      for (float& mu : oracle.value_center) mu = 0.3F * random.uniform();
      has_set_ = true;
      return;
    }
    extend(oracle.center, dims, [&] { return 0.2F * random.uniform(); });
    extend(oracle.balance, dims, [&] { return 1.0F + 0.5F * random.uniform(); });
    extend(oracle.value_center, static_cast<size_t>(kHeads * c_.dv),
           [&] { return 0.5F * random.uniform(); });
  }

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(c_.d)); }

  const float* sinks() {
    sinks_.clear();
    for (int32_t g = 0; g < query_heads(); ++g) {
      sinks_.push_back(g % 3 == 2 ? -test::kInf : 0.5F * static_cast<float>(g % 5));
    }
    return sinks_.data();
  }

  static double norm(Tensor& x, int32_t width) {
    double most = 0.0;
    for (size_t i = 0; i < x.data().size(); i += static_cast<size_t>(width)) {
      double sum = 0.0;
      for (size_t j = i; j < i + static_cast<size_t>(width); ++j) {
        const auto e = static_cast<double>(x.data()[j]);
        if (std::isfinite(e)) sum += e * e;
      }
      most = std::max(most, std::sqrt(sum));
    }
    return most;
  }

  void point_to(pkv_step_args& a, StepOutputs& out) {
    const auto heads = static_cast<size_t>(kBatch * query_heads());
    const auto rows = static_cast<size_t>(kBatch * kHeads);
    const auto width = static_cast<size_t>(stride());
    const auto k = static_cast<size_t>(c_.k);
    const auto fill = [](auto& x, size_t count) {
      if (x.size() != count) x.assign(count, -7);
      return x.data();
    };
    a.select.candidates = fill(out.candidates, rows * width);
    a.select.candidate_counts = fill(out.candidate_counts, rows);
    a.rerank.candidates = a.attend.candidates = out.candidates.data();
    a.rerank.candidate_counts = a.attend.candidate_counts = out.candidate_counts.data();
    a.rerank.positions = fill(out.positions, rows * k);
    a.fetch.positions = a.attend.positions = out.positions.data();
    a.rerank.scores = fill(out.scores, rows * k);
    a.rerank.counts = fill(out.counts, rows);
    a.attend.counts = out.counts.data();
    a.rerank.estimates = fill(out.estimates, heads * width);
    a.attend.estimates = out.estimates.data();
    a.rerank.rest_lse = fill(out.rest_lse, heads);
    a.attend.rest_lse = out.rest_lse.data();
    a.rerank.sample_estimates = fill(out.samples, heads * static_cast<size_t>(c_.samples));
    a.attend.sample_estimates = out.samples.data();
    output_shape_ = {kBatch, query_heads(), c_.dv};
    a.attend.output.data = fill(out.output, heads * static_cast<size_t>(c_.dv));
    a.attend.output.ndim = 3;
    a.attend.output.dtype = PKV_DTYPE_F32;
    a.attend.output.device_type = PKV_DEVICE_CPU;
    a.attend.output.shape = output_shape_.data();
    a.attend.lse = fill(out.lse, heads);
  }

  AttendCase c_;
  bool has_set_ = false;
  std::vector<int32_t> set_of_ = {1, 0, 1};
  std::vector<int32_t> sequences_ = {1, 0, 1};
  std::vector<int64_t> lengths_ = {kTokens, 129, 64};
  std::vector<int64_t> part_lengths_ = {kWindow, 0, 11};
  std::vector<int64_t> starts_ = {259, 0, 13};
  std::vector<int64_t> window_lengths_ = {40, 3, 30};
  std::vector<int64_t> window_keys_, window_values_, output_shape_;
  std::vector<float> sinks_;

 public:
  Oracle oracle;
  Backend backend;
  GpuStore store;
  Tensor keys, values, recent_keys, recent_values, queries;
  PagedVectors paged_keys, paged_values;

 private:
  Tensor row_keys_, row_values_;
};

}  // namespace pkv::gpu_host
