// Launches of stage select.
#include "backends/gpu/select.h"

#include "backends/gpu/best_kernels.cuh"
#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/select.cuh"
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
  take_select_scratch(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_select_args* args,
               void* scratch) {
  return run_stage(device, stream, "select", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    return launch_select(*args, take_select_scratch(pieces, *args), false, s);
  });
}

}  // namespace

BestScratch take_select_scratch(Scratch& scratch, const pkv_select_args& a) {
  return take_best_scratch(scratch, rows_of(a), a.batch.max_length);
}

gpuError_t launch_select(const pkv_select_args& a, const BestScratch& scratch, bool is_counted,
                         gpuStream_t stream) {
  const SelectBounds bounds = {a.votes, a.votes_stride, a.batch.lengths, a.kv_heads, a.rule};
  const BestOutput out = {a.candidates, a.candidates_stride, a.candidate_counts, 1};
  return launch_best(bounds, rows_of(a), a.batch.max_length, out, scratch, stream, is_counted);
}

pkv_select_slots select_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
