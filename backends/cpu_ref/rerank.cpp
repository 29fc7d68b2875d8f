// Stage rerank: estimates of the candidates' products, scores, the k best, the rest's mass.
// docs/algorithm.md, section 6.
// Exact: estimates of scalar4 and scalar5, and the mean of them. Bounded, in double and rounded
// once: estimates of polar4, group scores, adaptive k, rest_lse.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/log_sum.h"
#include "backends/cpu_ref/logit.h"
#include "backends/cpu_ref/quantiser.h"
#include "backends/cpu_ref/query.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/store.h"
#include "backends/cpu_ref/tensor.h"
#include "core/format/codec_sets.h"
#include "core/format/fold.h"
#include "core/format/rotation.h"
#include "core/format/samples.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu_ref {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEstimateLimit = 1e30F;

struct Temporaries {
  RowQuery query;
  int32_t* c;        // [G, d] integer queries, scalar codecs
  float* estimates;  // [G, candidates_stride] if the caller does not want them
  float* scores;     // [candidates_stride]
  int32_t* order;    // [candidates_stride]
};

Temporaries take_temporaries(Scratch& scratch, const pkv_rerank_args& a) {
  Temporaries result = {};
  result.query = take_row_query(scratch, *a.codec.geometry, a.query_heads);
  const int64_t group = result.query.group;
  result.c = scratch.take<int32_t>(group * a.codec.geometry->head_dim);
  if (a.estimates == nullptr) {
    result.estimates = scratch.take<float>(group * a.candidates_stride);
  }
  result.scores = scratch.take<float>(a.candidates_stride);
  result.order = scratch.take<int32_t>(a.candidates_stride);
  return result;
}

