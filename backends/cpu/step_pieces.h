// Rows of a fused step that are scanned in pieces, since there are fewer rows than threads.
// docs/algorithm.md, sections 4 and 5.
#pragma once

#include <cstdint>

#include "backends/cpu/step_row.h"

namespace pkv::cpu {

// How rows are cut; pieces = 1: not at all.
struct Cut {
  int64_t pieces;  // of a row
  int64_t room;    // survivors that a piece may have
};

Cut cut_of(const pkv_step_args& args, int64_t workers);

// What the workers share about one row.
struct SharedRow {
  RowQuery query;
  VoteTables tables;
  float* values;       // [pieces, room + 16] survivors
  int32_t* positions;  // likewise
  int64_t* counts;     // [pieces] -1: there was no room for all
  bool* is_good;       // the query
  float* threshold;
};

SharedRow take_shared_row(Scratch& scratch, const pkv_step_args& args, const Cut& cut);

// Three parts of a step, each after the one before is done for all rows: the row's query, tables
// and threshold; one piece's survivors; the rest.
void start_shared_row(const Isa& isa, const StepRow& row, const SharedRow& shared, StepRoom room);
void scan_piece(const Isa& isa, const StepRow& row, const SharedRow& shared, const Cut& cut,
                int64_t piece);
void finish_shared_row(const Isa& isa, const StepRow& row, const SharedRow& shared, const Cut& cut,
                       StepRoom room);

}  // namespace pkv::cpu
