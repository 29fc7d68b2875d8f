// All that docs/algorithm.md allows, section by section.
#include "backends/cpu/check_stages.h"

#include "backends/cpu/check.h"
#include "backends/cpu/select.h"
#include "backends/cpu/tensor.h"
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

using backend::refuse;

pkv_status check_heads(const pkv_host* host, const pkv_codec_params& codec, int32_t query_heads,
                       const pkv_tensor& queries) {
  pkv_status status = check_geometry(host, *codec.geometry);
  if (status != PKV_OK) return status;
  status = check_group(host, query_heads, codec.geometry->kv_heads);
  if (status != PKV_OK) return status;
  return check_floats(host, "queries", queries);
}

pkv_status check_copy(const pkv_host* host, const char* name, const pkv_tensor& source,
                      const pkv_tensor& target) {
  if (source.ndim == 0) return PKV_OK;
  if (dtype_bytes(source.dtype) != 0 && source.dtype == target.dtype) return PKV_OK;
  return refuse(host, PKV_UNIMPLEMENTED,
                "%s: dtype=%d into dtype=%d: must be the same, f32 (%d), f16 (%d), bf16 (%d), "
                "u8 (%d), i32 (%d) or i64 (%d)",
                name, source.dtype, target.dtype, PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16,
                PKV_DTYPE_U8, PKV_DTYPE_I32, PKV_DTYPE_I64);
}

pkv_status check_rows(const pkv_host* host, const pkv_tensor& keys, const pkv_tensor& values) {
  const pkv_status status = check_floats(host, "attended keys", keys);
  return status != PKV_OK ? status : check_floats(host, "attended values", values);
}

pkv_status check_tail(const pkv_host* host, const pkv_attend_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  pkv_status status = check_range(host, "tail", a.tail, PKV_TAIL_DROP, PKV_TAIL_SAMPLED);
  const bool reads_samples = a.tail == PKV_TAIL_SKETCH || a.tail == PKV_TAIL_SAMPLED;
  if (status != PKV_OK || !reads_samples) return status;
  if (geometry.sketch_bits == 0) {
    return refuse(host, PKV_UNIMPLEMENTED,
                  "tail=%d with sketch_bits=0: the records need a sketch of 2 or 4", a.tail);
  }
  status = check_range(host, "tail_samples", a.tail_samples, 1, format::kMaxTailSamples);
  if (status != PKV_OK || a.tail != PKV_TAIL_SKETCH) return status;
  return check_range(host, "tail=sketch with sketch_stride", geometry.sketch_stride, 1, 1);
}

}  // namespace

pkv_status check_vote(const pkv_host* host, const pkv_vote_args& args) {
  pkv_status status = check_heads(host, args.codec, args.query_heads, args.queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "max_length", args.batch.max_length, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  if (args.codec.geometry->vote == PKV_VOTE_TIER) {
    status = check_range(host, "vote=tier with vote_group", args.vote_group, PKV_VOTE_GROUP_SUM,
                         PKV_VOTE_GROUP_SUM);
    if (status != PKV_OK) return status;
    return check_range(host, "rho_of", args.rho_of, PKV_RHO_OF_KEYS, PKV_RHO_OF_CENTROIDS);
  }
  return check_range(host, "vote_group", args.vote_group, PKV_VOTE_GROUP_SUM, PKV_VOTE_GROUP_HEADS);
}

pkv_status check_select(const pkv_host* host, const pkv_select_args& args) {
  pkv_status status = check_range(host, "max_length", args.batch.max_length, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  status = check_range(host, "steps of the candidate rule", args.rule.steps, 1, PKV_MAX_SCHEDULE);
  if (status != PKV_OK) return status;
  status = check_range(host, "k", args.rule.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  return check_range(host, "candidates_stride", args.candidates_stride,
                     format::largest_candidate_count(args.rule, args.batch.max_length), INT64_MAX);
}

pkv_status check_rerank(const pkv_host* host, const pkv_rerank_args& args) {
  pkv_status status = check_heads(host, args.codec, args.query_heads, args.queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "rank", args.rank, PKV_RANK_MEAN, PKV_RANK_GROUP);
  if (status != PKV_OK) return status;
  status = check_range(host, "k", args.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (args.rest_lse != nullptr || args.sample_estimates != nullptr) {
    status = check_range(host, "tail_samples", args.tail_samples, 1, format::kMaxTailSamples);
    if (status != PKV_OK) return status;
  }
  if (args.weigh_norms != 0 && args.codec.geometry->value_norm == 0) {
    return refuse(host, PKV_UNIMPLEMENTED, "weigh_norms=%d: needs records with value_norm=1",
                  args.weigh_norms);
  }
  if (!(args.share >= 0.0 && args.share <= 1.0)) {
    return refuse(host, PKV_UNIMPLEMENTED, "share=%g: must be from 0 (off) to 1", args.share);
  }
  if (args.share > 0.0) {
    status = check_range(host, "share with rank", args.rank, PKV_RANK_GROUP, PKV_RANK_GROUP);
    if (status != PKV_OK) return status;
    status = check_range(host, "k_min", args.k_min, 0, format::kMaxK);
    if (status != PKV_OK) return status;
  }
  return check_logits(host, args.scale, args.soft_cap);
}

pkv_status check_fetch(const pkv_host* host, const pkv_fetch_args& args) {
  pkv_status status = check_range(host, "k", args.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  status = check_copy(host, "keys", args.source_keys, args.keys);
  if (status != PKV_OK) return status;
  return check_copy(host, "values", args.source_values, args.values);
}

pkv_status check_attend(const pkv_host* host, const pkv_attend_args& args,
                        const pkv_tensor& row_keys, const pkv_tensor& row_values) {
  pkv_status status = check_heads(host, args.codec, args.query_heads, args.queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "value_dim", args.codec.geometry->value_dim, format::kMinHeadDim,
                       format::kMaxHeadDim);
  if (status != PKV_OK) return status;
  status = check_floats(host, "output", args.output);
  if (status != PKV_OK) return status;
  status = check_range(host, "part_count", args.part_count, 0, PKV_MAX_PARTS);
  if (status != PKV_OK) return status;
  for (int32_t p = 0; p < args.part_count; ++p) {
    status = check_rows(host, args.parts[p].keys, args.parts[p].values);
    if (status != PKV_OK) return status;
  }
  status = check_range(host, "k", args.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  if (args.k > 0) {
    status = check_rows(host, row_keys, row_values);
    if (status != PKV_OK) return status;
  }
  status = check_tail(host, args);
  if (status != PKV_OK) return status;
  return check_logits(host, args.scale, args.soft_cap);
}

}  // namespace pkv::cpu
