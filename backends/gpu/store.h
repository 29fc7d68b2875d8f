// The layout slots: import and export of canonical records (docs/format.md).
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out);
pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source);
pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target);

}  // namespace PKV_GPU_NS