pkv_status supports(pkv_backend_device* device, const pkv_rerank_args* args) {
  const pkv_host* host = device->host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status = check_group(host, args->query_heads, geometry.kv_heads);
  if (status != PKV_OK) return status;
  status = check_floats(host, "queries", args->queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "rank", args->rank, PKV_RANK_MEAN, PKV_RANK_GROUP);
  if (status != PKV_OK) return status;
  status = check_range(host, "k", args->k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (args->rest_lse != nullptr || args->sample_estimates != nullptr) {
    status = check_range(host, "tail_samples", args->tail_samples, 1, format::kMaxTailSamples);
    if (status != PKV_OK) return status;
  }
  if (args->weigh_norms != 0 && geometry.value_norm == 0) {
    return backend::refuse(host, PKV_UNIMPLEMENTED,
                           "weigh_norms=%d: needs records with value_norm=1", args->weigh_norms);
  }
  if (!(args->share >= 0.0 && args->share <= 1.0)) {
    return backend::refuse(host, PKV_UNIMPLEMENTED, "share=%g: must be from 0 (off) to 1",
                           args->share);
  }
  if (args->share > 0.0) {
    status = check_range(host, "share with rank", args->rank, PKV_RANK_GROUP, PKV_RANK_GROUP);
    if (status != PKV_OK) return status;
    status = check_range(host, "k_min", args->k_min, 0, format::kMaxK);
    if (status != PKV_OK) return status;
  }
  return check_logits(host, args->scale, args->soft_cap);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_rerank_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

// 6.1: est = e limited to [-1e30, 1e30], a NaN becoming -1e30.
template <class Real>
float limited(Real e) {
  if (std::isnan(e)) return -kEstimateLimit;
  return static_cast<float>(std::clamp(e, Real{-kEstimateLimit}, Real{kEstimateLimit}));
}

// The estimates of one row: all that section 6.1 says of the query, then one key at a time.
class Estimator {
 public:
  Estimator(const pkv_rerank_args& a, const Temporaries& temporaries, int64_t i, int32_t head)
      : geometry_(*a.codec.geometry),
        records_(geometry_, a.store, a.batch.sequences[i], head),
        quantiser_(key_quantiser(geometry_.codec)),
        gain_(format::rotation_plan(geometry_.head_dim, geometry_.rounds).gain),
        query_(temporaries.query),
        c_(temporaries.c) {
    const int32_t d = geometry_.head_dim;
    const float* mu = format::codec_row(a.codec, a.codec.center, i, head, d);
    for (int32_t g = 0; g < query_.group; ++g) {
      // b_g = fold(q_g,j * mu_j), of the raw query
      float q[format::kMaxHeadDim];
      load_row(a.queries, q, d, i, head * query_.group + g);
      bias_[g] = format::fold_each(d, [&](int j) { return q[j] * mu[j]; });
      if (geometry_.codec != PKV_CODEC_POLAR4) prepare_scalar(g);
    }
  }

  const RecordRow& records() const { return records_; }

  // est_g of the key at `position` goes to out[g * stride].
  void estimate(int64_t position, float* out, int64_t stride) const {
    if (geometry_.codec == PKV_CODEC_POLAR4) {
      estimate_polar(position, out, stride);
    } else {
      estimate_scalar(position, out, stride);
    }
  }

 private:
  // M_g, c_g,j and unit_g.
  void prepare_scalar(int32_t g) {
    const int32_t d = geometry_.head_dim;
    const float* y = query_.heads + int64_t{g} * d;
    int32_t* c = c_ + int64_t{g} * d;
    float M = 0.0F;
    for (int32_t j = 0; j < d; ++j) M = std::max(M, std::fabs(y[j]));
    for (int32_t j = 0; j < d; ++j) {
      c[j] = M == 0.0F ? 0 : static_cast<int32_t>(std::rint((32512.0F * y[j]) / M));
    }
    unit_[g] = (M / 32512.0F) / gain_;
  }

  // e = ((fp32(dot) * w) * unit_g) + b_g, dot an exact integer
  void estimate_scalar(int64_t position, float* out, int64_t stride) const {
    const int32_t d = geometry_.head_dim;
    int32_t level[format::kMaxHeadDim];  // sign_j * v[code_j]
    decode(records_.signs(position), records_.codes(position), quantiser_.planes,
           scalar_levels(geometry_.codec), d, level);
    const float w = format::bf16_to_float(*records_.factors(position));
    for (int32_t g = 0; g < query_.group; ++g) {
      const int32_t* c = c_ + int64_t{g} * d;
      int64_t dot = 0;
      for (int32_t j = 0; j < d; ++j) dot += int64_t{level[j]} * c[j];
      out[g * stride] = limited(((static_cast<float>(dot) * w) * unit_[g]) + bias_[g]);
    }
  }

  // e = sum_b w_b * (sum_{j in b} sign_j * a[code_j] * q'_g,j) / g + b_g, in double
  void estimate_polar(int64_t position, float* out, int64_t stride) const {
    const int32_t d = geometry_.head_dim;
    float level[format::kMaxHeadDim];  // sign_j * a[code_j]
    decode(records_.signs(position), records_.codes(position), quantiser_.planes, quantiser_.levels,
           d, level);
    const uint16_t* factors = records_.factors(position);
    for (int32_t g = 0; g < query_.group; ++g) {
      const float* y = query_.heads + int64_t{g} * d;
      double sum = 0.0;
      for (int32_t b = 0; b < d / 8; ++b) {
        double product = 0.0;
        for (int32_t j = 8 * b; j < 8 * b + 8; ++j) {
          product += static_cast<double>(level[j]) * static_cast<double>(y[j]);
        }
        sum += static_cast<double>(format::bf16_to_float(factors[b])) * product;
      }
      out[g * stride] = limited(sum / static_cast<double>(gain_) + static_cast<double>(bias_[g]));
    }
  }

  const pkv_geometry& geometry_;
  RecordRow records_;
  Quantiser quantiser_;
  float gain_;  // g of the rotation
  RowQuery query_;
  int32_t* c_;
  float unit_[kMaxGroup];
  float bias_[kMaxGroup];
};

// One row's part of the arguments.
struct Row {
  const int32_t* candidates;
  int32_t candidate_count;
  int64_t n;
  float* estimates;  // [G, stride]
  int64_t stride;
  int32_t group;
};

// 6.2: the scores, before the value norm.
void score_by_mean(const Row& row, float* scores) {
  for (int32_t c = 0; c < row.candidate_count; ++c) {
    float sum = row.estimates[c];
    for (int32_t g = 1; g < row.group; ++g) sum = sum + row.estimates[g * row.stride + c];
    scores[c] = sum / static_cast<float>(row.group);
  }
}

// ln sum_g exp(logit_g - lse_g)
double group_score(const Row& row, int32_t c, const Logit& logit, const double* lse) {
  LogSum shares;
  for (int32_t g = 0; g < row.group; ++g) {
    shares.add(logit(row.estimates[g * row.stride + c]) - lse[g]);
  }
  return shares.value();
}

// + ln nv, -1e30 for nv = 0
float weighed(double score, uint16_t value_norm) {
  const float nv = format::bf16_to_float(value_norm);
  if (nv == 0.0F) return -kEstimateLimit;
  return static_cast<float>(score + std::log(static_cast<double>(nv)));
}

void score_row(const pkv_rerank_args& a, const Row& row, const RecordRow& records, float* scores) {
  const Logit logit(a.scale, a.soft_cap);
  double lse[kMaxGroup] = {};  // over the row's candidates
  if (a.rank == PKV_RANK_GROUP) {
    for (int32_t g = 0; g < row.group; ++g) {
      LogSum sum;
      for (int32_t c = 0; c < row.candidate_count; ++c) {
        sum.add(logit(row.estimates[g * row.stride + c]));
      }
      lse[g] = sum.value();
    }
  } else {
    score_by_mean(row, scores);
  }
  for (int32_t c = 0; c < row.candidate_count; ++c) {
    const double score =
        a.rank == PKV_RANK_GROUP ? group_score(row, c, logit, lse) : static_cast<double>(scores[c]);
    scores[c] = a.weigh_norms != 0 ? weighed(score, *records.value_norm(row.candidates[c]))
                                   : static_cast<float>(score);
  }
}

// 6.3: how many hits. `order` lists the candidates best first.
int32_t hit_count(const pkv_rerank_args& a, const Row& row, const float* scores,
                  const int32_t* order) {
  const int32_t most = std::min(a.k, row.candidate_count);
  if (a.share == 0.0 || row.candidate_count == 0) return most;
  const auto best = static_cast<double>(scores[order[0]]);
  const auto weight = [&](int32_t c) {
    return std::exp(static_cast<double>(scores[order[c]]) - best);
  };
  double total = 0.0;
  for (int32_t c = 0; c < row.candidate_count; ++c) total += weight(c);
  int32_t count = 0;
  for (double held = 0.0; held < a.share * total && count < row.candidate_count; ++count) {
    held += weight(count);
  }
  return std::min(std::max(count, std::min(a.k_min, row.candidate_count)), most);
}

// 6.2: the hits in their order, then fillers.
void write_hits(const pkv_rerank_args& a, const Row& row, const float* scores, int32_t* order,
                int64_t r) {
  for (int32_t c = 0; c < row.candidate_count; ++c) order[c] = c;
  std::sort(order, order + row.candidate_count, [scores](int32_t left, int32_t right) {
    return scores[left] != scores[right] ? scores[left] > scores[right] : left < right;
  });
  const int32_t count = hit_count(a, row, scores, order);
  int32_t* positions = a.positions + r * a.k;
  float* hit_scores = a.scores + r * a.k;
  for (int32_t slot = 0; slot < a.k; ++slot) {
    positions[slot] = slot < count ? row.candidates[order[slot]] : -1;
    hit_scores[slot] = slot < count ? scores[order[slot]] : -kInfinity;
  }
  a.counts[r] = count;
}

// Where the samples of one row go; either may be NULL.
struct SampleOutputs {
  float* rest_lse;   // [G]
  float* estimates;  // [G, T]
  int64_t most;      // T
};

SampleOutputs sample_outputs(const pkv_rerank_args& a, int64_t first_head) {
  return {
      a.rest_lse == nullptr ? nullptr : a.rest_lse + first_head,
      a.sample_estimates == nullptr ? nullptr : a.sample_estimates + first_head * a.tail_samples,
      a.tail_samples};
}

// 6.4 for a bad query, and the start for a good one.
void clear_samples(const SampleOutputs& out, int32_t group) {
  if (out.rest_lse != nullptr) std::fill_n(out.rest_lse, group, -kInfinity);
  if (out.estimates != nullptr) std::fill_n(out.estimates, group * out.most, kNan);
}

// 6.4
void write_samples(const pkv_rerank_args& a, const Row& row, const Estimator& estimator,
                   const SampleOutputs& out) {
  const format::Samples samples = format::samples(*a.codec.geometry, row.n, a.tail_samples);
  const Logit logit(a.scale, a.soft_cap);
  LogSum sums[kMaxGroup];
  int64_t seen = 0;  // samples that are no candidates, bad ones included
  int32_t next = 0;  // first candidate not yet passed
  for (int64_t i = 0; i < samples.count; ++i) {
    const int64_t position = samples.position(i);
    while (next < row.candidate_count && row.candidates[next] < position) ++next;
    const bool is_candidate = next < row.candidate_count && row.candidates[next] == position;
    if (!is_candidate) ++seen;
    if (is_bad(estimator.records(), position)) continue;
    float estimates[kMaxGroup];
    estimator.estimate(position, estimates, 1);
    for (int32_t g = 0; g < row.group; ++g) {
      if (out.estimates != nullptr) out.estimates[g * out.most + i] = estimates[g];
      if (is_candidate) continue;
      sums[g].add(logit(estimates[g]));
    }
  }
  if (out.rest_lse == nullptr || seen == 0) return;
  // ln of (sum / seen) * R; -inf where the sum is empty
  const auto R = static_cast<double>(row.n - row.candidate_count);
  const double factor = std::log(R / static_cast<double>(seen));
  for (int32_t g = 0; g < row.group; ++g) {
    out.rest_lse[g] = static_cast<float>(sums[g].value() + factor);
  }
}

void rerank_row(const pkv_rerank_args& a, const Temporaries& temporaries, int64_t i, int32_t head) {
  const int64_t r = i * a.codec.geometry->kv_heads + head;
  const int32_t G = temporaries.query.group;
  const int64_t first_head = i * a.query_heads + int64_t{head} * G;
  float* wanted = a.estimates == nullptr ? nullptr : a.estimates + first_head * a.candidates_stride;
  const bool is_good = prepare_query(a.codec, a.queries, i, head, temporaries.query);
  const Row row = {a.candidates + r * a.candidates_stride,
                   is_good ? a.candidate_counts[r] : 0,  // 4.4: a bad query has no candidates
                   a.batch.lengths[i],
                   wanted == nullptr ? temporaries.estimates : wanted,
                   a.candidates_stride,
                   G};
  const SampleOutputs samples = sample_outputs(a, first_head);
  clear_samples(samples, G);
  if (!is_good) {
    write_hits(a, row, temporaries.scores, temporaries.order, r);
    return;
  }
  const Estimator estimator(a, temporaries, i, head);
  for (int32_t c = 0; c < row.candidate_count; ++c) {
    estimator.estimate(row.candidates[c], row.estimates + c, row.stride);
  }
  score_row(a, row, estimator.records(), temporaries.scores);
  write_hits(a, row, temporaries.scores, temporaries.order, r);
  if (samples.rest_lse == nullptr && samples.estimates == nullptr) return;
  write_samples(a, row, estimator, samples);
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_rerank_args* args, void* scratch) {
  Scratch pieces(scratch);
  const Temporaries temporaries = take_temporaries(pieces, *args);
  for (int64_t i = 0; i < args->batch.batch; ++i) {
    for (int32_t head = 0; head < args->codec.geometry->kv_heads; ++head) {
      rerank_row(*args, temporaries, i, head);
    }
  }
  return PKV_OK;
}

}  // namespace

pkv_rerank_slots rerank_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
