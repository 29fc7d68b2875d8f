// Launches of stage vote: the queries, the tables, the keys.
#include "backends/gpu/vote.cuh"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
#include "backends/gpu/query.h"
#include "backends/gpu/stages.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {
namespace {

struct Temporaries {
  PreparedQueries queries;
  VoteTables tables;
};

int64_t rows_of(const pkv_vote_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

Temporaries take_temporaries(Scratch& scratch, const pkv_vote_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  Temporaries result{};
  // First, where the step looks for them.
  result.queries = take_prepared_queries(scratch, geometry, rows_of(a), a.query_heads);
  result.tables.vectors = a.vote_group == PKV_VOTE_GROUP_HEADS ? result.queries.group : 1;
  result.tables.entries = scratch.take<int8_t>(rows_of(a) * result.tables.vectors *
                                               (geometry.head_dim / 8) * kPatterns);
  return result;
}

pkv_status supports(pkv_backend_device* device, const pkv_vote_args* args) {
  const pkv_host* host = device_of(device).host;
  const pkv_status status = check_queries(host, args->codec, args->query_heads, args->queries);
  if (status != PKV_OK) return status;
  if (args->codec.geometry->vote == PKV_VOTE_TIER) {
    return check_range(host, "vote=tier with vote_group", args->vote_group, PKV_VOTE_GROUP_SUM,
                       PKV_VOTE_GROUP_SUM);
  }
  return check_range(host, "vote_group", args->vote_group, PKV_VOTE_GROUP_SUM,
                     PKV_VOTE_GROUP_HEADS);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_vote_args* args, int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

gpuError_t launch_tables(const pkv_vote_args& a, const Temporaries& temporaries,
                         gpuStream_t stream) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t is_heads = a.vote_group == PKV_VOTE_GROUP_HEADS ? 1 : 0;
  const VoteTableArgs args = {
      temporaries.queries, temporaries.tables, rows_of(a), geometry.kv_heads,
      geometry.head_dim,   is_heads,           a.rho_of,   a.occupancy,
      a.batch.sequences};
  LaunchShape shape;
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kTableThreads;
  if (geometry.vote == PKV_VOTE_GRADED) {
    shape.grid_x = static_cast<unsigned>(temporaries.tables.vectors);
    return launch("graded_tables", graded_tables<Traits>, shape, stream, args);
  }
  shape.grid_x = static_cast<unsigned>(geometry.head_dim / 8);
  return launch("tier_tables", tier_tables<Traits>, shape, stream, args);
}

gpuError_t launch_keys(const pkv_vote_args& a, const Temporaries& temporaries, gpuStream_t stream) {
  const VoteArgs args = {view_of(a.store, *a.codec.geometry),
                         temporaries.tables,
                         temporaries.queries.bad,
                         rows_of(a),
                         a.batch.sequences,
                         a.batch.lengths,
                         a.votes,
                         a.votes_stride};
  LaunchShape shape;
  shape.grid_x = grid_tiles(a.batch.max_length, int64_t{Traits::kVoteThreads} * Traits::kVoteKeys);
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kVoteThreads;
  return launch("vote_keys", vote_keys<Traits>, shape, stream, args);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_vote_args* args,
               void* scratch) {
  return run_stage(device, stream, "vote", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const Temporaries temporaries = take_temporaries(pieces, *args);
    gpuError_t error =
        launch_prepare_queries(args->codec, args->queries, rows_of(*args), temporaries.queries, s);
    if (error == gpuSuccess) error = launch_tables(*args, temporaries, s);
    if (error == gpuSuccess) error = launch_keys(*args, temporaries, s);
    return error;
  });
}

}  // namespace

pkv_vote_slots vote_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
