// A decoding step on a plan: retrieve, fetch, attend, or all in one. What each does is in
// pariskv.h; the plan has checked everything that does not change from call to call. Nothing is
// allocated; only fetch, also as a part of a step, and rerank wait, and only on host memory.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/tensor.h"
#include "core/plan/plan.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"

namespace pkv {

class RowCache;  // core/index/row_cache.h

// vote, select, rerank. retrieve.cpp
absl::Status retrieve(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                      void* scratch, const pkv_hits& hits);

// The halves of a retrieve, around candidates of the caller's choosing. halves.cpp; on a CPU device
// these are checked, which waits for the stream.
absl::Status vote(const Plan& plan, const Stream& stream, const pkv_tensor& query, void* scratch,
                  float* votes, int64_t stride);
absl::Status rerank(const Plan& plan, const Stream& stream, const pkv_tensor& query, void* scratch,
                    const pkv_hits& hits);

// fetch.cpp. On a CPU device the positions are checked, which waits for the stream.
absl::Status fetch(const Plan& plan, const Stream& stream, const pkv_rows& source,
                   const pkv_hits& hits, const pkv_rows& rows);

// attention.cpp. `hits`: those of attention.hits, or NULL.
absl::Status attend(const Plan& plan, const Stream& stream, const pkv_attention& attention,
                    const pkv_hits* hits);

// step.cpp. `rows`: that of step.row_cache, or NULL. `hits`: those of step.hits, or all NULL.
absl::Status step(const Plan& plan, const Stream& stream, const pkv_step& step, RowCache* rows,
                  const pkv_hits& hits);

// The same inside a call that holds the plan's `memory`.
absl::Status retrieve_in(const Plan& plan, const Stream& stream, const pkv_tensor& query,
                         const pkv_hits& hits, void* memory);
absl::Status attend_in(const Plan& plan, const Stream& stream, const pkv_attention& attention,
                       const pkv_hits* hits, void* memory);

// The caller's memory; where the caller has none, the piece that the ledger books, if it does.
// retrieve.cpp
pkv_hits with_scratch(const ScratchLedger& ledger, void* memory, pkv_hits hits);
// retrieve.cpp, for it and its halves: the query's shape and dtype, and where rerank reads
// candidates and writes.
absl::StatusOr<TensorView> check_plan_query(const Plan& plan, const pkv_tensor& query);
void set_rerank_outputs(const pkv_hits& out, pkv_rerank_args& rerank);
// Hits as what attend reads. attention.cpp
void read_hits(const pkv_hits& hits, pkv_attend_args& args);

// For a backend's fused step: all that leads to `out`, which has room for everything. retrieve.cpp
pkv_step_args fused_args(const Plan& plan, const pkv_tensor& query, const int64_t* lengths,
                         const pkv_hits& out);

}  // namespace pkv
