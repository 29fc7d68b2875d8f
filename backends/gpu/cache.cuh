// What a cache does besides the stages: words into device memory, tokens into pages, the numbers of
// a step. docs/algorithm.md, section 9.
// Traffic: the rows of the new tokens; a few words per sequence.
// Exact: bytes move, integers add.
// Differs from core/cache on the host: entries come by value with the launch, kEntries at a time,
// so that a captured launch keeps them; lengths and tables are read when it runs.
#pragma once

#include "backends/gpu/fetch.cuh"
#include "backends/gpu/gpu_lanes.cuh"
#include "core/format/seen.h"

namespace PKV_GPU_NS {

inline constexpr int kEntries = 64;        // of a batch
inline constexpr int kWords = 120;         // of a launch
inline constexpr int kCacheThreads = 128;  // at least kEntries and kWords

struct WordArgs {
  int32_t count;
  uint64_t* targets[kWords];
  uint64_t values[kWords];
};

template <int kThreads>
PKV_KERNEL(kThreads)
write_words(WordArgs a) {
  const int i = thread_index();
  if (i < a.count) *a.targets[i] = a.values[i];
}

// Entries of a batch: the tokens of entry i are firsts[i] .. firsts[i + 1] - 1 of the call.
struct BatchEntries {
  int32_t count;
  int32_t sequences[kEntries];
  int64_t firsts[kEntries + 1];

