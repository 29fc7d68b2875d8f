// The prepared queries of one row, shared by vote, rerank and attend.
// docs/algorithm.md, sections 4.1 and 4.4. Not here: what each stage makes of them.
#pragma once

#include <cstdint>

#include "backends/cpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr int32_t kMaxGroup = 128;  // section 0

struct RowQuery {
  int32_t group;  // G
  float* raw;     // [G, d] q_g as fp32
  float* heads;   // [G, d] q'_g = rotate(q_g * r)
  float* sum;     // [d] Q' = rotate(q_sum * r)
};

// Room for one row; undefined until prepare_query.
RowQuery take_row_query(Scratch& scratch, const pkv_geometry& geometry, int32_t query_heads);

// Prepares the queries [b, hq, d] of entry `entry` and KV head `kv_head`; false if they are bad.
bool prepare_query(const pkv_codec_params& codec, const pkv_tensor& queries, int64_t entry,
                   int32_t kv_head, const RowQuery& out);

// x[dv] = unrotate(x) with the value streams, in fp32 (2.3); `x` may be any address.
void unrotate_value(const pkv_codec_params& codec, float* x);

}  // namespace pkv::cpu
