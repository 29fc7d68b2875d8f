// Launches of stage select.
#include "backends/gpu/select.cuh"

#include "backends/gpu/best_kernels.cuh"
#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/stages.h"

namespace PKV_GPU_NS {
namespace {

int64_t rows_of(const pkv_select_args& a) { return int64_t{a.batch.batch} * a.kv_heads; }

pkv_status supports(pkv_backend_device* device, const pkv_select_args* args) {
  const pkv_host* host = device_of(device).host;
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
  take_best_scratch(scratch, rows_of(*args), args->batch.max_length);
  *out = scratch.bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_select_args* args,
               void* scratch) {
  return run_stage(device, stream, "select", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const int64_t max_length = args->batch.max_length;
    const BestScratch best = take_best_scratch(pieces, rows_of(*args), max_length);
    const SelectBounds bounds = {args->votes, args->votes_stride, args->batch.lengths,
                                 args->kv_heads, args->rule};
    const BestOutput out = {args->candidates, args->candidates_stride, args->candidate_counts, 1};
    return launch_best(bounds, rows_of(*args), max_length, out, best, s);
  });
}

}  // namespace

pkv_select_slots select_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
