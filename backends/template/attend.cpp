// Stage attend: exact softmax over dense parts and fetched rows, and the tail. docs/algorithm.md,
// section 8. Bounded: docs/numerics.md, section 3.
//  - Only the first lengths[i] tokens of a part and the first counts[r] fetched rows are read; a
//    row of weight 0 need not be, since 0 times NaN is NaN.
//  - The running maximum covers the tail's logits too. lse is natural, the tail included.
//  - Nothing to attend to, or a bad query (4.4): output exactly 0, lse exactly -inf.
//  - tail = sampled: one pseudo-token, whose value leans to the samples that were not fetched as
//    far as their effective number carries. A sample whose estimate is NaN is left out, its sketch
//    not read.
//  - tail = sketch: candidates that were not fetched are tokens of their own; the pseudo-token of
//    the rest has its value from the samples that are no candidates.
//  - Sketched values are summed in rotated space and un-rotated once per head.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_attend_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage attend yet (head_dim=%d)",
                         args->codec.geometry->head_dim);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_attend_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_attend_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_attend_slots attend_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
