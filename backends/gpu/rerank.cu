// Launches of stage rerank: the queries, estimates of candidates and samples, scores, the hits.
#include "backends/gpu/rerank.cuh"

#include "backends/gpu/best_kernels.cuh"
#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/hits.cuh"
#include "backends/gpu/query.h"
#include "backends/gpu/score.cuh"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

struct Temporaries {
  PreparedQueries prepared;
  EstimateQueries queries;
  float* estimates;         // if the caller does not want them
  float* sample_estimates;  // likewise
  LogSum* sums;
  int32_t* seen;
  float* scores;  // of the candidates
  BestScratch best;
  int32_t* places;
  uint64_t* sorted;
  float* hit_scores;  // if the caller does not want them
};

int64_t rows_of(const pkv_rerank_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

int32_t samples_of(const pkv_rerank_args& a) {
  return a.rest_lse != nullptr || a.sample_estimates != nullptr ? a.tail_samples : 0;
}

int32_t estimate_blocks(int64_t keys) {
  return static_cast<int32_t>(grid_tiles(keys, Traits::kRerankTile, Traits::kRerankBlocks));
}

Temporaries take_temporaries(Scratch& scratch, const pkv_rerank_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t rows = rows_of(a);
  const int64_t stride = a.candidates_stride;
  Temporaries t{};
  t.prepared = take_prepared_queries(scratch, geometry, rows, a.query_heads);
  const int64_t heads = rows * t.prepared.group;
  if (geometry.codec != PKV_CODEC_POLAR4) {
    const int64_t chunks = (geometry.head_dim + gpu::kChunkDims - 1) / gpu::kChunkDims;
    t.queries.words = scratch.take<uint32_t>(heads * kQueryVectors * chunks * 4);
  }
  t.queries.terms = scratch.take<HeadTerms>(heads);
  const int32_t samples = a.tail_samples;  // scratch is asked for before pointers are known
  t.estimates = a.estimates;
  if (t.estimates == nullptr) t.estimates = scratch.take<float>(heads * stride);
  t.sample_estimates = a.sample_estimates;
  if (t.sample_estimates == nullptr) t.sample_estimates = scratch.take<float>(heads * samples);
  t.sums = scratch.take<LogSum>(heads * (estimate_blocks(stride) + estimate_blocks(samples)));
  t.seen = scratch.take<int32_t>(rows * estimate_blocks(samples));
  t.scores = scratch.take<float>(rows * stride);
  t.best = take_best_scratch(scratch, rows, stride);
  t.places = scratch.take<int32_t>(rows * a.k);
  t.sorted = scratch.take<uint64_t>(rows * a.k);
  t.hit_scores = a.scores;
  if (t.hit_scores == nullptr) t.hit_scores = scratch.take<float>(rows * a.k);
  return t;
}

pkv_status check_hits(const pkv_host* host, const pkv_rerank_args& a) {
  pkv_status status = check_range(host, "rank", a.rank, PKV_RANK_MEAN, PKV_RANK_GROUP);
  if (status != PKV_OK) return status;
  status = check_range(host, "k", a.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (a.weigh_norms != 0 && a.codec.geometry->value_norm == 0) {
    return backend::refuse(host, PKV_UNIMPLEMENTED,
                           "weigh_norms=%d: needs records with value_norm=1", a.weigh_norms);
  }
  if (!(a.share >= 0.0 && a.share <= 1.0)) {
    return backend::refuse(host, PKV_UNIMPLEMENTED, "share=%g: must be from 0 (off) to 1", a.share);
  }
  if (a.share == 0.0) return PKV_OK;
  status = check_range(host, "share with rank", a.rank, PKV_RANK_GROUP, PKV_RANK_GROUP);
  if (status != PKV_OK) return status;
  return check_range(host, "k_min", a.k_min, 0, format::kMaxK);
}

pkv_status supports(pkv_backend_device* device, const pkv_rerank_args* args) {
  const pkv_host* host = device_of(device).host;
  pkv_status status = check_queries(host, args->codec, args->query_heads, args->queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "candidates_stride", args->candidates_stride, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  if (args->rest_lse != nullptr || args->sample_estimates != nullptr) {
    status = check_range(host, "tail_samples", args->tail_samples, 1, format::kMaxTailSamples);
    if (status != PKV_OK) return status;
  }
  status = check_hits(host, *args);
  if (status != PKV_OK) return status;
  return check_logits(host, args->scale, args->soft_cap);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_rerank_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

gpuError_t launch_prepare_estimates(const pkv_rerank_args& a, const Temporaries& t,
                                    gpuStream_t stream) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const EstimateQueryArgs args = {view_of(a.codec),
                                  view_of(a.queries),
                                  t.prepared,
                                  rows_of(a),
                                  gpu::make_layout(geometry, a.store.capacity).chunks,
                                  t.queries};
  LaunchShape shape;
  shape.grid_x = grid_tiles(t.prepared.group, Traits::kEstimateQueryThreads / 32);
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kEstimateQueryThreads;
  return launch("prepare_estimates", prepare_estimates<Traits>, shape, stream, args);
}

RerankArgs rerank_args(const pkv_rerank_args& a, const Temporaries& t) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t samples = samples_of(a);
  return {view_of(a.store, geometry),
          geometry,
          t.prepared,
          t.queries,
          rows_of(a),
          a.batch.sequences,
          a.batch.lengths,
          a.candidates,
          a.candidates_stride,
          a.candidate_counts,
          {a.scale, a.soft_cap},
          a.rank,
          a.weigh_norms,
          format::rotation_plan(geometry.head_dim, geometry.rounds).gain,
          t.estimates,
          t.scores,
          samples,
          t.sample_estimates,
          a.rest_lse,
          estimate_blocks(a.candidates_stride),
          estimate_blocks(samples),
          t.sums,
          t.seen};
}

template <int32_t kCodec, class Shape>
gpuError_t launch_shaped(const RerankArgs& args, gpuStream_t stream) {
  LaunchShape shape;
  shape.grid_x = static_cast<unsigned>(args.candidate_blocks + args.sample_blocks);
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kRerankThreads;
  shape.dynamic_bytes = Traits::kRerankQueryBytes;
  return launch("estimate_keys", estimate_keys<Traits, kCodec, Shape>, shape, stream, args);
}

template <int32_t kCodec>
gpuError_t launch_codec(const RerankArgs& args, gpuStream_t stream) {
  const int32_t d = args.geometry.head_dim;
  constexpr bool kIsPolar = kCodec == PKV_CODEC_POLAR4;  // its levels take four times the registers
  constexpr int kKeys = kIsPolar ? 1 : 2;
  if (d <= 64) return launch_shaped<kCodec, EstimateShape<2, 1, kKeys>>(args, stream);
  if (d <= 128) return launch_shaped<kCodec, EstimateShape<4, 1, kKeys>>(args, stream);
  if (d <= 256) return launch_shaped<kCodec, EstimateShape<8, 1, kKeys>>(args, stream);
  using Wide = std::conditional_t<kIsPolar, EstimateShape<16, 2, 1>, EstimateShape<8, 3, 1>>;
  return launch_shaped<kCodec, Wide>(args, stream);
}

gpuError_t launch_estimates(const RerankArgs& args, gpuStream_t stream) {
  switch (args.geometry.codec) {
    case PKV_CODEC_POLAR4: return launch_codec<PKV_CODEC_POLAR4>(args, stream);
    case PKV_CODEC_SCALAR4: return launch_codec<PKV_CODEC_SCALAR4>(args, stream);
    case PKV_CODEC_SCALAR5: return launch_codec<PKV_CODEC_SCALAR5>(args, stream);
    default: return gpuErrorInvalidValue;  // supports() refuses it
  }
}

gpuError_t launch_scores(const RerankArgs& args, gpuStream_t stream) {
  LaunchShape shape;
  shape.grid_x = grid_tiles(args.candidates_stride, Traits::kScoreThreads, Traits::kScoreBlocks);
  if (shape.grid_x == 0) shape.grid_x = 1;  // the rest's mass
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kScoreThreads;
  return launch("score_candidates", score_candidates<Traits>, shape, stream, args);
}

gpuError_t launch_hits(const pkv_rerank_args& a, const Temporaries& t, gpuStream_t stream) {
  const HitArgs args = {{t.scores, a.candidates_stride, a.candidate_counts, t.prepared.bad, a.k},
                        rows_of(a),
                        a.candidates,
                        t.places,
                        t.sorted,
                        a.positions,
                        t.hit_scores,
                        a.counts,
                        a.k_min,
                        a.share};
  gpuError_t error = launch_best(args.bounds, rows_of(a), a.candidates_stride,
                                 {t.places, a.k, a.counts, 0}, t.best, stream);
  LaunchShape shape;
  shape.grid_x = grid_tiles(a.k, Traits::kHitTile);
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kHitThreads;
  if (error == gpuSuccess) error = launch("sort_hits", sort_hits<Traits>, shape, stream, args);
  shape.grid_x = grid_tiles(a.k, Traits::kHitThreads);
  if (error == gpuSuccess && a.k > Traits::kHitTile) {
    error = launch("place_hits", place_hits<Traits>, shape, stream, args);
  }
  if (error != gpuSuccess || a.share == 0.0) return error;
  shape.grid_x = 1;
  return launch("adapt_hits", adapt_hits<Traits>, shape, stream, args);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_rerank_args* args,
               void* scratch) {
  return run_stage(device, stream, "rerank", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const Temporaries t = take_temporaries(pieces, *args);
    const RerankArgs a = rerank_args(*args, t);
    gpuError_t error = launch_prepare_queries(args->codec, args->queries, a.rows, t.prepared, s);
    if (error == gpuSuccess) error = launch_prepare_estimates(*args, t, s);
    if (error == gpuSuccess) error = launch_estimates(a, s);
    if (error == gpuSuccess) error = launch_scores(a, s);
    if (error == gpuSuccess) error = launch_hits(*args, t, s);
    return error;
  });
}

}  // namespace

pkv_rerank_slots rerank_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
