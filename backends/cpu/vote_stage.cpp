// Slots of stage vote: rows in pieces, over the device's threads. docs/algorithm.md, section 4.
#include <algorithm>
#include <limits>

#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/stages.h"
#include "backends/cpu/vote.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

constexpr int64_t kPieceKeys = 65536;  // whole blocks; preparing the query costs about 2 % of that

struct Temporaries {
  RowQuery query;
  VoteTables tables;
};

Temporaries take_temporaries(Scratch& scratch, const pkv_vote_args& args) {
  return {take_row_query(scratch, *args.codec.geometry, args.query_heads),
          take_vote_tables(scratch, args)};
}

int64_t bytes_each(const pkv_vote_args& args) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, args);
  return scratch.bytes();
}

pkv_status supports(pkv_backend_device* device, const pkv_vote_args* args) {
  return check_vote(device->host, *args);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_vote_args* args, int64_t* out) {
  *out = device->pool.reserve_workers() * bytes_each(*args);
  return PKV_OK;
}

void vote_piece(const Isa& isa, const pkv_vote_args& a, const Temporaries& temporaries, int64_t r,
                int64_t piece) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int64_t i = r / geometry.kv_heads;
  const auto head = static_cast<int32_t>(r % geometry.kv_heads);
  const int64_t n = a.batch.lengths[i];
  const int64_t begin = piece * kPieceKeys;
  const int64_t end = std::min(n, begin + kPieceKeys);
  if (begin >= end) return;
  float* votes = a.votes + r * a.votes_stride + begin;
  if (!prepare_query(a.codec, a.queries, i, head, temporaries.query)) {  // 4.4
    std::fill(votes, votes + (end - begin), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const int64_t row = int64_t{a.batch.sequences[i]} * geometry.kv_heads + head;
  fill_vote_tables(a, temporaries.query, row, temporaries.tables);
  const Layout layout = make_layout(geometry, a.store.capacity);
  const RecordRow records =
      record_row(a.store, layout, geometry.kv_heads, a.batch.sequences[i], head);
  vote_range({&isa, records, temporaries.tables, n}, begin, end, votes);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_vote_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    const int64_t each = bytes_each(*args);
    const int64_t pieces = (args->batch.max_length + kPieceKeys - 1) / kPieceKeys;
    const int64_t rows = int64_t{args->batch.batch} * args->codec.geometry->kv_heads;
    return device->pool.parallel(rows * pieces, 1, [&](int64_t index, int32_t worker) {
      Scratch own = worker_scratch(scratch, worker, each);
      vote_piece(device->isa, *args, take_temporaries(own, *args), index / pieces, index % pieces);
    });
  });
}

}  // namespace

pkv_vote_slots vote_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
