// Launches of stage rerank, for the slot and for the step.
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/query.h"
#include "backends/gpu/rerank.cuh"
#include "backends/gpu/row_cache.cuh"

namespace PKV_GPU_NS {

struct RerankTemporaries {
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

// Room for `args`.
RerankTemporaries take_rerank_temporaries(Scratch& scratch, const pkv_rerank_args& args);

// The kernel's arguments for what estimates take from queries that are prepared, or will be.
EstimateQueryArgs estimate_query_args(const pkv_rerank_args& args, const PreparedQueries& prepared,
                                      const RerankTemporaries& temporaries);

// 6, of queries that are prepared for estimates too. `row_cache`: its data is NULL, or the places
// of the hits' rows are wanted.
gpuError_t launch_rerank(const pkv_rerank_args& args, const PreparedQueries& prepared,
                         const RerankTemporaries& temporaries, const RowCacheArgs& row_cache,
                         gpuStream_t stream);

}  // namespace PKV_GPU_NS
