// Joining attention over disjoint sets of tokens: outputs and their log-sum-exp.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// As pkv_merge.
absl::Status merge(const Stream& stream, int32_t count, const pkv_tensor* outputs,
                   const float* const* lses, const pkv_tensor& output, float* lse);

}  // namespace pkv
