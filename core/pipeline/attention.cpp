// attend with a plan: exact softmax over dense parts and fetched rows, and the tail.
// docs/algorithm.md, 8.
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/dense_attention.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/step.h"

namespace pkv {
namespace {

// What hits bring, or nothing of the zone.
absl::Status set_hits(const Plan& plan, const pkv_hits* hits, pkv_attend_args& args) {
  if (hits == nullptr) {
    args.k = 0;
    args.tail = PKV_TAIL_DROP;
    return absl::OkStatus();
  }
  PKV_RETURN_IF_ERROR(check_range("hits.flags", hits->flags, 0, 0));
  read_hits(*hits, args);
  if (args.tail != PKV_TAIL_DROP) PKV_RETURN_IF_ERROR(check_tail_values(plan));
  return check_attend_hits(args);
}

}  // namespace

void read_hits(const pkv_hits& hits, pkv_attend_args& args) {
  args.positions = hits.positions;
  args.counts = hits.counts;
  args.candidates = hits.candidates;
  args.candidate_counts = hits.candidate_counts;
  args.estimates = hits.estimates;
  args.rest_lse = hits.rest_lse;
  args.sample_estimates = hits.sample_estimates;
}

absl::Status attend_in(const Plan& plan, const Stream& stream, const pkv_attention& attention,
                       const pkv_hits* hits, void* memory) {
  const pkv_attend_slots& slots = plan.device().backend().attend;
  const pkv_geometry& g = plan.geometry();
  DenseAttention dense;
  PKV_RETURN_IF_ERROR(dense.check(plan, attention));
  pkv_attend_args& args = dense.args;
  PKV_RETURN_IF_ERROR(set_hits(plan, hits, args));
  KeysValues fetched;
  if (args.k > 0) {
    PKV_RETURN_IF_ERROR(check_keys_values(plan.device(), "rows", attention.rows.keys,
                                          attention.rows.values, exactly("b", plan.batch()), g,
                                          exactly("k", args.k), fetched));
    PKV_RETURN_IF_ERROR(dense.check_apart("rows", fetched));
    args.row_keys = fetched.keys->tensor();
    args.row_values = fetched.values_tensor(g.value_dim);
  } else if (hits == nullptr && is_present(attention.rows.keys)) {
    return absl::InvalidArgumentError("rows.keys are given, accepted: none without hits");
  }
  if (plan.batch() == 0) return absl::OkStatus();

  const ScratchLedger& ledger = plan.attend_scratch();
  PKV_RETURN_IF_ERROR(check_parts_fit(plan.device(), "attend", slots, args,
                                      ledger.bytes(Piece::kStage), plan.max_tokens()));
  PKV_ASSIGN_OR_RETURN(args.batch.lengths,
                       plan.lengths(stream, ledger.get<int64_t>(memory, Piece::kLengths)));
  PKV_RETURN_IF_ERROR(
      dense.copy_lengths(plan, stream, ledger.get<int64_t>(memory, Piece::kPartLengths)));
  return plan.device().call("attend", slots.run, stream.handle(), &args,
                            ledger.get<void>(memory, Piece::kStage));
}

absl::Status attend(const Plan& plan, const Stream& stream, const pkv_attention& attention,
                    const pkv_hits* hits) {
  PKV_RETURN_IF_ERROR(plan.check_stream(stream));
  PKV_ASSIGN_OR_RETURN(void* memory, plan.scratch(attention.scratch));
  PKV_ASSIGN_OR_RETURN(const Plan::Busy busy, Plan::Busy::enter(plan));
  return attend_in(plan, stream, attention, hits, memory);
}

}  // namespace pkv
