// The fused step: a row per task. docs/algorithm.md, sections 4 to 8.
#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/stages.h"
#include "backends/cpu/step_row.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

int64_t bytes_each(const Isa& isa, const pkv_step_args& args) {
  Scratch scratch(nullptr);
  take_step_room(scratch, isa, args);
  return scratch.bytes();
}

pkv_status supports(pkv_backend_device* device, const pkv_step_args* args) {
  const pkv_host* host = device->host;
  pkv_status status = check_vote(host, args->vote);
  if (status != PKV_OK) return status;
  status = check_select(host, args->select);
  if (status != PKV_OK) return status;
  status = check_rerank(host, args->rerank);
  if (status != PKV_OK || !has_attention(*args)) return status;
  return check_attend(host, args->attend, args->fetch.source_keys, args->fetch.source_values);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_step_args* args, int64_t* out) {
  *out = device->pool.reserve_workers() * bytes_each(device->isa, *args);
  return PKV_OK;
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_step_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    const pkv_geometry& geometry = *args->vote.codec.geometry;
    const Layout layout = make_layout(geometry, args->vote.store.capacity);
    const int64_t each = bytes_each(device->isa, *args);
    const int64_t rows = int64_t{args->vote.batch.batch} * geometry.kv_heads;
    return device->pool.parallel(rows, 1, [&](int64_t r, int32_t worker) {
      Scratch own = worker_scratch(scratch, worker, each);
      StepRoom room = take_step_room(own, device->isa, *args);
      run_row(device->isa, step_row_of(*args, layout, r), room);
    });
  });
}

}  // namespace

pkv_step_slots step_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
