// Stage fit: sums about a pivot, per KV head. docs/algorithm.md, section 2.2.
// Not here: the parameters, which core makes of the sums.
// Bounded: sums in double, in ascending position.
#include <cmath>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/tensor.h"
#include "core/format/fold.h"
#include "core/format/records.h"

namespace pkv::cpu_ref {
namespace {

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

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fit_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// A vector is used if the sum of its squares is finite in fp32; then its elements are finite too.
bool is_usable(const float* x, int32_t count) {
  return std::isfinite(format::fold_each(count, [x](int j) { return x[j] * x[j]; }));
}

void fit_keys(const pkv_fit_args& a, int32_t head) {
  const int32_t d = a.geometry->head_dim;
  const int32_t dv = a.values.ndim != 0 ? a.geometry->value_dim : 0;
  const float* c = a.pivot + int64_t{head} * d;
  double* A = a.key_sums + int64_t{head} * d;
  double* B = a.key_squares + int64_t{head} * d;
  double* V = dv != 0 && a.value_sums != nullptr ? a.value_sums + int64_t{head} * dv : nullptr;
  for (int32_t j = 0; j < d; ++j) A[j] = B[j] = 0.0;
  for (int32_t j = 0; V != nullptr && j < dv; ++j) V[j] = 0.0;
  a.key_counts[head] = 0;
  a.key_weights[head] = 0;

  for (int64_t t = 0; t < a.keys.shape[1]; ++t) {
    float k[format::kMaxHeadDim];
    float v[format::kMaxHeadDim];
    load_row(a.keys, k, d, head, t);
    if (!is_usable(k, d)) continue;
    if (dv != 0) {
      load_row(a.values, v, dv, head, t);
      if (!is_usable(v, dv)) continue;
    }
    const int64_t o = a.weights == nullptr ? 1 : a.weights[head * a.keys.shape[1] + t];
    ++a.key_counts[head];
    a.key_weights[head] += o;
    for (int32_t j = 0; j < d; ++j) {
      const double x = static_cast<double>(k[j]) - static_cast<double>(c[j]);
      A[j] += static_cast<double>(o) * x;
      B[j] += static_cast<double>(o) * (x * x);
    }
    for (int32_t j = 0; V != nullptr && j < dv; ++j) V[j] += static_cast<double>(v[j]);
  }
}

void add_query(const pkv_fit_args& a, int32_t head, const float* q, double* Q) {
  if (!is_usable(q, a.geometry->head_dim)) return;
  ++a.query_counts[head];
  for (int32_t j = 0; j < a.geometry->head_dim; ++j) {
    Q[j] += static_cast<double>(q[j]) * static_cast<double>(q[j]);
  }
}

// The query rows of all heads of the group together, or the sum of the heads of each position
// (4.1: in ascending order, fp32).
void fit_queries(const pkv_fit_args& a, int32_t head) {
  const int32_t d = a.geometry->head_dim;
  double* Q = a.query_squares + int64_t{head} * d;
  for (int32_t j = 0; j < d; ++j) Q[j] = 0.0;
  a.query_counts[head] = 0;
  if (a.queries.ndim == 0) return;

  const int64_t group = a.queries.shape[0] / a.geometry->kv_heads;
  for (int64_t m = 0; m < a.queries.shape[1]; ++m) {
    float sum[format::kMaxHeadDim];
    for (int64_t g = 0; g < group; ++g) {
      float q[format::kMaxHeadDim];
      load_row(a.queries, q, d, head * group + g, m);
      for (int32_t j = 0; j < d; ++j) sum[j] = g == 0 ? q[j] : sum[j] + q[j];
      if (a.queries_as == PKV_FIT_QUERIES_HEADS) add_query(a, head, q, Q);
    }
    if (a.queries_as == PKV_FIT_QUERIES_SUM) add_query(a, head, sum, Q);
  }
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_fit_args* args, void* /*scratch*/) {
  for (int32_t head = 0; head < args->geometry->kv_heads; ++head) {
    fit_keys(*args, head);
    fit_queries(*args, head);
  }
  return PKV_OK;
}

}  // namespace

pkv_fit_slots fit_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
