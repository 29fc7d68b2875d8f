// The halves of a retrieve, vote and rerank, on plans: the caller chooses candidates in between.
// docs/algorithm.md, sections 4 and 6. The path in one call: retrieve.cpp.
#include <cstddef>

#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

absl::Status check_reranked(const Plan& plan, const pkv_hits& hits) {
  const int64_t rows = int64_t{plan.batch()} * plan.geometry().kv_heads;
  PKV_RETURN_IF_ERROR(check_range("hits.flags", hits.flags, 0, 0));
  PKV_RETURN_IF_ERROR(check_pointer("hits.positions", hits.positions, rows * plan.options().k));
  PKV_RETURN_IF_ERROR(check_pointer("hits.counts", hits.counts, rows));
  PKV_RETURN_IF_ERROR(check_pointer("hits.candidates", hits.candidates, rows * plan.candidates()));
  return check_pointer("hits.candidate_counts", hits.candidate_counts, rows);
}

// With host memory everything can be looked at, with a device's nothing.
absl::Status check_chosen(const Plan& plan, const Stream& stream, const pkv_hits& hits) {
  if (plan.device().info().device_type != PKV_DEVICE_CPU) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(stream.sync());
  const int32_t heads = plan.geometry().kv_heads;
  for (int64_t row = 0; row < int64_t{plan.batch()} * heads; ++row) {
    const int32_t sequence = plan.sequences()[static_cast<std::size_t>(row / heads)];
    const int64_t length = plan.index().length(sequence);
    const int32_t count = hits.candidate_counts[row];
    PKV_RETURN_IF_ERROR(
        check_index(str_cat("candidate_counts[", row, "]"), count, 0, plan.candidates()));
    const int32_t* const candidates = hits.candidates + row * plan.candidates();
    int64_t previous = -1;
    for (int32_t i = 0; i < count; ++i) {
      PKV_RETURN_IF_ERROR(check_index(str_cat("candidates[", row, ", ", i, "]"), candidates[i],
                                      previous + 1, length - 1));
      previous = candidates[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status vote(const Plan& plan, const Stream& stream, const pkv_tensor& query, void* scratch,
                  float* votes, int64_t stride) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  PKV_ASSIGN_OR_RETURN(const TensorView view, check_plan_query(plan, query));
  PKV_RETURN_IF_ERROR(check_range("stride", stride, plan.max_tokens(), format::kMaxTokens));
  PKV_RETURN_IF_ERROR(plan.check_lengths());
  PKV_RETURN_IF_ERROR(plan.halves_status());
  if (plan.batch() == 0) return absl::OkStatus();
  const Device& device = plan.device();
  const ScratchLedger& ledger = plan.halves_scratch();
  pkv_vote_args args = plan.vote_args();
  args.queries = view.tensor();
  args.votes = votes;
  args.votes_stride = stride;
  PKV_RETURN_IF_ERROR(device.call("vote", device.backend().vote.supports, &args));
  PKV_ASSIGN_OR_RETURN(args.batch.lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  return device.call("vote", device.backend().vote.run, stream.handle(), &args,
                     ledger.get<void>(memory, Piece::kStage));
}

absl::Status rerank(const Plan& plan, const Stream& stream, const pkv_tensor& query, void* scratch,
                    const pkv_hits& hits) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  PKV_ASSIGN_OR_RETURN(const TensorView view, check_plan_query(plan, query));
  PKV_RETURN_IF_ERROR(check_reranked(plan, hits));
  PKV_RETURN_IF_ERROR(plan.check_lengths());
  PKV_RETURN_IF_ERROR(plan.halves_status());
  if (plan.batch() == 0) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_chosen(plan, stream, hits));
  const Device& device = plan.device();
  const ScratchLedger& ledger = plan.halves_scratch();
  pkv_rerank_args args = plan.rerank_args();
  args.queries = view.tensor();
  set_rerank_outputs(with_scratch(ledger, memory, hits), args);
  PKV_RETURN_IF_ERROR(device.call("rerank", device.backend().rerank.supports, &args));
  PKV_ASSIGN_OR_RETURN(args.batch.lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  return device.call("rerank", device.backend().rerank.run, stream.handle(), &args,
                     ledger.get<void>(memory, Piece::kStage));
}

}  // namespace pkv
