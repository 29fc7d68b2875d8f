// The device's cache of K and V rows that steps fetched last (pkv_row_cache_args): which lines hold
// what, and who may use them. Results never depend on it.
// Set-associative: a position has one set of kWays lines, and one thread works on a set at a time,
// so nothing here is atomic. First it finds the rows that are there, then it gives the oldest lines
// that this step does not use to those which are not. Lines of equal age go by position, so what
// the cache holds is a function of the steps alone.
// Within a step nobody reads a line that somebody writes: hits keep theirs.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/views.h"

namespace PKV_GPU_NS {

inline constexpr int kRowCacheWays = PKV_ROW_CACHE_WAYS;
inline constexpr int32_t kNoLine = -1;

// The cache of one row of the index.
struct RowCacheRow {
  std::byte* data;  // NULL: none
  uint64_t* tags;
  uint64_t* counts;  // steps, looked up, found
  int64_t line_bytes;
  int32_t sets;

  PKV_DEVICE RowCacheRow(const pkv_row_cache_args& a, int64_t row)
      : data(nullptr), tags(nullptr), counts(nullptr), line_bytes(a.line_bytes), sets(0) {
    if (a.data == nullptr) return;
    data = static_cast<std::byte*>(a.data) + row * a.lines * a.line_bytes;
    tags = a.tags + row * a.lines;
    counts = a.counts + row * 4;
    sets = a.lines / kRowCacheWays;
  }

  PKV_DEVICE std::byte* key(int32_t line) const { return data + line * line_bytes; }
  PKV_DEVICE std::byte* value(int32_t line) const { return key(line) + line_bytes / 2; }
  // The step that a new call is: differs from all that tags of the row name.
  PKV_DEVICE uint32_t next_step() const { return static_cast<uint32_t>(counts[0]) + 1U; }
  // Neighbours go to different sets.
  PKV_DEVICE int32_t set_of(int32_t position) const {
    const uint32_t mixed = static_cast<uint32_t>(position) * 0x9E3779B1U;
    return static_cast<int32_t>((uint64_t{mixed} * static_cast<uint32_t>(sets)) >> 32);
  }
};

// Of a line that holds a position, last used in this step.
PKV_DEVICE uint64_t row_cache_tag(uint32_t step, int32_t position) {
  return uint64_t{step} << 32 | (static_cast<uint32_t>(position) + 1U);
}
PKV_DEVICE bool tag_names(uint64_t tag, int32_t position) {
  return static_cast<uint32_t>(tag) == static_cast<uint32_t>(position) + 1U;
}

// One set, in registers of one thread.
class RowCacheSet {
 public:
  PKV_DEVICE RowCacheSet(const RowCacheRow& row, int32_t set, uint32_t step)
      : tags_(row.tags + set * kRowCacheWays), first_(set * kRowCacheWays), step_(step) {
#pragma unroll
    for (int way = 0; way < kRowCacheWays; ++way) tag_[way] = tags_[way];
  }

  // The line that holds a position, in use from now on, or kNoLine.
  PKV_DEVICE int32_t find(int32_t position) {
    int32_t line = kNoLine;
#pragma unroll
    for (int way = 0; way < kRowCacheWays; ++way) {
      if (!tag_names(tag_[way], position)) continue;
      tag_[way] = row_cache_tag(step_, position);
      line = first_ + way;
    }
    return line;
  }

  // A line for a position that `find` has not found, after all of the set that are to be found; the
  // caller fills it in this step. kNoLine: all are in use.
  PKV_DEVICE int32_t claim(int32_t position) {
    uint64_t oldest = ~uint64_t{0};
    int at = -1;
#pragma unroll
    for (int way = 0; way < kRowCacheWays; ++way) {
      if (static_cast<uint32_t>(tag_[way] >> 32) == step_ || tag_[way] >= oldest) continue;
      oldest = tag_[way];
      at = way;
    }
    const uint64_t tag = row_cache_tag(step_, position);
#pragma unroll
    for (int way = 0; way < kRowCacheWays; ++way) {
      if (way == at) tag_[way] = tag;
    }
    return at < 0 ? kNoLine : first_ + at;
  }

  PKV_DEVICE void store() const {
#pragma unroll
    for (int way = 0; way < kRowCacheWays; ++way) tags_[way] = tag_[way];
  }

 private:
  uint64_t* tags_;
  int32_t first_;
  uint32_t step_;
  uint64_t tag_[kRowCacheWays];
};

// What a step knows of a fetched row: where it is, or where it is to be kept.
struct RowPlace {
  int32_t code;  // kNoLine, or 2 * line, + 1 if the row is there

