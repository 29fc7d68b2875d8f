// Stage rerank: estimates, scores, the k best, the rest's mass. docs/algorithm.md, section 6.
// Exact: estimates of scalar4 and scalar5, and their mean. Bounded: the rest (docs/numerics.md, 3).
//  - scalar codecs: an integer dot, then four roundings as written (6.1).
//  - The order of the hits is exactly that of the scores written: descending, then ascending
//    position.
//  - Unused entries: position -1, score -inf. estimates are written up to the count of candidates
//    only.
//  - Samples (6.4): their positions lie on the sketch's stride; candidates are among them. All
//    tail_samples entries of sample_estimates are written: NaN at bad keys and where unused.
//  - A bad query (4.4): count 0, rest_lse -inf, sample_estimates NaN.
//  - estimates, rest_lse and sample_estimates may be NULL, each by itself; scratch takes their
//    place where later steps need them.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::template_backend {
namespace {

// Reads sizes, dtypes and options only; says no to what run cannot do, naming the value.
pkv_status supports(pkv_backend_device* device, const pkv_rerank_args* args) {
  return backend::refuse(device->host, PKV_UNIMPLEMENTED,
                         "the template has no stage rerank yet (head_dim=%d)",
                         args->codec.geometry->head_dim);
}

// Temporary memory for one call of these sizes, or of smaller lengths.
pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_rerank_args* /*args*/,
                         int64_t* out) {
  *out = 0;
  return PKV_OK;
}

// Enqueues, allocates nothing, waits for nothing. Not called before `supports` says PKV_OK.
pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_rerank_args* args, void* /*scratch*/) {
  return supports(device, args);
}

}  // namespace

pkv_rerank_slots rerank_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::template_backend
