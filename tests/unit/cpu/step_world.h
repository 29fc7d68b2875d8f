// A zone with its keys in both backends, dense parts, queries: what a step needs, and the stages
// that make one, on either backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/format/candidates.h"
#include "tests/unit/cpu/twin.h"

namespace pkv::test {

struct StepCase {
  std::string name;
  int32_t d = 64;
  int32_t dv = 64;
  int32_t group = 4;
  int32_t kv_heads = 2;
  int64_t n = 500;
  int32_t k = 20;
  int32_t codec = PKV_CODEC_SCALAR4;
  int32_t vote = PKV_VOTE_GRADED;
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int32_t rank = PKV_RANK_GROUP;
  int32_t tail = PKV_TAIL_SAMPLED;
  int32_t sketch_bits = 4;
  int32_t sketch_stride = 16;
  int32_t tail_samples = 64;
  int32_t rounds = 1;
  bool norms = false;
  bool is_k_prefix = false;
  double share = 0.0;
  pkv_dtype dtype = PKV_DTYPE_BF16;
  int64_t ppm = 100000;
  float spread = 1.0F;           // of queries: large ones make sharp softmaxes
  int64_t cluster = 0;           // the first keys are one that all queries want
  int64_t page = 0;              // of the store; then the K/V are in pages too. 0: nothing is
  bool has_sets = false;         // a codec set per entry
  bool is_one_sequence = false;  // both entries name the second
  float soft_cap = 0.0F;
  bool has_sinks = false;
};

// K/V of a strided view in pages of 16, at positions of choice.
class PagedView {
 public:
  static constexpr int64_t kTokens = 16;

  PagedView() = default;
  // `t` [entries, h, tokens, width]; pages for positions below `end` of `sequences`.
  PagedView(const pkv_tensor& t, int64_t sequences, int64_t end) : tensor_(t) {
    const int64_t size = t.dtype == PKV_DTYPE_F32 ? 4 : 2;
    pages_.table_stride = end / kTokens + 1;
    pages_.page_tokens = kTokens;
    pages_.head_bytes = t.strides[1] * size;
    pages_.token_bytes = t.strides[2] * size;
    pages_.offset = 2 * size;  // taken off again below
    entry_bytes_ = t.strides[0] * size;
    table_.assign(static_cast<size_t>(sequences * pages_.table_stride), nullptr);
  }
  // Tokens [0, count) of an entry are those at `start`.. of a sequence.
  void put(int64_t entry, int64_t sequence, int64_t start, int64_t count) {
    const auto* first = static_cast<const std::byte*>(tensor_.data) + tensor_.byte_offset +
                        entry * entry_bytes_ - pages_.offset;
    for (int64_t p = start / kTokens; p * kTokens < start + count; ++p) {
      table_[static_cast<size_t>(sequence * pages_.table_stride + p)] =
          first + (p * kTokens - start) * pages_.token_bytes;
    }
  }
  pkv_pages pages() {
    pages_.table = table_.data();
    return pages_;
  }

 private:
  pkv_tensor tensor_ = {};
  pkv_pages pages_ = {};
  int64_t entry_bytes_ = 0;
  std::vector<const void*> table_;
};

// Everything that a step writes.
struct StepOutputs {
  std::vector<int32_t> candidates, candidate_counts, positions, counts;
  std::vector<float> scores, estimates, rest_lse, sample_estimates, output, lse;
};

class StepWorld {
 public:
  static constexpr int32_t kBatch = 2;
  static constexpr int64_t kSink = 5;
  static constexpr int64_t kRecent = 70;

