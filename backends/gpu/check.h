// What the GPU backends refuse. Core checks the ranges of docs/algorithm.md; here stands what these
// kernels assume beyond that. Each check returns PKV_OK or leaves a sentence with the host.
#pragma once

#include <cstdint>

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

// Dimensions, codec, vote, sketch: sections 1, 2 and 9.
pkv_status check_geometry(const pkv_host* host, const pkv_geometry& geometry);

// f32, f16 or bf16.
pkv_status check_floats(const pkv_host* host, const char* name, const pkv_tensor& tensor);

// check_geometry, query_heads a multiple of kv_heads, 1 to 128 per group, and check_floats.
pkv_status check_queries(const pkv_host* host, const pkv_codec_params& codec, int32_t query_heads,
                         const pkv_tensor& queries);

// lo <= value <= hi.
pkv_status check_range(const pkv_host* host, const char* name, int64_t value, int64_t lo,
                       int64_t hi);

// 0 < scale <= 1e6, 0 <= soft_cap <= 1e6.
pkv_status check_logits(const pkv_host* host, float scale, float soft_cap);

}  // namespace PKV_GPU_NS
