#include "backends/gpu/store.h"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/store.cuh"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

template <bool kImports>
pkv_status convert(pkv_backend_device* device, pkv_backend_stream* stream,
                   const pkv_geometry& geometry, const pkv_store& store, int64_t row, int64_t begin,
                   int64_t count, const pkv_records& records) {
  return run_stage(device, stream, kImports ? "import" : "export", [&](gpuStream_t s) {
    const StoreArgs args = {geometry,
                            view_of(store, geometry),
                            row,
                            begin,
                            count,
                            records,
                            format::sketch_count(geometry, begin)};
    LaunchShape shape;
    shape.grid_x = grid_tiles(count, Traits::kStoreThreads, 1 << 20);
    shape.threads = Traits::kStoreThreads;
    return launch(kImports ? "import_records" : "export_records", convert_records<Traits, kImports>,
                  shape, s, args);
  });
}

}  // namespace

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out) {
  const pkv_host* host = device_of(device).host;
  pkv_status status = check_geometry(host, *geometry);
  if (status != PKV_OK) return status;
  status = check_range(host, "capacity", capacity, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  *out = gpu::make_layout(*geometry, capacity).piece_bytes;
  return PKV_OK;
}

pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source) {
  return convert<true>(device, stream, *geometry, *store, row, begin, count, *source);
}

pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target) {
  return convert<false>(device, stream, *geometry, *store, row, begin, count, *target);
}

}  // namespace PKV_GPU_NS
