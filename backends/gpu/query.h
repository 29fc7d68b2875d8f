// The launch of query preparation, for the stages that begin with it.
#pragma once

#include "backends/gpu/query.cuh"
#include "backends/gpu/scratch.h"

namespace PKV_GPU_NS {

// Room for `rows` rows; undefined until launch_prepare_queries has run.
PreparedQueries take_prepared_queries(Scratch& scratch, const pkv_geometry& geometry, int64_t rows,
                                      int32_t query_heads);

// queries [b, hq, d]
gpuError_t launch_prepare_queries(const pkv_codec_params& codec, const pkv_tensor& queries,
                                  int64_t rows, const PreparedQueries& out, gpuStream_t stream);

}  // namespace PKV_GPU_NS
