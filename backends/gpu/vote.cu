// Launches of stage vote: the queries, the tables, the keys.
#include "backends/gpu/vote.h"

#include "backends/gpu/check.h"
#include "backends/gpu/device.h"
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
  Temporaries result{};
  result.queries = take_prepared_queries(scratch, *a.codec.geometry, rows_of(a), a.query_heads);
  result.tables = take_vote_tables(scratch, a);
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

pkv_status run(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_vote_args* args,
               void* scratch) {
  return run_stage(device, stream, "vote", [&](gpuStream_t s) {
    Scratch pieces(scratch);
    const Temporaries temporaries = take_temporaries(pieces, *args);
    gpuError_t error =
        launch_prepare_queries(args->codec, args->queries, rows_of(*args), temporaries.queries, s);
    const auto& [queries, tables] = temporaries;
    if (error == gpuSuccess) error = launch_vote_tables(*args, queries, tables, s);
    if (error == gpuSuccess) error = launch_vote_keys(*args, queries, tables, nullptr, 0, s);
    return error;
  });
}

}  // namespace

VoteTables take_vote_tables(Scratch& scratch, const pkv_vote_args& a) {
  VoteTables tables{};
  const bool is_heads = a.vote_group == PKV_VOTE_GROUP_HEADS;
  tables.vectors = is_heads ? a.query_heads / a.codec.geometry->kv_heads : 1;
  tables.entries = scratch.take<int8_t>(rows_of(a) * tables.vectors *
                                        (a.codec.geometry->head_dim / 8) * kPatterns);
  return tables;
}

VoteTableArgs vote_table_args(const pkv_vote_args& a, const PreparedQueries& queries,
                              const VoteTables& tables) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t is_heads = a.vote_group == PKV_VOTE_GROUP_HEADS ? 1 : 0;
  return {queries,  tables,   rows_of(a),  geometry.kv_heads, geometry.head_dim,
          is_heads, a.rho_of, a.occupancy, a.batch.sequences};
}

gpuError_t launch_vote_tables(const pkv_vote_args& a, const PreparedQueries& queries,
                              const VoteTables& tables, gpuStream_t stream) {
  const VoteTableArgs args = vote_table_args(a, queries, tables);
  LaunchShape shape;
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kTableThreads;
  if (a.codec.geometry->vote == PKV_VOTE_GRADED) {
    shape.grid_x = static_cast<unsigned>(tables.vectors);
    return launch("graded_tables", graded_tables<Traits>, shape, stream, args);
  }
  shape.grid_x = static_cast<unsigned>(args.head_dim / 8);
  return launch("tier_tables", tier_tables<Traits>, shape, stream, args);
}

gpuError_t launch_vote_keys(const pkv_vote_args& a, const PreparedQueries& queries,
                            const VoteTables& tables, uint32_t* bins, int64_t bins_stride,
                            gpuStream_t stream) {
  const VoteArgs args = {view_of(a.store, *a.codec.geometry),
                         tables,
                         queries.bad,
                         rows_of(a),
                         a.batch.sequences,
                         a.batch.lengths,
                         a.votes,
                         a.votes_stride,
                         bins,
                         bins_stride};
  LaunchShape shape;
  shape.grid_x = grid_tiles(a.batch.max_length, int64_t{Traits::kVoteThreads} * Traits::kVoteKeys);
  shape.grid_y = grid_rows(rows_of(a));
  shape.threads = Traits::kVoteThreads;
  if (bins != nullptr) {
    return launch("vote_and_count_keys", vote_keys<Traits, true>, shape, stream, args);
  }
  return launch("vote_keys", vote_keys<Traits, false>, shape, stream, args);
}

pkv_vote_slots vote_slots() { return {supports, scratch_bytes, run}; }

}  // namespace PKV_GPU_NS
