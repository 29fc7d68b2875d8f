// Stage fit: sums about a pivot, per KV head. docs/algorithm.md, section 2.2.
// Not here: the parameters, which core makes of the sums; the sums of a run of keys (fit_keys.cpp).
// Bounded: in double. Runs of keys, whose length depends on the call alone, are summed for
// themselves and then in ascending order, so that the number of threads changes nothing.
#include "backends/cpu/fit.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/check.h"
#include "backends/cpu/device.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/stages.h"
#include "core/format/fold.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

constexpr int64_t kShortestRun = 1024;
constexpr int64_t kMostRuns = 64;

pkv_status supports(pkv_backend_device* device, const pkv_fit_args* args) {
  const pkv_host* host = device->host;
  pkv_status status = check_geometry(host, *args->geometry);
  if (status != PKV_OK) return status;
  status = check_floats(host, "keys", args->keys);
  if (status != PKV_OK) return status;
  status =
      check_range(host, "queries_as", args->queries_as, PKV_FIT_QUERIES_HEADS, PKV_FIT_QUERIES_SUM);
  if (status != PKV_OK) return status;
  if (args->queries.ndim != 0) {
    status = check_floats(host, "queries", args->queries);
    if (status != PKV_OK) return status;
    const auto query_heads = static_cast<int32_t>(args->queries.shape[0]);
    status = check_group(host, query_heads, args->geometry->kv_heads);
    if (status != PKV_OK) return status;
  }
  if (args->values.ndim != 0) {
    status = check_floats(host, "values", args->values);
    if (status != PKV_OK) return status;
    return check_range(host, "value_dim", args->geometry->value_dim, format::kMinHeadDim,
                       format::kMaxHeadDim);
  }
  return PKV_OK;
}

// One call: for each head its runs of keys, and its queries.
class Call {
 public:
  Call(const pkv_backend_device& device, const pkv_fit_args& args, Scratch& scratch)
      : device_(device),
        a_(args),
        d_(args.geometry->head_dim),
        dv_(args.values.ndim != 0 ? args.geometry->value_dim : 0),
        heads_(args.geometry->kv_heads),
        keys_(args.keys.shape[1]),
        run_keys_(std::max(kShortestRun, (keys_ + kMostRuns - 1) / kMostRuns)),
        runs_((keys_ + run_keys_ - 1) / run_keys_),
        sums_(scratch.take<FitSums>(heads_ * runs_)),
        numbers_(scratch.take<double>(heads_ * runs_ * (2 * d_ + dv_))) {}

  pkv_status run() const {
    const pkv_status status =
        device_.pool.parallel(heads_ * (runs_ + 1), 1, [this](int64_t i, int32_t) {
          const auto head = static_cast<int32_t>(i / (runs_ + 1));
          const int64_t run = i % (runs_ + 1);
          if (run < runs_) {
            sum_keys(head, run);
          } else {
            sum_queries(head);
          }
        });
    if (status != PKV_OK) return status;
    for (int32_t head = 0; head < heads_; ++head) add_runs(head);
    return PKV_OK;
  }

 private:
  void sum_keys(int32_t head, int64_t run) const {
    const int64_t first = run * run_keys_;
    FitSums& sums = sums_[head * runs_ + run];
    double* numbers = numbers_ + (head * runs_ + run) * (2 * d_ + dv_);
    sums = {0, 0, numbers, numbers + d_, has_value_sums() ? numbers + 2 * d_ : nullptr};
    FitRun work = {rows_of(a_.keys, head),
                   rows_of(a_.values, head),
                   a_.weights == nullptr ? nullptr : a_.weights + head * keys_ + first,
                   a_.pivot + int64_t{head} * d_,
                   std::min(run_keys_, keys_ - first),
                   d_,
                   dv_};
    work.keys.first = work.keys.at(first);
    if (dv_ != 0) work.values.first = work.values.at(first);
    fit_keys(device_.isa, work, sums);
  }

  // The query rows of all heads of the group together, or the sum of the heads of each position
  // (4.1: in ascending order, fp32).
  void sum_queries(int32_t head) const {
    double* Q = a_.query_squares + int64_t{head} * d_;
    std::fill_n(Q, d_, 0.0);
    a_.query_counts[head] = 0;
    if (a_.queries.ndim == 0) return;
    const int64_t group = a_.queries.shape[0] / heads_;
    for (int64_t m = 0; m < a_.queries.shape[1]; ++m) {
      float sum[format::kMaxHeadDim];
      for (int64_t g = 0; g < group; ++g) {
        float q[format::kMaxHeadDim];
        load_row(a_.queries, q, d_, head * group + g, m);
        for (int32_t j = 0; j < d_; ++j) sum[j] = g == 0 ? q[j] : sum[j] + q[j];
        if (a_.queries_as == PKV_FIT_QUERIES_HEADS) add_query(head, q, Q);
      }
      if (a_.queries_as == PKV_FIT_QUERIES_SUM) add_query(head, sum, Q);
    }
  }

  void add_query(int32_t head, const float* q, double* Q) const {
    if (!std::isfinite(format::fold_each(d_, [q](int j) { return q[j] * q[j]; }))) return;
    ++a_.query_counts[head];
    for (int32_t j = 0; j < d_; ++j) Q[j] += static_cast<double>(q[j]) * static_cast<double>(q[j]);
  }

  bool has_value_sums() const { return dv_ != 0 && a_.value_sums != nullptr; }

  void add_runs(int32_t head) const {
    FitSums all = {0, 0, a_.key_sums + int64_t{head} * d_, a_.key_squares + int64_t{head} * d_,
                   has_value_sums() ? a_.value_sums + int64_t{head} * dv_ : nullptr};
    std::fill_n(all.sums, d_, 0.0);
    std::fill_n(all.squares, d_, 0.0);
    if (all.values != nullptr) std::fill_n(all.values, dv_, 0.0);
    for (int64_t run = 0; run < runs_; ++run) {
      const FitSums& sums = sums_[head * runs_ + run];
      all.count += sums.count;
      all.weight += sums.weight;
      for (int32_t j = 0; j < d_; ++j) all.sums[j] += sums.sums[j];
      for (int32_t j = 0; j < d_; ++j) all.squares[j] += sums.squares[j];
      for (int32_t j = 0; all.values != nullptr && j < dv_; ++j) all.values[j] += sums.values[j];
    }
    a_.key_counts[head] = all.count;
    a_.key_weights[head] = all.weight;
  }

  const pkv_backend_device& device_;
  const pkv_fit_args& a_;
  int32_t d_;
  int32_t dv_;  // 0 without values
  int32_t heads_;
  int64_t keys_;      // t
  int64_t run_keys_;  // keys of one run
  int64_t runs_;      // of each head
  FitSums* sums_;     // [heads, runs]
  double* numbers_;   // [heads, runs, 2 d + dv]: what sums_ points to
};

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_fit_args* args, int64_t* out) {
  Scratch scratch(nullptr);
  const Call call(*device, *args, scratch);
  *out = scratch.bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/, const pkv_fit_args* args,
               void* scratch) {
  return backend::guard(device->host, [&] {
    Scratch pieces(scratch);
    return Call(*device, *args, pieces).run();
  });
}

}  // namespace

pkv_fit_slots fit_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
