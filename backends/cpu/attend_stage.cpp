// Slots of stage attend: a row per task. docs/algorithm.md, section 8.
#include <algorithm>

#include "backends/cpu/attend.h"
#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/stages.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

struct Temporaries {
  RowQuery query;
  AttendState state;
  TailRoom tail;
  int32_t* places;  // [k]
};

Temporaries take_temporaries(Scratch& scratch, const Isa& isa, const pkv_attend_args& args) {
  Temporaries result{};
  result.query = take_row_query(scratch, *args.codec.geometry, args.query_heads);
  result.state = take_attend_state(scratch, isa, args);
  result.tail = take_tail_room(scratch, args);
  result.places = scratch.take<int32_t>(args.k);
  return result;
}

int64_t bytes_each(const Isa& isa, const pkv_attend_args& args) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, isa, args);
  return scratch.bytes();
}

pkv_status supports(pkv_backend_device* device, const pkv_attend_args* args) {
  return check_attend(device->host, *args, args->row_keys, args->row_values);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_attend_args* args, int64_t* out) {
  *out = device->pool.reserve_workers() * bytes_each(device->isa, *args);
  return PKV_OK;
}

// Where the counted fetched rows stand among the candidates, -1 for those that are none.
void find_places(const int32_t* positions, int32_t count, const TailRow& row, int32_t* places) {
  const int32_t* end = row.candidates + row.candidate_count;
  for (int32_t slot = 0; slot < count; ++slot) {
    const int32_t* found = std::lower_bound(row.candidates, end, positions[slot]);
    const bool is_candidate = found != end && *found == positions[slot];
    places[slot] = is_candidate ? static_cast<int32_t>(found - row.candidates) : -1;
  }
}

void attend_row_of(const pkv_attend_args& a, Temporaries& temporaries, int64_t r) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t i = r / geometry.kv_heads;
  const auto head = static_cast<int32_t>(r % geometry.kv_heads);
  if (!prepare_query(a.codec, a.queries, i, head, temporaries.query)) {
    write_empty(a, i, head);
    return;
  }
  const int32_t count = a.k > 0 ? a.counts[r] : 0;
  FetchedRows fetched{};
  if (count > 0) {
    fetched = {TokenRows(a.row_keys, {}, i, head), TokenRows(a.row_values, {}, i, head), nullptr,
               count};
  }
  if (a.tail == PKV_TAIL_DROP) {
    attend_row(a, i, head, temporaries.query, fetched, nullptr, temporaries.tail,
               temporaries.state);
    return;
  }
  const Layout layout = make_layout(geometry, a.store.capacity);
  TailRow tail = tail_row_of(a, layout, r);
  find_places(a.positions + r * a.k, count, tail, temporaries.places);
  tail.places = temporaries.places;
  tail.place_count = count;
  attend_row(a, i, head, temporaries.query, fetched, &tail, temporaries.tail, temporaries.state);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_attend_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    const int64_t each = bytes_each(device->isa, *args);
    const int64_t rows = int64_t{args->batch.batch} * args->codec.geometry->kv_heads;
    return device->pool.parallel(rows, 1, [&](int64_t r, int32_t worker) {
      Scratch own = worker_scratch(scratch, worker, each);
      Temporaries temporaries = take_temporaries(own, device->isa, *args);
      attend_row_of(*args, temporaries, r);
    });
  });
}

}  // namespace

pkv_attend_slots attend_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
