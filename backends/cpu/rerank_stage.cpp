// Slots of stage rerank: a row per task. docs/algorithm.md, section 6.
#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/rerank.h"
#include "backends/cpu/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

struct Temporaries {
  RowQuery query;
  RerankRoom room;
};

Temporaries take_temporaries(Scratch& scratch, const Isa& isa, const pkv_rerank_args& args) {
  const RowQuery query = take_row_query(scratch, *args.codec.geometry, args.query_heads);
  return {query, take_rerank_room(scratch, isa, args)};
}

int64_t bytes_each(const Isa& isa, const pkv_rerank_args& args) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, isa, args);
  return scratch.bytes();
}

pkv_status supports(pkv_backend_device* device, const pkv_rerank_args* args) {
  return check_rerank(device->host, *args);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_rerank_args* args, int64_t* out) {
  *out = device->pool.reserve_workers() * bytes_each(device->isa, *args);
  return PKV_OK;
}

void rerank_row(const pkv_rerank_args& a, Temporaries& temporaries, int64_t r) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t i = r / geometry.kv_heads;
  const auto head = static_cast<int32_t>(r % geometry.kv_heads);
  RerankRow row = rerank_row_of(a, temporaries.room, r);
  if (!prepare_query(a.codec, a.queries, i, head, temporaries.query)) {
    write_no_hits(a, row, temporaries.query.group);
    return;
  }
  row.candidate_count = a.candidate_counts[r];
  const Layout layout = make_layout(geometry, a.store.capacity);
  const RecordRow records =
      record_row(a.store, layout, geometry.kv_heads, a.batch.sequences[i], head);
  prepare_estimator(a.codec, temporaries.query, i, head, records, temporaries.room.estimator);
  write_hits(a, row, temporaries.room);
  write_samples(a, row, temporaries.room);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_rerank_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    const int64_t each = bytes_each(device->isa, *args);
    const int64_t rows = int64_t{args->batch.batch} * args->codec.geometry->kv_heads;
    return device->pool.parallel(rows, 1, [&](int64_t r, int32_t worker) {
      Scratch own = worker_scratch(scratch, worker, each);
      Temporaries temporaries = take_temporaries(own, device->isa, *args);
      rerank_row(*args, temporaries, r);
    });
  });
}

}  // namespace

pkv_rerank_slots rerank_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