  explicit StepWorld(const StepCase& c)
      : c_(c),
        twin(geometry(c), c.n, kBatch),
        keys(Tensor::random({kBatch, c.kv_heads, c.n, c.d}, 1)),
        values(Tensor::random({kBatch, c.kv_heads, c.n, c.dv}, 2)),
        sink_keys(Tensor::random({kBatch, c.kv_heads, kSink, c.d}, 3)),
        sink_values(Tensor::random({kBatch, c.kv_heads, kSink, c.dv}, 4)),
        recent_keys(Tensor::random({kBatch, c.kv_heads, kRecent, c.d}, 5)),
        recent_values(Tensor::random({kBatch, c.kv_heads, kRecent, c.dv}, 6)),
        queries(Tensor::random({kBatch, c.kv_heads * c.group, c.d}, 7)) {
    for (float& x : queries.data()) x *= c.spread;
    Random random(8);
    for (float& mu : twin.ref.center) mu = 0.3F * random.uniform();
    for (float& s : twin.ref.balance) s = 1.0F + 0.5F * random.uniform();
    for (float& mu : twin.ref.value_center) mu = 0.3F * random.uniform();
    if (c.n > 40) {
      keys.row(0, 0, 3)[1] = kNan;  // bad keys, one of them a sample
      keys.row(1, c.kv_heads - 1, 32)[0] = kInf;
      std::fill_n(keys.row(0, 0, 9), c.d, 0.0F);
    }
    twin.set("threads", "3");
    for (int64_t token = 0; token < c.cluster; ++token) {
      for (int32_t i = 0; i < kBatch * c.kv_heads; ++i) {
        const float* query = queries.row(i / c.kv_heads, i % c.kv_heads * c.group);
        float* key = keys.row(i / c.kv_heads, i % c.kv_heads, token);
        for (int32_t j = 0; j < c.d; ++j) key[j] = query[j];
      }
    }
    views_.reserve(8);
    for (Tensor* t : {&keys, &values, &sink_keys, &sink_values, &recent_keys, &recent_values}) {
      views_.emplace_back(*t, c.dtype, 5);
    }
    views_.emplace_back(queries, c.dtype, 3);
    if (c.is_k_prefix) use_prefixes();
    twin.ref.encode(keys, values);
    if (c.page > 0) twin.use_pages(c.page);
    twin.copy_records(c.n);
    for (int32_t head = 0; head < query_heads(); ++head) {
      sinks_.push_back(head % 3 == 2 ? -kInf : 2.0F * random.uniform());
    }
    lengths_ = {c.n, c.n - std::min<int64_t>(c.n, 37)};
    part_lengths_ = {kRecent, kRecent - 9};
  }

  // The stages of cpu_ref, one after the other.
  StepOutputs run_ref() {
    pkv_step_args a = args(twin.ref.store);
    StepOutputs out = outputs(a);
    run_stages(
        a, out, [&](const auto& slots, const auto& stage) { twin.ref.run(slots, stage); },
        *twin.ref.table);
    return out;
  }
  StepOutputs run_cpu_stages() {
    pkv_step_args a = args(twin.store);
    StepOutputs out = outputs(a);
    run_stages(
        a, out, [&](const auto& slots, const auto& stage) { twin.run(slots, stage); }, *twin.cpu);
    return out;
  }
  // One stage of cpu on what cpu_ref's stages found.
  StepOutputs run_cpu_rerank(const StepOutputs& found) {
    pkv_step_args a = args(twin.store);
    StepOutputs out = outputs(a);
    out.candidates = found.candidates;
    out.candidate_counts = found.candidate_counts;
    point_to(a, out);
    twin.run(twin.cpu->rerank, a.rerank);
    return out;
  }
  StepOutputs run_cpu_attend(const StepOutputs& found) {
    pkv_step_args a = args(twin.store);
    StepOutputs out = found;
    point_to(a, out);
    fetch_and_attend(
        a, [&](const auto& slots, const auto& stage) { twin.run(slots, stage); }, *twin.cpu);
    return out;
  }
  StepOutputs run_cpu_step() {
    pkv_step_args a = args(twin.store);
    StepOutputs out = outputs(a);
    point_to(a, out);
    twin.run(twin.cpu->step, a);
    return out;
  }

  int64_t stride() const {
    return format::candidate_count(format::candidate_rule(c_.ppm, c_.k), c_.n) + 2;
  }
  int32_t query_heads() const { return c_.kv_heads * c_.group; }

