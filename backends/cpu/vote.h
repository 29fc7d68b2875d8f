// Stage vote on one row: tables of the query, then votes of whole blocks of keys.
// docs/algorithm.md, section 4. Not here: the tier vote's tables (tier.cpp), selection (select.h).
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/layout.h"
#include "backends/cpu/query.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/select.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// What the sign bytes of a key are looked up in.
struct VoteTables {
  int32_t subspaces;  // S
  int32_t padded;     // S rounded up, so that tables fill whole vectors; the rest is 0
  int32_t vectors;    // that vote: G with vote_group = heads, else 1
  uint8_t* low;       // graded [vectors, padded, 16]: 127 + the sum of the low nibble's z
  uint8_t* high;      // graded [vectors, padded, 16]: the sum of the high nibble's, mod 256
  uint8_t* points;    // tier [S, 256]
};

VoteTables take_vote_tables(Scratch& scratch, const pkv_vote_args& args);

// Of a good query. `row` is the row of the store.
void fill_vote_tables(const pkv_vote_args& args, const RowQuery& query, int64_t row,
                      const VoteTables& tables);
void fill_tier_tables(const pkv_vote_args& args, const RowQuery& query, int64_t row,
                      const VoteTables& tables);

// The keys of a row, ready to be scanned.
struct VoteRow {
  const Isa* isa;
  RecordRow records;
  VoteTables tables;
  int64_t n;
};

// Votes of positions [begin, end) into votes[0 ..]; begin is a multiple of 64. NaN at bad keys.
void vote_range(const VoteRow& row, int64_t begin, int64_t end, float* votes);

// Queries that are searched for together, over the same keys: these are read once.
inline constexpr int32_t kTeam = 4;

struct Search {
  VoteRow row;
  int64_t wanted;  // C of section 5
  Survivors* survivors;
};

// Adds those of [begin, end) that reach the survivors' threshold; begin is a multiple of 64.
void scan_range(const Search* searches, int32_t count, int64_t begin, int64_t end);

// The C best of each, exactly: section 5. The survivors have their positions, ascending.
// 1..kTeam searches of the same row of the store and the same n.
void select_rows(const Search* searches, int32_t count);

// A threshold that the wanted best very likely reach, from a sample of the row; -inf for rows
// that are not worth a guess.
float guess_threshold(const VoteRow& row, int64_t wanted, const Survivors& survivors);

// sums[16]: what one group of 16 keys' sign bytes add up to; tier.
void tier_group(const VoteTables& tables, const uint8_t* group, uint16_t* sums);

}  // namespace pkv::cpu
