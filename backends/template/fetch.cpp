// Stage fetch: K and V rows at given positions. docs/algorithm.md, section 7. Exact: byte for byte,
// any dtype, NaN payloads included.
//  - Source and target are strided views; a row may be aligned to its element only.
//  - Position -1 writes zero bytes. Positions were checked.
//  - The source may be host memory that the device reads (PKV_MEMORY_HOST).
//  - scratch_bytes stays 0: a decoding step calls this stage without scratch.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_fetch_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage fetch yet (k=%d)", args->k);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fetch_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_fetch_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_fetch_slots fetch_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
