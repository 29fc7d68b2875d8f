// The half of an attention that has nothing to do with the zone: query, output, dense parts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
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

  // The caller's arguments into `args`, on top of the plan's.
  absl::Status check(const Plan& plan, const pkv_tensor& query, const pkv_tensor& output,
                     float* lse, std::span<const pkv_dense> dense);
  // Lengths of dense parts are the caller's host memory; the backend reads them from `room`,
  // PKV_MAX_PARTS * b numbers of scratch.
  absl::Status copy_lengths(const Plan& plan, const Stream& stream, int64_t* room);
  // That the output does not overlap these rows either.
  absl::Status check_apart(const std::string& name, const KeysValues& rows) const {
    return check_output_apart(tensors_->output, name, rows);
  }
  // INVALID_ARGUMENT: more parts than PKV_ATTENTION_PARTS.
  static absl::Status check_count(int32_t dense_count);

  pkv_attend_args args{};

 private:
  std::optional<QueryOutput> tensors_;
  std::array<KeysValues, PKV_MAX_PARTS> parts_;
};

// The pseudo-token of the tail is the mean over all values of the zone, so all must have been
// given. FAILED_PRECONDITION names the sequence that lacks them.
absl::Status check_tail_values(const Plan& plan);

}  // namespace pkv
