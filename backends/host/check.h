// What backends on the host accept: all that docs/algorithm.md allows. Each check returns PKV_OK or
// leaves a sentence that names the value and the accepted range.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_backend.h"

namespace pkv::host {

// Sections 1, 2 and 9.
pkv_status check_geometry(const pkv_host* host, const pkv_geometry& geometry);

// f32, f16 or bf16.
pkv_status check_floats(const pkv_host* host, const char* name, const pkv_tensor& tensor);

// Query heads: a multiple of the KV heads, 1 to 128 of them per group.
pkv_status check_group(const pkv_host* host, int32_t query_heads, int32_t kv_heads);

// lo <= value <= hi.
pkv_status check_range(const pkv_host* host, const char* name, int64_t value, int64_t lo,
                       int64_t hi);

// 0 < scale <= 1e6, 0 <= soft_cap <= 1e6.
pkv_status check_logits(const pkv_host* host, float scale, float soft_cap);

}  // namespace pkv::host
