// retrieve: the central path of a decoding step. docs/algorithm.md, sections 4 to 6.
//   query -> vote (one number per key) -> select (candidates) -> rerank (the k best)
#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

// Where the stages write: the caller's memory, or scratch where the caller has none.
struct Outputs {
  int32_t* positions;
  float* scores;
  int32_t* counts;
  int32_t* candidates;
  int32_t* candidate_counts;
  float* estimates;         // NULL: not wanted
  float* rest_lse;          // NULL: not wanted
  float* sample_estimates;  // NULL: not wanted
};

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

Outputs outputs_of(const Plan& plan, void* scratch, const pkv_hits& hits) {
  const ScratchLedger& ledger = plan.retrieve_scratch();
  const auto or_scratch = [&]<class Value>(Value* given, Piece piece) {
    return given != nullptr ? given : ledger.get<Value>(scratch, piece);
  };
  return {hits.positions,
          or_scratch(hits.scores, Piece::kScores),
          hits.counts,
          or_scratch(hits.candidates, Piece::kCandidates),
          or_scratch(hits.candidate_counts, Piece::kCandidateCounts),
          hits.estimates,
          hits.rest_lse,
          hits.sample_estimates};
}

absl::Status run(const Plan& plan, const Stream& stream, const pkv_tensor& query, void* scratch,
                 const Outputs& out) {
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
                       plan.lengths(stream, ledger.get<int64_t>(scratch, Piece::kLengths)));
  void* stage = ledger.get<void>(scratch, Piece::kStage);

  vote.batch.lengths = lengths;
  vote.votes = ledger.get<float>(scratch, Piece::kVotes);
  PKV_RETURN_IF_ERROR(device.call("vote", backend.vote.run, stream.handle(), &vote, stage));

  select.batch.lengths = lengths;
  select.votes = vote.votes;
  select.candidates = out.candidates;
  select.candidate_counts = out.candidate_counts;
  PKV_RETURN_IF_ERROR(device.call("select", backend.select.run, stream.handle(), &select, stage));

  rerank.batch.lengths = lengths;
  rerank.candidates = out.candidates;
  rerank.candidate_counts = out.candidate_counts;
  rerank.positions = out.positions;
  rerank.scores = out.scores;
  rerank.counts = out.counts;
  rerank.estimates = out.estimates;
  rerank.rest_lse = out.rest_lse;
  rerank.sample_estimates = out.sample_estimates;
  return device.call("rerank", backend.rerank.run, stream.handle(), &rerank, stage);
}

}  // namespace

absl::Status retrieve(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                      void* scratch, const pkv_hits& hits) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_ASSIGN_OR_RETURN(const TensorView view,
                       check_tensor(plan.device(), "query", query,
                                    {exactly("b", plan.batch()), exactly("hq", plan.query_heads()),
                                     exactly("d", plan.geometry().head_dim)},
                                    kFloatTypes));
  PKV_RETURN_IF_ERROR(check_hits(plan, hits));
  PKV_RETURN_IF_ERROR(plan.check_lengths());
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  if (plan.batch() == 0) return absl::OkStatus();
  return run(plan, stream, view.tensor(), memory, outputs_of(plan, memory, hits));
}

}  // namespace pkv
