// Launch of stage fetch.
#include "backends/gpu/fetch.h"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/fetch.cuh"
#include "backends/gpu/stages.h"
#include "core/format/records.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

pkv_status check_copy(const pkv_host* host, const char* name, const pkv_tensor& source,
                      const pkv_tensor& target) {
  if (source.ndim == 0) return PKV_OK;
  if (dtype_bytes(source.dtype) != 0 && source.dtype == target.dtype) return PKV_OK;
  return backend::refuse(host, PKV_UNIMPLEMENTED,
                         "%s: dtype=%d into dtype=%d: must be the same, f32 (%d), f16 (%d), "
                         "bf16 (%d), u8 (%d), i32 (%d) or i64 (%d)",
                         name, source.dtype, target.dtype, PKV_DTYPE_F32, PKV_DTYPE_F16,
                         PKV_DTYPE_BF16, PKV_DTYPE_U8, PKV_DTYPE_I32, PKV_DTYPE_I64);
}

pkv_status supports(pkv_backend_device* device, const pkv_fetch_args* args) {
  const pkv_host* host = device_of(device).host;
  pkv_status status = check_range(host, "k", args->k, 0, format::kMaxK);
  if (status != PKV_OK) return status;
  status = check_copy(host, "keys", args->source_keys, args->keys);
  if (status != PKV_OK) return status;
  return check_copy(host, "values", args->source_values, args->values);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fetch_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

void add_side(FetchArgs& args, const pkv_tensor& source, const pkv_pages& pages,
              const pkv_tensor& target) {
  if (source.ndim == 0) return;
  args.sides[args.side_count++] = {source_of(source, pages), view_of(target),
                                   source.shape[3] * dtype_bytes(source.dtype)};
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_fetch_args* args,
               void* /*scratch*/) {
  return run_stage(device, stream, "fetch", [&](gpuStream_t s) { return launch_fetch(*args, s); });
}

}  // namespace

gpuError_t launch_fetch(const pkv_fetch_args& a, gpuStream_t stream) {
  FetchArgs args{};
  add_side(args, a.source_keys, a.key_pages, a.keys);
  add_side(args, a.source_values, a.value_pages, a.values);
  args.kv_heads = a.kv_heads;
  args.k = a.k;
  args.rows = int64_t{a.batch.batch} * a.kv_heads;
  args.sequences = a.batch.sequences;
  args.positions = a.positions;
  LaunchShape shape;
  shape.grid_x = grid_tiles(int64_t{a.k} * args.side_count, Traits::kFetchThreads / kFetchLanes);
  shape.grid_y = grid_rows(args.rows);
  shape.threads = Traits::kFetchThreads;
  return launch("fetch_rows", fetch_rows<Traits>, shape, stream, args);
}

pkv_fetch_slots fetch_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