 private:
  static pkv_geometry geometry(const StepCase& c) {
    pkv_geometry g = geometry_of(c.d, c.dv, c.codec, c.vote, c.kv_heads);
    g.rounds = c.rounds;
    g.value_norm = c.norms ? 1 : 0;
    if (c.is_k_prefix) g.v_source = PKV_V_SOURCE_K_PREFIX;
    return with_sketch(g, c.sketch_bits, c.sketch_stride);
  }

  // V is the first dv coordinates of K.
  void use_prefixes() {
    Tensor* from[] = {&keys, &sink_keys, &recent_keys};
    Tensor* to[] = {&values, &sink_values, &recent_values};
    for (int i = 0; i < 3; ++i) {
      const size_t rows = to[i]->data().size() / static_cast<size_t>(c_.dv);
      for (size_t row = 0; row < rows; ++row) {
        std::copy_n(from[i]->data().data() + row * static_cast<size_t>(c_.d), c_.dv,
                    to[i]->data().data() + row * static_cast<size_t>(c_.dv));
      }
    }
  }

  pkv_tensor value_view(size_t i, pkv_tensor& shape_of) {
    if (!c_.is_k_prefix) return views_[i + 1].tensor();
    pkv_tensor view = views_[i].tensor();
    view.shape = shape_of.shape;
    return view;
  }

  pkv_step_args args(const pkv_store& store) {
    pkv_step_args a = {};
    a.struct_size = sizeof a;
    const pkv_codec_params codec = twin.ref.codec();
    const pkv_batch batch = twin.ref.batch_of(lengths_);
    const pkv_tensor q = views_[6].tensor();

    a.vote.struct_size = sizeof a.vote;
    a.vote.query_heads = query_heads();
    a.vote.vote_group = c_.vote_group;
    a.vote.rho_of = PKV_RHO_OF_KEYS;
    a.vote.codec = codec;
    a.vote.batch = batch;
    a.vote.queries = q;
    a.vote.store = store;
    a.vote.occupancy = c_.vote == PKV_VOTE_TIER ? twin.ref.occupancy.data() : nullptr;
    a.vote.votes_stride = batch.max_length;

    a.select.struct_size = sizeof a.select;
    a.select.kv_heads = c_.kv_heads;
    a.select.batch = batch;
    a.select.rule = format::candidate_rule(c_.ppm, c_.k);
    a.select.votes_stride = batch.max_length;
    a.select.candidates_stride = stride();

    a.rerank.struct_size = sizeof a.rerank;
    a.rerank.query_heads = query_heads();
    a.rerank.rank = c_.rank;
    a.rerank.k = c_.k;
    a.rerank.k_min = 2;
    a.rerank.tail_samples = c_.tail_samples;
    a.rerank.weigh_norms = c_.norms ? 1 : 0;
    a.rerank.scale = 1.0F / std::sqrt(static_cast<float>(c_.d));
    a.rerank.share = c_.share;
    a.rerank.codec = codec;
    a.rerank.batch = batch;
    a.rerank.queries = q;
    a.rerank.store = store;
    a.rerank.candidates_stride = stride();

    a.fetch.struct_size = sizeof a.fetch;
    a.fetch.kv_heads = c_.kv_heads;
    a.fetch.batch = batch;
    a.fetch.k = c_.k;
    pkv_tensor zone_values = values.view();
    a.fetch.source_keys = views_[0].tensor();
    a.fetch.source_values = value_view(0, zone_values);

    a.attend.struct_size = sizeof a.attend;
    a.attend.query_heads = query_heads();
    a.attend.tail = c_.tail;
    a.attend.part_count = 2;
    a.attend.scale = a.rerank.scale;
    a.attend.k = c_.k;
    a.attend.tail_samples = c_.tail_samples;
    a.attend.codec = codec;
    a.attend.batch = batch;
    a.attend.queries = q;
    pkv_tensor sink = sink_values.view();
    pkv_tensor recent = recent_values.view();
    a.attend.parts[0].keys = views_[2].tensor();
    a.attend.parts[0].values = value_view(2, sink);
    a.attend.parts[1].keys = views_[4].tensor();
    a.attend.parts[1].values = value_view(4, recent);
    a.attend.parts[1].lengths = part_lengths_.data();
    a.attend.candidates_stride = stride();
    a.attend.value_sums = twin.ref.value_sums.data();
    a.attend.good_counts = twin.ref.good_counts.data();
    a.attend.store = store;
    if (c_.has_sets) use_sets(a);
    if (c_.is_one_sequence) {
      for (pkv_batch* b :
           {&a.vote.batch, &a.select.batch, &a.rerank.batch, &a.fetch.batch, &a.attend.batch}) {
        b->sequences = kSecond;
      }
    }
    a.rerank.soft_cap = a.attend.soft_cap = c_.soft_cap;
    if (c_.has_sinks) a.attend.sink_logits = sinks_.data();
    if (c_.page > 0) use_pages(a);
    return a;
  }

