#include "backends/cpu_ref/tail.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/quantiser.h"
#include "backends/cpu_ref/rotate.h"
#include "core/format/codec_sets.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu_ref {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

bool reads_samples(const pkv_attend_args& a) {
  return a.tail == PKV_TAIL_SKETCH || a.tail == PKV_TAIL_SAMPLED;
}

}  // namespace

pkv_status check_tail(const pkv_host* host, const pkv_attend_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  pkv_status status = check_range(host, "tail", a.tail, PKV_TAIL_DROP, PKV_TAIL_SAMPLED);
  if (status != PKV_OK || !reads_samples(a)) return status;
  if (geometry.sketch_bits == 0) {
    return backend::refuse(host, PKV_UNIMPLEMENTED,
                           "tail=%d with sketch_bits=0: the records need a sketch of 2 or 4",
                           a.tail);
  }
  status = check_range(host, "tail_samples", a.tail_samples, 1, format::kMaxTailSamples);
  if (status != PKV_OK || a.tail != PKV_TAIL_SKETCH) return status;
  return check_range(host, "tail=sketch with sketch_stride", geometry.sketch_stride, 1, 1);
}

int64_t tail_tokens(const pkv_attend_args& a) {
  return a.tail == PKV_TAIL_DROP ? 0 : a.candidates_stride + 1;
}

Tail::Tail(const pkv_attend_args& a, int64_t i, int32_t kv_head, uint8_t* is_fetched)
    : a_(a),
      i_(i),
      kv_head_(kv_head),
      r_(i * a.codec.geometry->kv_heads + kv_head),
      logit_(a.scale, a.soft_cap),
      is_fetched_(is_fetched) {
  if (a.tail == PKV_TAIL_DROP) return;
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t row = int64_t{a.batch.sequences[i]} * geometry.kv_heads + kv_head;
  candidates_ = a.candidates + r_ * a.candidates_stride;
  candidate_count_ = a.candidate_counts[r_];
  value_sums_ = a.value_sums + row * geometry.value_dim;
  good_count_ = a.good_counts[row];
  if (reads_samples(a)) {
    records_ = RecordRow(geometry, a.store, a.batch.sequences[i], kv_head);
    samples_ = format::samples(geometry, a.batch.lengths[i], a.tail_samples);
  }
  mark_fetched();
}

// Marks the candidates among the counted fetched rows; candidates are ascending.
void Tail::mark_fetched() {
  std::fill_n(is_fetched_, candidate_count_, uint8_t{0});
  const int32_t* end = candidates_ + candidate_count_;
  for (int32_t slot = 0; a_.k > 0 && slot < a_.counts[r_]; ++slot) {
    const int32_t position = a_.positions[r_ * a_.k + slot];
    const int32_t* found = std::lower_bound(candidates_, end, position);
    if (found != end && *found == position) is_fetched_[found - candidates_] = 1;
  }
}

// sketch: each candidate that was not fetched, then the rest; otherwise they join the rest.
int64_t Tail::logits(int32_t query_head, double* out) const {
  if (a_.tail == PKV_TAIL_DROP) return 0;
  const int64_t head = i_ * a_.query_heads + query_head;
  const float* estimates = a_.estimates + head * a_.candidates_stride;
  int64_t count = 0;
  LogSum rest;
  rest.add(static_cast<double>(a_.rest_lse[head]));
  for (int32_t c = 0; c < candidate_count_; ++c) {
    if (is_fetched_[c] != 0) continue;
    const double logit = logit_(estimates[c]);
    if (a_.tail == PKV_TAIL_SKETCH) {
      out[count++] = logit;
    } else {
      rest.add(logit);
    }
  }
  out[count++] = good_count_ > 0 ? rest.value() : kNothing;
  return count;
}

void Tail::add_values(int32_t query_head, const double* weights, double* out) const {
  if (a_.tail == PKV_TAIL_DROP) return;
  SketchSum sketches;
  int64_t m = 0;
  if (a_.tail == PKV_TAIL_SKETCH) {
    for (int32_t c = 0; c < candidate_count_; ++c) {
      if (is_fetched_[c] == 0) add_sketch(candidates_[c], weights[m++], sketches);
    }
  }
  add_rest(query_head, weights[m], sketches, out);
  finish(sketches, out);
}

