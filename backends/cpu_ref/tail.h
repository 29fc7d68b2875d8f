// The tail of attend: what stands for the keys of the zone that were not fetched.
// docs/algorithm.md, section 8.
// Not here: original K and V, and the softmax over all tokens (attend.cpp).
#pragma once

#include <cstdint>

#include "backends/cpu_ref/log_sum.h"
#include "backends/cpu_ref/logit.h"
#include "backends/cpu_ref/store.h"
#include "core/format/records.h"
#include "core/format/samples.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu_ref {

pkv_status check_tail(const pkv_host* host, const pkv_attend_args& args);

// The most tokens that the tail gives a query head.
int64_t tail_tokens(const pkv_attend_args& args);

// The tail of one row, shared by the heads of its group.
class Tail {
 public:
  // `is_fetched`: room for [candidates_stride], unused with drop.
  Tail(const pkv_attend_args& args, int64_t i, int32_t kv_head, uint8_t* is_fetched);

  // Logits of the tail's tokens for one query head; returns their number.
  int64_t logits(int32_t query_head, double* out) const;
  // out[dv] += sum of weight * value, the weights in the order of the logits.
  void add_values(int32_t query_head, const double* weights, double* out) const;

 private:
  // A weighted sum of sketched values, the part w_v * sign * a[code] still in rotated space.
  struct SketchSum {
    double rotated[format::kMaxHeadDim] = {};
    double weight = 0.0;
  };

  void mark_fetched();
  void add_sketch(int64_t position, double weight, SketchSum& sum) const;
  void add_rest(int32_t query_head, double weight, SketchSum& sketches, double* out) const;
  double add_samples(int32_t query_head, double weight, SketchSum& sketches) const;
  template <class Visit>
  void for_each_sample(int32_t query_head, Visit visit) const;
  void finish(SketchSum& sketches, double* out) const;

  const pkv_attend_args& a_;
  int64_t i_;
  int32_t kv_head_;
  int64_t r_;
  Logit logit_;
  uint8_t* is_fetched_;  // [candidate_count_]
  const int32_t* candidates_ = nullptr;
  int32_t candidate_count_ = 0;
  const double* value_sums_ = nullptr;  // [dv]
  int64_t good_count_ = 0;
  RecordRow records_;  // sampled and sketch only
  format::Samples samples_ = {};
};

}  // namespace pkv::cpu_ref