  // Entry 0 has another fit than the one that the records were made with.
  void use_sets(pkv_step_args& a) {
    const auto doubled = [](std::vector<float>& to, const std::vector<float>& from, float factor) {
      to = from;
      for (const float x : from) to.push_back(factor * x);
    };
    doubled(center_, twin.ref.center, -0.5F);
    doubled(balance_, twin.ref.balance, 0.5F);
    doubled(inv_balance_, twin.ref.inv_balance, 2.0F);
    doubled(value_center_, twin.ref.value_center, 3.0F);
    for (pkv_codec_params* codec : {&a.vote.codec, &a.rerank.codec, &a.attend.codec}) {
      codec->center = center_.data();
      codec->balance = balance_.data();
      codec->inv_balance = inv_balance_.data();
      codec->value_center = value_center_.data();
      codec->set_of = kSets;
    }
  }

  // The zone's K/V where they are, parts apart from one another.
  void use_pages(pkv_step_args& a) {
    paged_.clear();
    paged_.reserve(6);
    const auto add = [&](pkv_tensor& t, pkv_pages& pages, const int64_t* counts) {
      constexpr int64_t kApart = 96;
      const bool is_zone = counts == nullptr;
      PagedView& view = paged_.emplace_back(t, kBatch, is_zone ? c_.n : kBatch * kApart);
      for (int32_t i = 0; i < kBatch; ++i) {
        starts_[i] = kApart * i + 3;
        if (is_zone) {
          view.put(i, i, 0, c_.n);
        } else {
          view.put(i, a.attend.batch.sequences[i], starts_[i], counts[i]);
        }
      }
      t.data = nullptr;
      t.byte_offset = 0;
      pages = view.pages();
    };
    const int64_t sinks[kBatch] = {kSink, kSink};
    if (c_.k > 0) {
      add(a.fetch.source_keys, a.fetch.key_pages, nullptr);
      add(a.fetch.source_values, a.fetch.value_pages, nullptr);
    }
    for (int p = 0; p < 2; ++p) {
      pkv_part& part = a.attend.parts[p];
      add(part.keys, part.key_pages, p == 0 ? sinks : part.lengths);
      add(part.values, part.value_pages, p == 0 ? sinks : part.lengths);
      part.starts = starts_;
    }
  }

  StepOutputs outputs(const pkv_step_args& a) {
    const auto heads = static_cast<size_t>(kBatch * query_heads());
    const auto rows = static_cast<size_t>(kBatch * c_.kv_heads);
    const auto width = static_cast<size_t>(stride());
    const auto k = static_cast<size_t>(a.rerank.k);
    StepOutputs out;
    out.candidates.assign(rows * width, -7);
    out.candidate_counts.assign(rows, -7);
    out.positions.assign(rows * k, -7);
    out.counts.assign(rows, -7);
    out.scores.assign(rows * k, -7.0F);
    out.estimates.assign(heads * width, -7.0F);
    out.rest_lse.assign(heads, -7.0F);
    out.sample_estimates.assign(heads * static_cast<size_t>(c_.tail_samples), -7.0F);
    out.output.assign(heads * static_cast<size_t>(c_.dv), -7.0F);
    out.lse.assign(heads, -7.0F);
    return out;
  }

