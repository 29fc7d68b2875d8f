// Launches of stage vote, for the slot and for the step.
#pragma once

#include "backends/gpu/query.h"
#include "backends/gpu/vote.cuh"

namespace PKV_GPU_NS {

// Room for the tables of `args`.
VoteTables take_vote_tables(Scratch& scratch, const pkv_vote_args& args);

// The kernels' arguments for the tables of queries that are prepared, or will be.
VoteTableArgs vote_table_args(const pkv_vote_args& args, const PreparedQueries& queries,
                              const VoteTables& tables);
gpuError_t launch_vote_tables(const pkv_vote_args& args, const PreparedQueries& queries,
                              const VoteTables& tables, gpuStream_t stream);

// `bins`: [rows, bins_stride], where the digits of the first pass of best.cuh are counted, 0 at
// first; NULL: they are not.
gpuError_t launch_vote_keys(const pkv_vote_args& args, const PreparedQueries& queries,
                            const VoteTables& tables, uint32_t* bins, int64_t bins_stride,
                            gpuStream_t stream);

}  // namespace PKV_GPU_NS