void Tail::add_sketch(int64_t position, double weight, SketchSum& sum) const {
  if (weight == 0.0) return;
  const pkv_geometry& geometry = *a_.codec.geometry;
  const int32_t dv = geometry.value_dim;
  const Quantiser quantiser = value_quantiser(geometry.sketch_bits);
  float level[format::kMaxHeadDim];
  decode(records_.value_signs(position), records_.value_codes(position), quantiser.planes,
         quantiser.levels, dv, level);
  const double factor =
      weight * static_cast<double>(format::bf16_to_float(*records_.value_factor(position)));
  for (int32_t j = 0; j < dv; ++j) sum.rotated[j] += factor * static_cast<double>(level[j]);
  sum.weight += weight;
}

// The pseudo-token of the rest: l * v_hat + (1 - l) * v_mean, v_hat left to the sketches.
void Tail::add_rest(int32_t query_head, double weight, SketchSum& sketches, double* out) const {
  if (weight == 0.0) return;
  const double l = reads_samples(a_) ? add_samples(query_head, weight, sketches) : 0.0;
  for (int32_t j = 0; j < a_.codec.geometry->value_dim; ++j) {
    out[j] += weight * (1.0 - l) * (value_sums_[j] / static_cast<double>(good_count_));
  }
}

// Adds weight * l * v_hat and returns l.
double Tail::add_samples(int32_t query_head, double weight, SketchSum& sketches) const {
  double max = kNothing;
  for_each_sample(query_head, [&](int64_t, double logit) { max = std::max(max, logit); });
  double sum = 0.0;      // of o_i, in units of exp(max)
  double squares = 0.0;  // of o_i^2
  for_each_sample(query_head, [&](int64_t, double logit) {
    const double o = std::exp(logit - max);
    sum += o;
    squares += o * o;
  });
  if (sum == 0.0) return 0.0;
  const double N = sum * sum / squares;
  const bool is_whole = a_.tail == PKV_TAIL_SKETCH && samples_.is_all();
  const double l = is_whole ? 1.0 : N / (N + format::kSampleShrink);
  for_each_sample(query_head, [&](int64_t position, double logit) {
    add_sketch(position, weight * l * (std::exp(logit - max) / sum), sketches);
  });
  return l;
}

// Calls visit(position, logit) for the good samples that v_hat is made of: with sampled those that
// were not fetched, with sketch those that are no candidates.
template <class Visit>
void Tail::for_each_sample(int32_t query_head, Visit visit) const {
  const float* estimates =
      a_.sample_estimates + (i_ * a_.query_heads + query_head) * int64_t{a_.tail_samples};
  int32_t next = 0;  // first candidate not yet passed
  for (int64_t i = 0; i < samples_.count; ++i) {
    const int64_t position = samples_.position(i);
    while (next < candidate_count_ && candidates_[next] < position) ++next;
    const bool is_candidate = next < candidate_count_ && candidates_[next] == position;
    if (is_candidate && (a_.tail == PKV_TAIL_SKETCH || is_fetched_[next] != 0)) continue;
    if (std::isnan(estimates[i])) continue;
    visit(position, logit_(estimates[i]));
  }
}

// out += weight * mu_v + unrotate(rotated)
void Tail::finish(SketchSum& sketches, double* out) const {
  if (sketches.weight == 0.0) return;
  const int32_t dv = a_.codec.geometry->value_dim;
  const float* mu_v = format::codec_row(a_.codec, a_.codec.value_center, i_, kv_head_, dv);
  unrotate(value_rotation(a_.codec), sketches.rotated);
  for (int32_t j = 0; j < dv; ++j) {
    out[j] += sketches.weight * static_cast<double>(mu_v[j]) + sketches.rotated[j];
  }
}

}  // namespace pkv::cpu_ref
