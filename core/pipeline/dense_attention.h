// The half of an attention that has nothing to do with the zone: query, output, dense parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/pipeline/attend_checks.h"
#include "core/plan/plan.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv {

// Stays where it is: the arguments point into it.
class DenseAttention {
 public:
  DenseAttention() = default;
  DenseAttention(const DenseAttention&) = delete;
  DenseAttention& operator=(const DenseAttention&) = delete;

  // The caller's arguments into `args`, on top of the plan's. Call: pkv_attention or pkv_step.
  template <class Call>
  absl::Status check(const Plan& plan, const Call& call) {
    PKV_RETURN_IF_ERROR(check_count(call.dense_count));
    args = plan.attend_args();
    args.lse = call.lse;
    args.sink_logits = call.sink_logits;
    return check(plan, call.query, call.output,
                 {call.dense, static_cast<std::size_t>(call.dense_count)});
  }
  // Lengths of dense parts are the caller's host memory; the backend reads them from `room`,
  // PKV_MAX_PARTS * b numbers of scratch.
  absl::Status copy_lengths(const Plan& plan, const Stream& stream, int64_t* room);
  // That the output does not overlap these rows either.
  absl::Status check_apart(const std::string& name, const KeysValues& rows) const {
    return check_output_apart(tensors_->output, name, rows);
  }

  pkv_attend_args args{};

 private:
  static absl::Status check_count(int32_t dense_count);
  absl::Status check(const Plan& plan, const pkv_tensor& query, const pkv_tensor& output,
                     std::span<const pkv_dense> dense);

  std::optional<QueryOutput> tensors_;
  std::array<KeysValues, PKV_MAX_PARTS> parts_;
};

// The pseudo-token of the tail is the mean over all values of the zone, so all must have been
// given. FAILED_PRECONDITION names the sequence that lacks them.
absl::Status check_tail_values(const Plan& plan);

}  // namespace pkv
