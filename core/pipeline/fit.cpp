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

absl::StatusOr<FitSamples> check_fit_samples(const Device& device, const pkv_geometry& geometry,
                                             int64_t tokens, const pkv_tensor& queries,
                                             const pkv_tensor& values) {
  const pkv_geometry& g = geometry;
  FitSamples found;
  if (is_present(queries)) {
    PKV_ASSIGN_OR_RETURN(found.queries, check_tensor(device, "queries", queries,
                                                     {between("hq", 1, INT32_MAX), at_least("m", 0),
                                                      exactly("d", g.head_dim)},
                                                     kFloatTypes));
    PKV_RETURN_IF_ERROR(
        check_query_heads(static_cast<int32_t>(found.queries->extent(0)), g.kv_heads));
  }
  if (is_present(values)) {
    PKV_RETURN_IF_ERROR(check_range("value_dim with values", g.value_dim, 1, INT32_MAX));
    PKV_ASSIGN_OR_RETURN(found.values, check_tensor(device, "values", values,
                                                    {exactly("h", g.kv_heads), exactly("t", tokens),
                                                     exactly("dv", g.value_dim)},
                                                    kFloatTypes));
  }
  return found;
}

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
  PKV_ASSIGN_OR_RETURN(const FitSamples samples,
                       check_fit_samples(device, g, keys.extent(1), args.queries, args.values));
  args.keys = keys.tensor();
  if (samples.queries) args.queries = samples.queries->tensor();
  if (samples.values) args.values = samples.values->tensor();
  return run_stage_sync(stream, "fit", device.backend().fit, args);
}

}  // namespace pkv
