// Launches of stage rerank: the queries, estimates of candidates and samples, scores, the hits.
#include "backends/gpu/rerank.h"

#include "backends/gpu/best_kernels.cuh"
#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/hits.cuh"
#include "backends/gpu/score.cuh"
#include "backends/gpu/short_hits.cuh"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

int64_t rows_of(const pkv_rerank_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

int32_t samples_of(const pkv_rerank_args& a) {
  return a.rest_lse != nullptr || a.sample_estimates != nullptr ? a.tail_samples : 0;
}

int32_t estimate_blocks(int64_t keys) {
  return static_cast<int32_t>(grid_tiles(keys, Traits::kRerankTile, Traits::kRerankBlocks));
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
  take_prepared_queries(scratch, *args->codec.geometry, rows_of(*args), args->query_heads);
  take_rerank_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

gpuError_t launch_prepare_estimates(const EstimateQueryArgs& args, gpuStream_t stream) {
  LaunchShape shape;
  shape.grid_x = grid_tiles(args.prepared.group, Traits::kEstimateQueryThreads / 32);
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kEstimateQueryThreads;
  return launch("prepare_estimates", prepare_estimates<Traits>, shape, stream, args);
}

RerankArgs rerank_args(const pkv_rerank_args& a, const PreparedQueries& prepared,
                       const RerankTemporaries& t) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t samples = samples_of(a);
  return {view_of(a.store, geometry),
          geometry,
          prepared,
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

// Whether a block chooses from a row alone.
bool has_short_hits(const pkv_rerank_args& a) {
  return a.candidates_stride + a.k <= Traits::kShortHits && a.k <= Traits::kHitTile &&
         a.share == 0.0;
}

gpuError_t launch_short_hits(const HitArgs& hits, const RowCacheArgs& row_cache,
                             gpuStream_t stream) {
  LaunchShape shape;
  shape.grid_y = grid_rows(hits.rows);
  shape.threads = Traits::kBestThreads;
  shape.dynamic_bytes = (hits.bounds.stride + hits.bounds.k) * int64_t{sizeof(float)};
  return launch("choose_short_hits", choose_short_hits<Traits>, shape, stream,
                ShortHitArgs{hits, row_cache});
}

gpuError_t launch_hits(const HitArgs& args, const RerankTemporaries& t, gpuStream_t stream) {
  const int32_t k = args.bounds.k;
  gpuError_t error = launch_best(args.bounds, args.rows, args.bounds.stride,
                                 {t.places, k, args.counts, 0}, t.best, stream);
  LaunchShape shape;
  shape.grid_x = grid_tiles(k, Traits::kHitTile);
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kHitThreads;
  if (error == gpuSuccess) error = launch("sort_hits", sort_hits<Traits>, shape, stream, args);
  shape.grid_x = grid_tiles(k, Traits::kHitThreads);
  if (error == gpuSuccess && k > Traits::kHitTile) {
    error = launch("place_hits", place_hits<Traits>, shape, stream, args);
  }
  if (error != gpuSuccess || args.share == 0.0) return error;
  shape.grid_x = 1;
  return launch("adapt_hits", adapt_hits<Traits>, shape, stream, args);
}

gpuError_t launch_place_rows(const RowCacheArgs& args, gpuStream_t stream) {
  if (args.cache.data == nullptr) return gpuSuccess;
  LaunchShape shape;
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kBestThreads;
  return launch("place_fetched_rows", place_fetched_rows<Traits>, shape, stream, args);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_rerank_args* args,
               void* scratch) {
  return run_stage(device, stream, "rerank", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const PreparedQueries prepared =
        take_prepared_queries(pieces, *args->codec.geometry, rows_of(*args), args->query_heads);
    const RerankTemporaries t = take_rerank_temporaries(pieces, *args);
    gpuError_t error =
        launch_prepare_queries(args->codec, args->queries, rows_of(*args), prepared, s);
    if (error == gpuSuccess) {
      error = launch_prepare_estimates(estimate_query_args(*args, prepared, t), s);
    }
    return error == gpuSuccess ? launch_rerank(*args, prepared, t, {}, s) : error;
  });
}

}  // namespace

RerankTemporaries take_rerank_temporaries(Scratch& scratch, const pkv_rerank_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t rows = rows_of(a);
  const int64_t stride = a.candidates_stride;
  RerankTemporaries t{};
  const int64_t heads = int64_t{a.batch.batch} * a.query_heads;
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

EstimateQueryArgs estimate_query_args(const pkv_rerank_args& a, const PreparedQueries& prepared,
                                      const RerankTemporaries& t) {
  return {view_of(a.codec),
          view_of(a.queries),
          prepared,
          rows_of(a),
          gpu::make_layout(*a.codec.geometry, a.store.capacity).chunks,
          t.queries};
}

gpuError_t launch_rerank(const pkv_rerank_args& a, const PreparedQueries& prepared,
                         const RerankTemporaries& t, const RowCacheArgs& row_cache,
                         gpuStream_t stream) {
  const RerankArgs args = rerank_args(a, prepared, t);
  const HitArgs hits = {{t.scores, a.candidates_stride, a.candidate_counts, prepared.bad, a.k},
                        args.rows,
                        a.candidates,
                        t.places,
                        t.sorted,
                        a.positions,
                        t.hit_scores,
                        a.counts,
                        a.k_min,
                        a.share};
  gpuError_t error = launch_estimates(args, stream);
  if (error == gpuSuccess) error = launch_scores(args, stream);
  if (error != gpuSuccess) return error;
  if (has_short_hits(a)) return launch_short_hits(hits, row_cache, stream);
  error = launch_hits(hits, t, stream);
  return error == gpuSuccess ? launch_place_rows(row_cache, stream) : error;
}

pkv_rerank_slots rerank_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
