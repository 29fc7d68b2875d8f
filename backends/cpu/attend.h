// Stage attend on one row: dense parts, fetched rows, tail, output. docs/algorithm.md, section 8.
#pragma once

#include <cstdint>

#include "backends/cpu/attend_block.h"
#include "backends/cpu/query.h"
#include "backends/cpu/tail.h"
#include "backends/cpu/token_rows.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// The fetched K and V of a row: token index[slot], or token `slot` where index is NULL.
struct FetchedRows {
  TokenRows keys;
  TokenRows values;
  const int32_t* index;
  int64_t count;

  int64_t token(int64_t slot) const { return index == nullptr ? slot : int64_t{index[slot]}; }
};

// Asks for the fetched rows.
void prefetch_rows(const FetchedRows& rows);

// 4.4: output 0, lse -inf for the group of a bad query.
void write_empty(const pkv_attend_args& args, int64_t i, int32_t kv_head);

// Attends and writes output and lse of entry i's KV head. `tail`: NULL with tail = drop.
void attend_row(const pkv_attend_args& args, int64_t i, int32_t kv_head, const RowQuery& query,
                const FetchedRows& fetched, const TailRow* tail, const TailRoom& room,
                AttendState& state);

}  // namespace pkv::cpu