  PKV_DEVICE static RowPlace found(int32_t line) { return {2 * line + 1}; }
  PKV_DEVICE static RowPlace claimed(int32_t line) {
    return {line == kNoLine ? kNoLine : 2 * line};
  }
  PKV_DEVICE bool is_cached() const { return code >= 0; }
  PKV_DEVICE bool is_there() const { return code >= 0 && code % 2 != 0; }
  PKV_DEVICE int32_t line() const { return code / 2; }
};

// Whether entry i of a batch is the first that names its sequence: others do without the cache, so
// that one block has a row of it.
PKV_DEVICE bool is_first_of_sequence(const int32_t* sequences, int64_t entry) {
  for (int64_t other = 0; other < entry; ++other) {
    if (sequences[other] == sequences[entry]) return false;
  }
  return true;
}

struct RowCacheArgs {
  pkv_row_cache_args cache;
  const int32_t* sequences;  // [b]
  const int32_t* positions;  // [rows, k]
  const int32_t* counts;     // [rows]
  int64_t rows;              // b * h
  int32_t kv_heads;
  int32_t k;
  int32_t* places;  // [rows, k] RowPlace
};

// Shared memory of place_rows.
struct RowCacheShared {
  int32_t first[PKV_ROW_CACHE_LINES / kRowCacheWays];  // of each set: a slot
  int32_t found;
  int32_t is_first;
  uint32_t step;
};

// Lines for a chain of slots whose rows were not found: the smallest positions get them.
PKV_DEVICE void claim_lines(RowCacheSet& set, const int32_t* positions, int32_t* places,
                            int32_t chain) {
  bool has_line = true;
  while (chain >= 0) {
    int32_t least = chain;
    int32_t before = -1;
    for (int32_t last = chain, slot = places[chain]; has_line && slot >= 0; slot = places[slot]) {
      if (positions[slot] < positions[least]) {
        least = slot;
        before = last;
      }
      last = slot;
    }
    const int32_t next = places[least];
    if (before < 0) {
      chain = next;
    } else {
      places[before] = next;
    }
    const int32_t line = has_line ? set.claim(positions[least]) : kNoLine;
    has_line = line != kNoLine;
    places[least] = RowPlace::claimed(line).code;
  }
}

// Where the fetched rows of row r of the call are. All threads of a block call it. Slots of a set
// are chained through `places`, in an order that does not matter.
template <int kThreads>
PKV_DEVICE void place_rows(const RowCacheArgs& a, int64_t r, RowCacheShared& shared) {
  const RowIndex at = row_index(r, a.kv_heads);
  const int32_t count = a.counts[r];
  const int32_t* positions = a.positions + r * a.k;
  int32_t* places = a.places + r * a.k;
  const RowCacheRow row(a.cache, int64_t{a.sequences[at.entry]} * a.kv_heads + at.head);
  if (thread_index() == 0) {
    shared.is_first = is_first_of_sequence(a.sequences, at.entry) ? 1 : 0;
    shared.found = 0;
    shared.step = row.next_step();
  }
  for (int32_t set = thread_index(); set < row.sets; set += kThreads) shared.first[set] = -1;
  sync_block();
  const bool is_first = shared.is_first != 0;
  for (int32_t slot = thread_index(); slot < count; slot += kThreads) {
    places[slot] =
        is_first ? atomic_exchange(&shared.first[row.set_of(positions[slot])], slot) : kNoLine;
  }
  sync_block();
  if (is_first) {
    int32_t found = 0;
    for (int32_t s = thread_index(); s < row.sets; s += kThreads) {
      if (shared.first[s] < 0) continue;
      RowCacheSet set(row, s, shared.step);
      int32_t missing = -1;  // chain of slots that were not found
      for (int32_t slot = shared.first[s]; slot >= 0;) {
        const int32_t next = places[slot];
        const int32_t line = set.find(positions[slot]);
        if (line != kNoLine) {
          places[slot] = RowPlace::found(line).code;
          ++found;
        } else {
          places[slot] = missing;
          missing = slot;
        }
        slot = next;
      }
      claim_lines(set, positions, places, missing);
      set.store();
    }
    if (found > 0) atomic_add(&shared.found, found);
  }
  sync_block();
  if (is_first && thread_index() == 0) {
    row.counts[0] += 1;
    row.counts[1] += static_cast<uint64_t>(count);
    row.counts[2] += static_cast<uint64_t>(shared.found);
  }
  sync_block();  // shared is read
}

}  // namespace PKV_GPU_NS
