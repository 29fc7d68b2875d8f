// Stage fit: sums over keys, queries and values. docs/algorithm.md, section 2.2.
#include "core/base/text.h"
#include "core/codec/geometry.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

absl::Status check_outputs(const pkv_fit_args& a) {
  const pkv_geometry& g = *a.geometry;
  const int64_t numbers = int64_t{g.kv_heads} * g.head_dim;
  PKV_RETURN_IF_ERROR(check_pointer("pivot", a.pivot, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("key_counts", a.key_counts, g.kv_heads));
  PKV_RETURN_IF_ERROR(check_pointer("key_weights", a.key_weights, g.kv_heads));
  PKV_RETURN_IF_ERROR(
      check_range("queries_as", a.queries_as, PKV_FIT_QUERIES_HEADS, PKV_FIT_QUERIES_SUM));
  PKV_RETURN_IF_ERROR(check_pointer("key_sums", a.key_sums, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("key_squares", a.key_squares, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("query_counts", a.query_counts, g.kv_heads));
  PKV_RETURN_IF_ERROR(check_pointer("query_squares", a.query_squares, numbers));
  if (is_present(a.values)) return absl::OkStatus();
  return check_absent("value_sums", a.value_sums, "without values");
}

absl::Status check_weights(const Stream& stream, const pkv_fit_args& a, int64_t tokens) {
  if (a.weights == nullptr) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(const auto weights,
                       read_back(stream, a.weights, a.geometry->kv_heads * tokens));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0) continue;
    return check_range(str_cat("weights[", i, "]"), weights[i], 0, INT32_MAX);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status stage_fit_sync(const Stream& stream, pkv_fit_args args) {
  const Device& device = *stream.device();
  if (args.geometry == nullptr) {
    return absl::InvalidArgumentError("geometry=NULL, accepted: a geometry");
  }
  const pkv_geometry& g = *args.geometry;
  PKV_RETURN_IF_ERROR(check_geometry(g));
  PKV_RETURN_IF_ERROR(check_outputs(args));

  PKV_ASSIGN_OR_RETURN(
      const TensorView keys,
      check_tensor(device, "keys", args.keys,
                   {exactly("h", g.kv_heads), at_least("t", 0), exactly("d", g.head_dim)},
                   kFloatTypes));
  PKV_RETURN_IF_ERROR(check_weights(stream, args, keys.extent(1)));
  TensorView queries = keys;
  TensorView values = keys;
  args.keys = keys.tensor();
  if (is_present(args.queries)) {
    PKV_ASSIGN_OR_RETURN(queries, check_tensor(device, "queries", args.queries,
                                               {between("hq", 1, INT32_MAX), at_least("m", 0),
                                                exactly("d", g.head_dim)},
                                               kFloatTypes));
    PKV_RETURN_IF_ERROR(check_query_heads(static_cast<int32_t>(queries.extent(0)), g.kv_heads));
    args.queries = queries.tensor();
  }
  if (is_present(args.values)) {
    PKV_RETURN_IF_ERROR(check_range("value_dim with values", g.value_dim, 1, INT32_MAX));
    PKV_ASSIGN_OR_RETURN(values,
                         check_tensor(device, "values", args.values,
                                      {exactly("h", g.kv_heads), exactly("t", keys.extent(1)),
                                       exactly("dv", g.value_dim)},
                                      kFloatTypes));
    args.values = values.tensor();
  }
  return run_stage_sync(stream, "fit", device.backend().fit, args);
}

}  // namespace pkv
