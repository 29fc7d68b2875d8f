// Launches of stage fit: parts of the keys, of the queries, and their sums.
#include "backends/gpu/fit.cuh"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/scratch.h"
#include "backends/gpu/stages.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

struct Temporaries {
  FitParts keys;
  FitParts queries;
};

int32_t dv_of(const pkv_fit_args& a) { return a.values.ndim != 0 ? a.geometry->value_dim : 0; }
bool has_queries(const pkv_fit_args& a) { return a.queries.ndim != 0; }
int32_t group_of(const pkv_fit_args& a) {
  return has_queries(a) ? static_cast<int32_t>(a.queries.shape[0]) / a.geometry->kv_heads : 0;
}

FitParts take_parts(Scratch& scratch, int32_t heads, int64_t vectors, int32_t width) {
  FitParts parts{};
  // Few vectors are spread over many blocks, each of which waits for memory once per load_ahead.
  constexpr int64_t kLeast = Traits::kFitTokens < kLoadAhead ? Traits::kFitTokens : kLoadAhead;
  const int64_t share = (vectors + Traits::kFitParts - 1) / Traits::kFitParts;
  const int64_t tile = share < kLeast ? kLeast : share;
  parts.tile = static_cast<int32_t>(tile < Traits::kFitTokens ? tile : Traits::kFitTokens);
  const int64_t tiles = (vectors + parts.tile - 1) / parts.tile;
  parts.count = tiles < Traits::kFitParts ? static_cast<int32_t>(tiles) : Traits::kFitParts;
  parts.width = width;
  parts.sums = scratch.take<double>(int64_t{heads} * parts.count * width);
  parts.counts = scratch.take<int64_t>(int64_t{heads} * parts.count);
  parts.weights = scratch.take<int64_t>(int64_t{heads} * parts.count);
  return parts;
}

Temporaries take_temporaries(Scratch& scratch, const pkv_fit_args& a) {
  const pkv_geometry& geometry = *a.geometry;
  const int64_t m = has_queries(a) ? a.queries.shape[1] : 0;
  const int64_t queries = a.queries_as == PKV_FIT_QUERIES_SUM ? m : m * group_of(a);
  Temporaries result{};
  result.keys =
      take_parts(scratch, geometry.kv_heads, a.keys.shape[1], 2 * geometry.head_dim + dv_of(a));
  result.queries = take_parts(scratch, geometry.kv_heads, queries, geometry.head_dim);
  return result;
}

pkv_status check_fit_queries(const pkv_host* host, const pkv_fit_args& a) {
  pkv_codec_params codec = {};
  codec.geometry = a.geometry;
  if (a.queries.shape[0] > INT32_MAX)
    return check_range(host, "query_heads", a.queries.shape[0], 1, INT32_MAX);
  return check_queries(host, codec, static_cast<int32_t>(a.queries.shape[0]), a.queries);
}

pkv_status supports(pkv_backend_device* device, const pkv_fit_args* args) {
  const pkv_host* host = device_of(device).host;
  pkv_status status = check_geometry(host, *args->geometry);
  if (status == PKV_OK) status = check_floats(host, "keys", args->keys);
  if (status == PKV_OK) {
    status = check_range(host, "queries_as", args->queries_as, PKV_FIT_QUERIES_HEADS,
                         PKV_FIT_QUERIES_SUM);
  }
  if (status == PKV_OK && has_queries(*args)) status = check_fit_queries(host, *args);
  if (status != PKV_OK || args->values.ndim == 0) return status;
  status = check_floats(host, "values", args->values);
  if (status != PKV_OK) return status;
  return check_range(host, "value_dim", args->geometry->value_dim, format::kMinHeadDim,
                     format::kMaxHeadDim);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fit_args* args, int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

// A block for every part of every head.
LaunchShape shape_of(const FitParts& parts, int32_t heads) {
  LaunchShape shape;
  shape.grid_x = static_cast<unsigned>(parts.count);
  shape.grid_y = grid_rows(heads);
  shape.threads = Traits::kFitThreads;
  shape.dynamic_bytes = int64_t{parts.width} * int64_t{sizeof(double)};
  return shape;
}

gpuError_t launch_keys(const pkv_fit_args& a, const FitParts& parts, gpuStream_t stream) {
  const int32_t heads = a.geometry->kv_heads;
  const FitKeyArgs args = {
      view_of(a.keys), view_of(a.values),    a.weights, a.pivot, a.keys.shape[1],
      heads,           a.geometry->head_dim, dv_of(a),  parts};
  return launch("fit_keys", fit_keys<Traits>, shape_of(parts, heads), stream, args);
}

gpuError_t launch_queries(const pkv_fit_args& a, const FitParts& parts, gpuStream_t stream) {
  if (!has_queries(a)) return gpuSuccess;
  const int32_t heads = a.geometry->kv_heads;
  const FitQueryArgs args = {view_of(a.queries),
                             a.queries.shape[1],
                             heads,
                             group_of(a),
                             a.queries_as == PKV_FIT_QUERIES_SUM ? 1 : 0,
                             a.geometry->head_dim,
                             parts};
  return launch("fit_queries", fit_queries<Traits>, shape_of(parts, heads), stream, args);
}

gpuError_t launch_finish(const pkv_fit_args& a, const Temporaries& t, gpuStream_t stream) {
  const FitFinishArgs args = {t.keys,         t.queries,       a.geometry->head_dim, dv_of(a),
                              a.key_counts,   a.key_weights,   a.key_sums,           a.key_squares,
                              a.query_counts, a.query_squares, a.value_sums};
  LaunchShape shape;
  shape.grid_x = static_cast<unsigned>(a.geometry->kv_heads);
  shape.threads = Traits::kFitThreads;
  return launch("fit_finish", fit_finish<Traits>, shape, stream, args);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_fit_args* args,
               void* scratch) {
  return run_stage(device, stream, "fit", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const Temporaries temporaries = take_temporaries(pieces, *args);
    gpuError_t error = launch_keys(*args, temporaries.keys, s);
    if (error == gpuSuccess) error = launch_queries(*args, temporaries.queries, s);
    if (error == gpuSuccess) error = launch_finish(*args, temporaries, s);
    return error;
  });
}

}  // namespace

pkv_fit_slots fit_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
