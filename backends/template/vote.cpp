// Stage vote: one number per indexed key. docs/algorithm.md, section 4. Exact: integer sums, one
// product.
//  - Query: sum over the group, times the stored reciprocal, rotated (4.1). A bad query votes NaN
//    (4.4).
//  - graded: a table of 256 integers per subspace, t = sum of look-ups, vote = fp32(t) * f (4.2).
//  - tier: the order of the 256 patterns decides their points; occupancy says how many keys hold
//    each (4.3).
//  - A key is bad if its first factor is NaN: vote NaN.
//  - votes [b * h, votes_stride]: only the first lengths[i] of a row are written.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_vote_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage vote yet (head_dim=%d)",
                         args->codec.geometry->head_dim);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_vote_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_vote_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_vote_slots vote_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