  void point_to(pkv_step_args& a, StepOutputs& out) {
    output_shape_ = {kBatch, query_heads(), c_.dv};
    a.select.candidates = out.candidates.data();
    a.select.candidate_counts = out.candidate_counts.data();
    a.rerank.candidates = out.candidates.data();
    a.rerank.candidate_counts = out.candidate_counts.data();
    a.rerank.positions = out.positions.data();
    a.rerank.scores = out.scores.data();
    a.rerank.counts = out.counts.data();
    a.rerank.estimates = out.estimates.data();
    a.rerank.rest_lse = out.rest_lse.data();
    a.rerank.sample_estimates = out.sample_estimates.data();
    a.fetch.positions = out.positions.data();
    a.attend.positions = out.positions.data();
    a.attend.counts = out.counts.data();
    a.attend.candidates = out.candidates.data();
    a.attend.candidate_counts = out.candidate_counts.data();
    a.attend.estimates = out.estimates.data();
    a.attend.rest_lse = out.rest_lse.data();
    a.attend.sample_estimates = out.sample_estimates.data();
    a.attend.output.data = out.output.data();
    a.attend.output.device_type = PKV_DEVICE_CPU;
    a.attend.output.ndim = 3;
    a.attend.output.dtype = PKV_DTYPE_F32;
    a.attend.output.shape = output_shape_.data();
    a.attend.lse = out.lse.data();
  }

  template <class Run>
  void run_stages(pkv_step_args& a, StepOutputs& out, Run run, const pkv_backend& table) {
    std::vector<float> votes(
        static_cast<size_t>(kBatch * c_.kv_heads * std::max<int64_t>(1, a.vote.votes_stride)));
    point_to(a, out);
    a.vote.votes = votes.data();
    a.select.votes = votes.data();
    run(table.vote, a.vote);
    run(table.select, a.select);
    run(table.rerank, a.rerank);
    fetch_and_attend(a, run, table);
  }

  template <class Run>
  void fetch_and_attend(pkv_step_args& a, Run run, const pkv_backend& table) {
    if (c_.k > 0) {
      const int64_t size = c_.dtype == PKV_DTYPE_F32 ? 4 : 2;
      const int64_t slots = int64_t{kBatch} * c_.kv_heads * c_.k;
      row_keys_.assign(static_cast<size_t>(slots * c_.d * size), std::byte{0xff});
      row_values_.assign(static_cast<size_t>(slots * c_.dv * size), std::byte{0xff});
      key_shape_ = {kBatch, c_.kv_heads, c_.k, c_.d};
      value_shape_ = {kBatch, c_.kv_heads, c_.k, c_.dv};
      const auto view = [&](std::vector<std::byte>& bytes, const std::vector<int64_t>& shape) {
        pkv_tensor t = {};
        t.data = bytes.data();
        t.device_type = PKV_DEVICE_CPU;
        t.ndim = 4;
        t.dtype = c_.dtype;
        t.shape = shape.data();
        return t;
      };
      a.fetch.keys = a.attend.row_keys = view(row_keys_, key_shape_);
      a.fetch.values = a.attend.row_values = view(row_values_, value_shape_);
      run(table.fetch, a.fetch);
    }
    run(table.attend, a.attend);
  }

  StepCase c_;
  std::vector<View> views_;
  std::vector<int64_t> lengths_, part_lengths_, output_shape_, key_shape_, value_shape_;
  std::vector<std::byte> row_keys_, row_values_;
  static constexpr int32_t kSecond[kBatch] = {1, 1};
  static constexpr int32_t kSets[kBatch] = {1, 0};
  std::vector<float> sinks_, center_, balance_, inv_balance_, value_center_;
  std::vector<PagedView> paged_;
  int64_t starts_[kBatch] = {};

 public:
  Twin twin;
  Tensor keys, values, sink_keys, sink_values, recent_keys, recent_values, queries;
};

}  // namespace pkv::test
