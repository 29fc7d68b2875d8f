// Single stages, one file each: fit.cpp, encode.cpp, vote.cpp, select.cpp, rerank.cpp, fetch.cpp,
// attend.cpp. Each checks all its arguments, runs the backend's slot with scratch of its own, and
// waits; nothing is written when a check refuses. docs/algorithm.md, sections 2 to 8.
// Not here: the decoding step, where a plan has checked and sized things once (retrieve.h).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

absl::Status stage_fit_sync(const Stream& stream, pkv_fit_args args);
absl::Status stage_encode_sync(const Stream& stream, pkv_encode_args args);
absl::Status stage_vote_sync(const Stream& stream, pkv_vote_args args);
absl::Status stage_select_sync(const Stream& stream, pkv_select_args args);
absl::Status stage_rerank_sync(const Stream& stream, pkv_rerank_args args);
absl::Status stage_fetch_sync(const Stream& stream, pkv_fetch_args args);
absl::Status stage_attend_sync(const Stream& stream, pkv_attend_args args);

// The rule's steps ascend and end at INT64_MAX, its shares and k lie within their ranges.
absl::Status check_candidate_rule(const pkv_candidate_rule& rule);

// What a fit takes beside `tokens` keys per head, where it is there: queries [hq, m, d], values
// [h, t, dv].
struct FitSamples {
  std::optional<TensorView> queries, values;
};
absl::StatusOr<FitSamples> check_fit_samples(const Device& device, const pkv_geometry& geometry,
                                             int64_t tokens, const pkv_tensor& queries,
                                             const pkv_tensor& values);

}  // namespace pkv
