// Stage fit: counts and sums about a pivot, from which core makes the codec's parameters.
// docs/algorithm.md, section 2.2. Bounded: docs/numerics.md, section 3; the counts are exact.
//  - A key counts if the squares of its elements have a finite sum in fp32 (and those of its value,
//    if values are given); a query row likewise.
//  - Weights multiply the keys' sums, not counts and not the values' sums; key_weights is their sum
//    over the keys that count.
//  - Queries count by head, or as the sums of a position's heads (4.1), as queries_as says.
//  - Outputs are overwritten. Sums in double, or in fp32 over at most 1,024 keys at a time, then
//    double.
//  - Without queries (args->queries.ndim == 0) the query counts and squares are 0.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_fit_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage fit yet (head_dim=%d)",
                         args->geometry->head_dim);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_fit_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/, const pkv_fit_args* args,
               void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_fit_slots fit_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