  PKV_DEVICE int64_t tokens() const { return firsts[count] - firsts[0]; }
  // The entry of token firsts[0] + i, i < tokens().
  PKV_DEVICE int32_t entry_of(int64_t i) const {
    int32_t low = 0;
    int32_t high = count;  // firsts[low] <= token < firsts[high]
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (firsts[middle] <= firsts[0] + i) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

struct PlaceSide {
  TensorView source;  // [n, h, width]
  pkv_pages sink;
  pkv_pages rows;
  pkv_pages recent;
  int64_t bytes;  // of a vector
};

struct PlaceArgs {
  BatchEntries entries;
  PlaceSide sides[2];  // K and V, as many as are given
  int32_t side_count;
  int32_t kv_heads;
  int64_t sink;
  const pkv_sequence_state* states;
};

// kFetchLanes lanes: one vector of one token.
template <int kThreads>
PKV_KERNEL(kThreads)
place_rows(PlaceArgs a) {
  constexpr int kItems = kThreads / kFetchLanes;
  const int lane = thread_index() % kFetchLanes;
  const int64_t per_token = int64_t{a.kv_heads} * a.side_count;
  const int64_t items = a.entries.tokens() * per_token;
  for (int64_t item = int64_t{block_x()} * kItems + thread_index() / kFetchLanes; item < items;
       item += int64_t{grid_x()} * kItems) {
    const int64_t token = item / per_token;
    const auto rest = static_cast<int32_t>(item % per_token);
    const int32_t head = rest / a.side_count;
    const PlaceSide& side = a.sides[rest % a.side_count];
    const int32_t entry = a.entries.entry_of(token);
    const int32_t sequence = a.entries.sequences[entry];
    const int64_t first = a.entries.firsts[entry];
    const pkv_sequence_state& state = a.states[sequence];
    if (state.tokens + a.entries.firsts[entry + 1] - first > state.limit) continue;
    const int64_t position = state.tokens + a.entries.firsts[0] + token - first;
    const bool is_sink = position < a.sink;
    const int64_t at = is_sink ? position : position - a.sink;
    const auto place_in = [&](const pkv_pages& pages) {
      return const_cast<std::byte*>(format::token_pages(pages, sequence, head).at(at));
    };
    const std::byte* from = side.source.row(a.entries.firsts[0] + token, head);
    std::byte* to = place_in(is_sink ? side.sink : side.rows);
    copy_vector(to, from, side.bytes, lane);
    if (is_sink || side.recent.table == nullptr) continue;
    std::byte* recent = place_in(side.recent);
    if (recent != to) copy_vector(recent, from, side.bytes, lane);
  }
}

struct AdvanceArgs {
  BatchEntries entries;
  pkv_advance_args call;  // its host pointers are NULL
};

struct AdvanceShared {
  int64_t tokens[kEntries];  // after the call; -1: a fault
  int64_t keys[kEntries];
  int64_t sets[kEntries];
  int64_t faults[kEntries][4];  // kind 0: none
};

PKV_DEVICE format::SeenTokens seen_from(const pkv_advance_args& c, int64_t keys, int64_t position) {
  return format::seen_tokens(c.sink, c.window, keys, position);
}

PKV_DEVICE void note_fault(int64_t* fault, int64_t kind, int64_t sequence, int64_t number,
                           int64_t bound) {
  if (fault[0] != 0) return;
  fault[0] = kind;
  fault[1] = sequence;
  fault[2] = number;
  fault[3] = bound;
}

PKV_DEVICE void advance_entry(const AdvanceArgs& a, int32_t entry, AdvanceShared& shared) {
  const pkv_advance_args& c = a.call;
  const int32_t sequence = a.entries.sequences[entry];
  const int64_t count = a.entries.firsts[entry + 1] - a.entries.firsts[entry];
  pkv_sequence_state& state = c.states[sequence];
  const int64_t tokens = state.tokens + (c.appends != 0 ? count : 0);
  const int64_t keys = c.uses_records != 0 ? state.encoded : 0;
  const format::SeenTokens seen = seen_from(c, keys, tokens - 1);
  int64_t* fault = shared.faults[entry];
  fault[0] = 0;
  if (c.appends != 0 && tokens > state.limit) {
    note_fault(fault, PKV_ADVANCE_LIMIT, sequence, tokens, state.limit);
  }
  if (keys > c.most_keys) note_fault(fault, PKV_ADVANCE_KEYS, sequence, keys, c.most_keys);
  if (seen.row_tokens > c.most_rows) {
    note_fault(fault, PKV_ADVANCE_ROWS, sequence, seen.row_tokens, c.most_rows);
  }
  const bool is_good = fault[0] == 0;
  shared.tokens[entry] = is_good ? tokens : -1;
  shared.keys[entry] = keys;
  shared.sets[entry] = keys > 0 ? state.set : 0;
  if (is_good && c.appends != 0) state.tokens = tokens;
}

PKV_DEVICE void write_numbers(const AdvanceArgs& a, int64_t token, const AdvanceShared& shared) {
  const pkv_advance_args& c = a.call;
  const int32_t entry = a.entries.entry_of(token);
  const int64_t at = a.entries.firsts[0] + token;
  const int64_t tokens = shared.tokens[entry];
  const bool is_good = tokens >= 0;
  const int64_t position = tokens - a.entries.firsts[entry + 1] + at;
  const int64_t keys = is_good ? shared.keys[entry] : 0;
  const format::SeenTokens seen = seen_from(c, keys, position);
  c.out_sequences[at] = a.entries.sequences[entry];
  c.out_sets[at] = is_good ? static_cast<int32_t>(shared.sets[entry]) : 0;
  c.keys[at] = keys;
  c.sink_starts[at] = is_good ? seen.sink_start : 0;
  c.sink_lengths[at] = is_good ? seen.sink_tokens : 0;
  c.row_starts[at] = is_good && seen.row_tokens > 0 ? seen.row_start - c.row_origin : 0;
  c.row_lengths[at] = is_good ? seen.row_tokens : 0;
}

// One block.
template <int kThreads>
PKV_KERNEL(kThreads)
advance_states(AdvanceArgs a) {
  PKV_SHARED(AdvanceShared, shared);
  const int thread = thread_index();
  if (thread < a.entries.count) advance_entry(a, thread, shared);
  sync_block();
  for (int64_t i = thread; i < a.entries.tokens(); i += kThreads) write_numbers(a, i, shared);
  if (thread != 0) return;
  for (int32_t i = 0; i < a.entries.count; ++i) {
    const int64_t* fault = shared.faults[i];
    if (fault[0] != 0) note_fault(a.call.fault, fault[0], fault[1], fault[2], fault[3]);
  }
}

}  // namespace PKV_GPU_NS
