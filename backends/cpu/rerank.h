// Stage rerank on one row: estimates, hits, samples. docs/algorithm.md, section 6.
#pragma once

#include <cstdint>

#include "backends/cpu/estimate.h"
#include "backends/cpu/query.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/select.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// A worker's room.
struct RerankRoom {
  Estimator estimator;
  float* estimates;         // [G, candidates_stride] where the caller does not want them
  float* sample_estimates;  // [G, T] likewise
  int32_t* samples;         // [T] positions
  const void** lines;       // [2 T] where their records and factors are
  int32_t* sample_places;   // [T] where they stand among the candidates, -1: nowhere
  float* scores;            // [candidates_stride]
  float* shares;            // [G, candidates_stride], rank = group
  float* logits;            // [T]
  uint64_t* keys;           // [k] order of the hits
  Survivors best;
};

RerankRoom take_rerank_room(Scratch& scratch, const Isa& isa, const pkv_rerank_args& args);

// One row of a call and where its results go.
struct RerankRow {
  int64_t r;  // row of the batch
  int64_t n;
  const int32_t* candidates;
  int32_t candidate_count;
  float* estimates;  // [G, stride]
  int64_t stride;
  int32_t* positions;  // [k]
  float* scores;       // [k]; NULL: not wanted
  int32_t* count;
  int32_t* places;          // [k] where the hits stand among the candidates; NULL: not wanted
  float* rest_lse;          // [G]; NULL: not wanted
  float* sample_estimates;  // [G, T]; NULL: not wanted
};

RerankRow rerank_row_of(const pkv_rerank_args& args, const RerankRoom& room, int64_t r);

// Of a bad query (4.4): no hits, samples NaN, rest_lse -inf.
void write_no_hits(const pkv_rerank_args& args, const RerankRow& row, int32_t group);

// Estimates, scores, hits. room.estimator is prepared.
void write_hits(const pkv_rerank_args& args, const RerankRow& row, const RerankRoom& room);
// 6.4, if anybody wants it.
void write_samples(const pkv_rerank_args& args, const RerankRow& row, const RerankRoom& room);

}  // namespace pkv::cpu
