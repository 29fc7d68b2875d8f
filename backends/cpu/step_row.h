// One row of a fused step, stage after stage, all of it in one worker's room.
// docs/algorithm.md, sections 4 to 8.
#pragma once

#include <cstdint>

#include "backends/cpu/attend.h"
#include "backends/cpu/rerank.h"
#include "backends/cpu/vote.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// What one query votes with, and what its vote leaves.
struct Voter {
  RowQuery query;
  VoteTables tables;
  Survivors survivors;
};

struct StepRoom {
  Voter voters[kTeam];
  RerankRoom rerank;
  AttendState state;  // with attention only, like what follows
  TailRoom tail;
  int32_t* places;  // [k]
};

StepRoom take_step_room(Scratch& scratch, const Isa& isa, const pkv_step_args& args);

// A row of the batch and what is the same for all.
struct StepRow {
  const pkv_step_args* args;
  int64_t r;
  int64_t i;  // entry of the batch
  int32_t kv_head;
  int64_t sequence;
  int64_t store_row;  // of occupancy and sums
  RecordRow records;
  int64_t n;
  int64_t wanted;  // C of section 5
};

StepRow step_row_of(const pkv_step_args& args, const Layout& layout, int64_t r);

bool has_attention(const pkv_step_args& args);

// The row as stage vote sees it.
VoteRow vote_row_of(const Isa& isa, const StepRow& row, const VoteTables& tables);

// The parts of run_rows, for rows that are voted on in pieces: whether the query is good, and its
// tables; selection from the row as a whole; everything after selection, with the candidates among
// the survivors; the results of a bad query (4.4).
bool start_row(const StepRow& row, Voter& voter);
void select_whole_row(const Isa& isa, const StepRow& row, Voter& voter);
void finish_row(const Isa& isa, const StepRow& row, Voter& voter, StepRoom& room);
void finish_bad_row(const StepRow& row, Voter& voter, StepRoom& room);

// All of 1..kTeam rows with the same row of the store and the same n.
void run_rows(const Isa& isa, const StepRow* rows, int32_t count, StepRoom& room);

}  // namespace pkv::cpu
