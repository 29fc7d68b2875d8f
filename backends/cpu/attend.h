// Stage attend on one row: dense parts, fetched rows, tail, output. docs/algorithm.md, section 8.
#pragma once

#include <cstdint>

#include "backends/cpu/attend_block.h"
#include "backends/cpu/query.h"
#include "backends/cpu/tail.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// Where the fetched K and V of a row lie: token index[slot] of row (leading, kv_head), or token
// `slot` where index is NULL.
struct FetchedRows {
  const pkv_tensor* keys;
  const pkv_tensor* values;
  int64_t leading;
  const int32_t* index;
  int64_t count;
};

// Asks for the fetched rows.
void prefetch_rows(const FetchedRows& rows, int32_t kv_head);

// 4.4: output 0, lse -inf for the group of a bad query.
void write_empty(const pkv_attend_args& args, int64_t i, int32_t kv_head);

// Attends and writes output and lse of entry i's KV head. `tail`: NULL with tail = drop.
void attend_row(const pkv_attend_args& args, int64_t i, int32_t kv_head, const RowQuery& query,
                const FetchedRows& fetched, const TailRow* tail, const TailRoom& room,
                AttendState& state);

}  // namespace pkv::cpu
