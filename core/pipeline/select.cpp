// Stage select: the candidates. docs/algorithm.md, section 5.

#include "core/base/checked.h"
#include "core/base/text.h"
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "core/pipeline/run_stage.h"
#include "core/pipeline/stages.h"

namespace pkv {
namespace {

absl::Status check_memory(const pkv_select_args& a) {
  const pkv_batch& batch = a.batch;
  PKV_RETURN_IF_ERROR(check_range("votes_stride", a.votes_stride, batch.max_length, INT64_MAX));
  PKV_ASSIGN_OR_RETURN(const int64_t votes,
                       checked_product("votes", {{"batch", batch.batch},
                                                 {"kv_heads", a.kv_heads},
                                                 {"votes_stride", a.votes_stride},
                                                 {"bytes", int64_t{sizeof(float)}}}));
  PKV_RETURN_IF_ERROR(check_pointer("votes", a.votes, batch.max_length == 0 ? 0 : votes));
  PKV_RETURN_IF_ERROR(check_range("candidates_stride", a.candidates_stride,
                                  format::largest_candidate_count(a.rule, batch.max_length),
                                  INT64_MAX));
  PKV_ASSIGN_OR_RETURN(const int64_t candidates,
                       checked_product("candidates", {{"batch", batch.batch},
                                                      {"kv_heads", a.kv_heads},
                                                      {"candidates_stride", a.candidates_stride},
                                                      {"bytes", int64_t{sizeof(int32_t)}}}));
  PKV_RETURN_IF_ERROR(check_pointer("candidates", a.candidates, candidates));
  return check_pointer("candidate_counts", a.candidate_counts, int64_t{batch.batch} * a.kv_heads);
}

}  // namespace

absl::Status check_candidate_rule(const pkv_candidate_rule& rule) {
  PKV_RETURN_IF_ERROR(check_range("rule.k", rule.k, 0, format::kMaxK));
  PKV_RETURN_IF_ERROR(check_range("rule.steps", rule.steps, 1, PKV_MAX_SCHEDULE));
  int64_t previous = 0;
  for (int32_t step = 0; step < rule.steps; ++step) {
    PKV_RETURN_IF_ERROR(check_range(str_cat("rule.ppm[", step, "]"), rule.ppm[step], 0, 1000000));
    const bool is_last = step == rule.steps - 1;
    PKV_RETURN_IF_ERROR(check_range(str_cat("rule.below[", step, "]"), rule.below[step],
                                    is_last ? INT64_MAX : previous + 1,
                                    is_last ? INT64_MAX : INT64_MAX - 1));
    previous = rule.below[step];
  }
  return absl::OkStatus();
}

absl::Status stage_select_sync(const Stream& stream, pkv_select_args args) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_range("kv_heads", args.kv_heads, 1, INT32_MAX));
  PKV_RETURN_IF_ERROR(check_candidate_rule(args.rule));
  PKV_RETURN_IF_ERROR(check_batch(stream, args.batch, args.kv_heads, Sequences::kUnused).status());
  PKV_RETURN_IF_ERROR(check_memory(args));
  if (args.batch.batch == 0) return absl::OkStatus();
  return run_stage_sync(stream, "select", device.backend().select, args);
}

}  // namespace pkv
