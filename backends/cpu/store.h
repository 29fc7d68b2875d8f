// Sizes of stores, and key records between the resident layout (layout.h) and canonical planes.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t capacity, int64_t* out);
pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* source);
pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* stream,
                        const pkv_geometry* geometry, const pkv_store* store, int64_t row,
                        int64_t begin, int64_t count, const pkv_records* target);

}  // namespace pkv::cpu
