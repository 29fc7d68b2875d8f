// retrieve: the central path of a decoding step. docs/algorithm.md, sections 4 to 6.
//   query -> vote (one number per key) -> select (candidates) -> rerank (the k best)
#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

absl::Status check_hits(const Plan& plan, const pkv_hits& hits) {
  const int64_t rows = int64_t{plan.batch()} * plan.geometry().kv_heads;
  const int64_t heads = int64_t{plan.batch()} * plan.query_heads();
  PKV_RETURN_IF_ERROR(check_range("hits.flags", hits.flags, 0, 0));
  PKV_RETURN_IF_ERROR(check_pointer("hits.positions", hits.positions, rows * plan.options().k));
  PKV_RETURN_IF_ERROR(check_pointer("hits.counts", hits.counts, rows));
  if (plan.options().tail == PKV_TAIL_DROP) return absl::OkStatus();
  PKV_RETURN_IF_ERROR(check_pointer("hits.candidates", hits.candidates, rows * plan.candidates()));
  PKV_RETURN_IF_ERROR(check_pointer("hits.candidate_counts", hits.candidate_counts, rows));
  PKV_RETURN_IF_ERROR(check_pointer("hits.estimates", hits.estimates, heads * plan.candidates()));
  PKV_RETURN_IF_ERROR(check_pointer("hits.rest_lse", hits.rest_lse, heads));
  if (plan.options().tail == PKV_TAIL_MEAN) return absl::OkStatus();
  return check_pointer("hits.sample_estimates", hits.sample_estimates, heads);
}

void set_outputs(const pkv_hits& out, pkv_select_args& select, pkv_rerank_args& rerank) {
  select.candidates = out.candidates;
  select.candidate_counts = out.candidate_counts;
  set_rerank_outputs(out, rerank);
}

absl::Status run_stages(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                        void* memory, const pkv_hits& out) {
  const Device& device = plan.device();
  const pkv_backend& backend = device.backend();
  const ScratchLedger& ledger = plan.retrieve_scratch();
  pkv_vote_args vote = plan.vote_args();
  pkv_select_args select = plan.select_args();
  pkv_rerank_args rerank = plan.rerank_args();
  vote.queries = query;
  rerank.queries = query;
  // The rest was asked when the plan was made; the dtype of the query is new.
  PKV_RETURN_IF_ERROR(device.call("vote", backend.vote.supports, &vote));
  PKV_RETURN_IF_ERROR(device.call("rerank", backend.rerank.supports, &rerank));

  PKV_ASSIGN_OR_RETURN(const int64_t* lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  void* stage = ledger.get<void>(memory, Piece::kStage);
  vote.batch.lengths = select.batch.lengths = rerank.batch.lengths = lengths;
  set_outputs(out, select, rerank);
  vote.votes = ledger.get<float>(memory, Piece::kVotes);
  select.votes = vote.votes;
  PKV_RETURN_IF_ERROR(device.call("vote", backend.vote.run, stream.handle(), &vote, stage));
  PKV_RETURN_IF_ERROR(device.call("select", backend.select.run, stream.handle(), &select, stage));
  return device.call("rerank", backend.rerank.run, stream.handle(), &rerank, stage);
}

absl::Status run_fused(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                       void* memory, const pkv_hits& out) {
  const Device& device = plan.device();
  const ScratchLedger& ledger = plan.retrieve_scratch();
  PKV_ASSIGN_OR_RETURN(const int64_t* lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  const pkv_step_args args = fused_args(plan, query, lengths, out);
  PKV_RETURN_IF_ERROR(device.call("retrieve", device.backend().step.supports, &args));
  return device.call("retrieve", device.backend().step.run, stream.handle(), &args,
                     ledger.get<void>(memory, Piece::kStage));
}

}  // namespace

absl::StatusOr<TensorView> check_plan_query(const Plan& plan, const pkv_tensor& query) {
  return check_tensor(plan.device(), "query", query,
                      {exactly("b", plan.batch()), exactly("hq", plan.query_heads()),
                       exactly("d", plan.geometry().head_dim)},
                      kFloatTypes);
}

void set_rerank_outputs(const pkv_hits& out, pkv_rerank_args& rerank) {
  rerank.candidates = out.candidates;
  rerank.candidate_counts = out.candidate_counts;
  rerank.positions = out.positions;
  rerank.scores = out.scores;
  rerank.counts = out.counts;
  rerank.estimates = out.estimates;
  rerank.rest_lse = out.rest_lse;
  rerank.sample_estimates = out.sample_estimates;
}

pkv_hits with_scratch(const ScratchLedger& ledger, void* memory, pkv_hits hits) {
  ledger.supply(memory, Piece::kPositions, hits.positions);
  ledger.supply(memory, Piece::kScores, hits.scores);
  ledger.supply(memory, Piece::kCounts, hits.counts);
  ledger.supply(memory, Piece::kCandidates, hits.candidates);
  ledger.supply(memory, Piece::kCandidateCounts, hits.candidate_counts);
  ledger.supply(memory, Piece::kEstimates, hits.estimates);
  ledger.supply(memory, Piece::kRestLse, hits.rest_lse);
  ledger.supply(memory, Piece::kSampleEstimates, hits.sample_estimates);
  return hits;
}

pkv_step_args fused_args(const Plan& plan, const pkv_tensor& query, const int64_t* lengths,
                         const pkv_hits& out) {
  pkv_step_args args = plan.step_args();
  args.vote.queries = query;
  args.rerank.queries = query;
  args.vote.batch.lengths = args.select.batch.lengths = args.rerank.batch.lengths = lengths;
  set_outputs(out, args.select, args.rerank);
  return args;
}

absl::Status retrieve_in(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                         const pkv_hits& hits, void* memory) {
  PKV_ASSIGN_OR_RETURN(const TensorView view, check_plan_query(plan, query));
  PKV_RETURN_IF_ERROR(check_hits(plan, hits));
  PKV_RETURN_IF_ERROR(plan.check_lengths());
  if (plan.batch() == 0) return absl::OkStatus();
  const pkv_hits out = with_scratch(plan.retrieve_scratch(), memory, hits);
  return plan.is_fused() ? run_fused(plan, stream, view.tensor(), memory, out)
                         : run_stages(plan, stream, view.tensor(), memory, out);
}

absl::Status retrieve(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                      void* scratch, const pkv_hits& hits) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  return retrieve_in(plan, stream, query, hits, memory);
}

}  // namespace pkv
