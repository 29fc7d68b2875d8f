// The tail of attend: what stands for the keys of the zone that were not fetched.
// docs/algorithm.md, section 8. Not here: original K and V (attend.h).
#pragma once

#include <cstdint>

#include "backends/cpu/attend_block.h"
#include "backends/cpu/layout.h"
#include "backends/cpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// A worker's room.
struct TailRoom {
  float* logits;           // [most] of one head
  float* shares;           // [most] exp of them
  int32_t* entries;        // [most] sketches that count
  int32_t* origins;        // [most] where their estimates stand: candidates, then samples
  const void** lines;      // [most, 1 + lines of a sketch] where they and their factors are
  float* factors;          // [most] w_v
  float* weights;          // [most, 4]
  float* sums;             // [4, padded_dv]
  float* mean;             // [padded_dv] v_mean
  uint8_t* is_fetched;     // [candidates_stride]
  int32_t* sample_places;  // [T] where samples stand among the candidates, -1: nowhere
};

TailRoom take_tail_room(Scratch& scratch, const pkv_attend_args& args);

// One row's tail.
struct TailRow {
  int64_t i;  // entry of the batch
  int64_t n;
  int32_t kv_head;
  const int32_t* candidates;
  int32_t candidate_count;
  const float* estimates;  // [G, stride]
  int64_t stride;
  const float* rest_lse;          // [G]
  const float* sample_estimates;  // [G, T]; sampled and sketch only
  const int32_t* sample_places;   // [T] as find_sample_places has them; NULL: not known
  const int32_t* places;          // [place_count] of the fetched rows among the candidates
  int32_t place_count;
  const double* value_sums;  // [dv]
  int64_t good_count;
  RecordRow records;  // sampled and sketch only
};

// Of row r of the batch, without the fetched rows' places. `layout` outlives it.
TailRow tail_row_of(const pkv_attend_args& args, const Layout& layout, int64_t r);

// Adds the tail to what the heads have gathered; tail other than drop.
void add_tail(const pkv_attend_args& args, const TailRow& row, const TailRoom& room,
              AttendState& state);

}  // namespace pkv::cpu
