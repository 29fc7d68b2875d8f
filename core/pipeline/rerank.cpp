// Stage rerank: estimates, scores, hits. docs/algorithm.md, section 6.
#include <span>

#include "core/base/checked.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/page_checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

absl::Status check_options(const pkv_rerank_args& a) {
  PKV_RETURN_IF_ERROR(check_range("rank", a.rank, PKV_RANK_MEAN, PKV_RANK_GROUP));
  PKV_RETURN_IF_ERROR(check_range("k", a.k, 0, format::kMaxK));
  PKV_RETURN_IF_ERROR(check_range("weigh_norms", a.weigh_norms, 0, a.codec.geometry->value_norm));
  PKV_RETURN_IF_ERROR(check_scale(a.scale));
  PKV_RETURN_IF_ERROR(check_soft_cap(a.soft_cap));
  if (!(a.share >= 0 && a.share <= 1)) {
    return absl::InvalidArgumentError(str_cat("share=", a.share, ", accepted: 0 (off) up to 1"));
  }
  if (a.share > 0) {
    PKV_RETURN_IF_ERROR(check_range("rank with share", a.rank, PKV_RANK_GROUP, PKV_RANK_GROUP));
    PKV_RETURN_IF_ERROR(check_range("k_min", a.k_min, 0, a.k));
  }
  if (a.rest_lse == nullptr && a.sample_estimates == nullptr) return absl::OkStatus();
  return check_range("tail_samples", a.tail_samples, 1, format::kMaxTailSamples);
}

// Ascending positions of the row, all different.
absl::Status check_row(std::span<const int32_t> candidates, int64_t row, int64_t length) {
  int64_t previous = -1;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const int64_t position = candidates[i];
    if (position > previous && position < length) {
      previous = position;
      continue;
    }
    return absl::OutOfRangeError(str_cat("candidates[", row, ", ", i, "]=", position,
                                         ", accepted: ascending, ", previous + 1, "..",
                                         length - 1));
  }
  return absl::OkStatus();
}

absl::Status check_candidates(const Stream& stream, const pkv_rerank_args& a,
                              const BatchNumbers& batch) {
  const int32_t heads = a.codec.geometry->kv_heads;
  const int64_t rows = int64_t{a.batch.batch} * heads;
  PKV_RETURN_IF_ERROR(check_range("candidates_stride", a.candidates_stride, 0, format::kMaxTokens));
  PKV_ASSIGN_OR_RETURN(
      const int64_t numbers,
      checked_product("candidates", {{"rows", rows}, {"candidates_stride", a.candidates_stride}}));
  PKV_RETURN_IF_ERROR(check_pointer("candidates", a.candidates, numbers));
  PKV_RETURN_IF_ERROR(check_pointer("candidate_counts", a.candidate_counts, rows));
  PKV_ASSIGN_OR_RETURN(const auto counts, read_back(stream, a.candidate_counts, rows));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = counts[static_cast<std::size_t>(row)];
    PKV_RETURN_IF_ERROR(
        check_index(str_cat("candidate_counts[", row, "]"), count, 0, a.candidates_stride));
    PKV_ASSIGN_OR_RETURN(const auto candidates,
                         read_back(stream, a.candidates + row * a.candidates_stride, count));
    PKV_RETURN_IF_ERROR(
        check_row(candidates, row, batch.lengths[static_cast<std::size_t>(row / heads)]));
  }
  return absl::OkStatus();
}

absl::Status check_outputs(const pkv_rerank_args& a) {
  const int64_t rows = int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
  PKV_ASSIGN_OR_RETURN(const int64_t hits, checked_product("hits", {{"rows", rows}, {"k", a.k}}));
  PKV_RETURN_IF_ERROR(check_pointer("positions", a.positions, hits));
  PKV_RETURN_IF_ERROR(check_pointer("scores", a.scores, hits));
  PKV_RETURN_IF_ERROR(check_pointer("counts", a.counts, rows));
  return checked_product("estimates", {{"batch", a.batch.batch},
                                       {"query_heads", a.query_heads},
                                       {"candidates_stride", a.candidates_stride},
                                       {"bytes", int64_t{sizeof(float)}}})
      .status();
}

}  // namespace

absl::Status stage_rerank_sync(const Stream& stream, pkv_rerank_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_codec(args.codec));
  const pkv_geometry& g = *args.codec.geometry;
  PKV_RETURN_IF_ERROR(check_query_heads(args.query_heads, g.kv_heads));
  PKV_RETURN_IF_ERROR(check_options(args));
  PKV_ASSIGN_OR_RETURN(const BatchNumbers batch,
                       check_batch(stream, args.batch, g.kv_heads, Sequences::kRead));
  PKV_RETURN_IF_ERROR(check_candidates(stream, args, batch));
  PKV_RETURN_IF_ERROR(check_outputs(args));
  PKV_ASSIGN_OR_RETURN(const TensorView queries,
                       check_tensor(device, "queries", args.queries,
                                    {exactly("b", args.batch.batch),
                                     exactly("hq", args.query_heads), exactly("d", g.head_dim)},
                                    kFloatTypes));
  args.queries = queries.tensor();
  if (args.batch.batch == 0) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_store(device, g, args.store));
  PKV_RETURN_IF_ERROR(
      check_store_spans(stream, g, args.store, {batch.sequences, {}, batch.lengths}));
  PKV_RETURN_IF_ERROR(check_codec_sets(stream, args.codec, args.batch.batch));
  return run_stage_sync(stream, "rerank", device.backend().rerank, args);
}

}  // namespace pkv
