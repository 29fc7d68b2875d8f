// The resident layout of key records, and its conversion from and to canonical planes.
// docs/format.md, section 1. Exact: conformance cases store/*. Write this first: no other stage can
// be tested without it. Any layout will do that holds the bits of pkv_records, e.g. blocks of 32
// keys for shuffles, or one record of 64 bytes per key; core knows only the bytes of a row.
// backends/cpu_ref/store.cpp keeps the planes as they are.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Bytes of one row of `capacity` tokens, a multiple of 256. core/format/records.h has the bytes per
// token and per value sketch, of which there is one per sketch_stride tokens.
pkv_status store_row_bytes(pkv_backend_device* device, const pkv_geometry* geometry,
                           int64_t /*capacity*/, int64_t* /*out*/) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no layout of key records yet (head_dim=%d)",
                         geometry->head_dim);
}

// Canonical record i becomes position begin + i of `row`; what lies beside it stays. Entry i of the
// canonical value planes is that of the i-th position of the range which has a sketch.
pkv_status store_import(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* /*geometry*/, const pkv_store* /*store*/,
                        int64_t /*row*/, int64_t /*begin*/, int64_t count,
                        const pkv_records* /*source*/) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template cannot import key records yet (count=%lld)",
                         static_cast<long long>(count));
}

pkv_status store_export(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
                        const pkv_geometry* /*geometry*/, const pkv_store* /*store*/,
                        int64_t /*row*/, int64_t /*begin*/, int64_t count,
                        const pkv_records* /*target*/) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template cannot export key records yet (count=%lld)",
                         static_cast<long long>(count));
}

}  // namespace

void fill_store_slots(pkv_backend& table) {
  table.store_row_bytes = store_row_bytes;
  table.store_import = store_import;
  table.store_export = store_export;
}

}  // namespace pkv::template_backend
