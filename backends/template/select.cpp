// Stage select: the candidates. docs/algorithm.md, section 5. Exact: a total order.
//  - core/format/candidates.h has the count. Larger vote first, equal votes by smaller position; -0
//    equals +0; NaN is never chosen, -inf is an ordinary lowest value.
//  - Listed in ascending position; all candidates_stride entries of a row are written, unused ones
//    -1.
//  - Ties are normal, and may outnumber any buffer for ties.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_select_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage select yet (max_length=%d)",
                         static_cast<int>(args->batch.max_length));
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_select_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_select_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_select_slots select_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
