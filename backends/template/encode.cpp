// Stage encode: keys, and values, to key records. docs/algorithm.md, section 3. Exact: every bit.
//  - The rotation of section 2.3 is the heart: core/format/rotation.h has its shape and constants;
//    every schedule of the butterflies gives the same bits.
//  - Sums are folds (section 0, core/format/fold.h). Thresholds compare the rounded product (3.4).
//  - A value sketch is made at positions that are multiples of the stride only (3.5), counted in
//    the sequence, not in the call; a key may be bad there that would be good elsewhere.
//  - A bad key (3.6) is written as such and counted nowhere; first_bad is its position in the
//    sequence.
//  - occupancy, value_sums and good_counts are added to, value_sums in ascending position (3.7).
//  - Entry i reads counts[i] tokens and no more: what lies behind may be anything.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_encode_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage encode yet (head_dim=%d)",
                         args->codec.geometry->head_dim);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_encode_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_encode_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_encode_slots encode_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
