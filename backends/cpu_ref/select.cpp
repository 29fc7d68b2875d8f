// Stage select: the C keys with the highest vote. docs/algorithm.md, section 5.
// Exact: a total order, larger vote first, then smaller position.
#include <algorithm>
#include <cmath>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/scratch.h"
#include "backends/cpu_ref/stages.h"
#include "core/format/candidates.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu_ref {
namespace {

pkv_status supports(pkv_backend_device* device, const pkv_select_args* args) {
  const pkv_host* host = device->host;
  pkv_status status =
      check_range(host, "max_length", args->batch.max_length, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  status = check_range(host, "steps of the candidate rule", args->rule.steps, 1, PKV_MAX_SCHEDULE);
  if (status != PKV_OK) return status;
  status = check_range(host, "k", args->rule.k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  return check_range(host, "candidates_stride", args->candidates_stride,
                     format::largest_candidate_count(args->rule, args->batch.max_length),
                     INT64_MAX);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_select_args* args,
                         int64_t* out) {
  Scratch scratch(nullptr);
  scratch.take<int32_t>(args->batch.max_length);
  *out = scratch.bytes();
  return PKV_OK;
}

// `order` [n]: temporary.
void select_row(const pkv_select_args& a, int64_t row, int64_t n, int32_t* order) {
  const float* votes = a.votes + row * a.votes_stride;
  int32_t* candidates = a.candidates + row * a.candidates_stride;

  int64_t eligible = 0;
  for (int64_t position = 0; position < n; ++position) {
    if (!std::isnan(votes[position])) order[eligible++] = static_cast<int32_t>(position);
  }
  const int64_t count = std::min(format::candidate_count(a.rule, n), eligible);
  std::nth_element(order, order + count, order + eligible, [votes](int32_t left, int32_t right) {
    return votes[left] != votes[right] ? votes[left] > votes[right] : left < right;
  });
  std::sort(order, order + count);  // listed in ascending position
  std::copy(order, order + count, candidates);
  std::fill(candidates + count, candidates + a.candidates_stride, -1);
  a.candidate_counts[row] = static_cast<int32_t>(count);
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_select_args* args, void* scratch) {
  Scratch pieces(scratch);
  auto* order = pieces.take<int32_t>(args->batch.max_length);
  for (int64_t i = 0; i < args->batch.batch; ++i) {
    for (int32_t head = 0; head < args->kv_heads; ++head) {
      select_row(*args, i * args->kv_heads + head, args->batch.lengths[i], order);
    }
  }
  return PKV_OK;
}

}  // namespace

pkv_select_slots select_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
