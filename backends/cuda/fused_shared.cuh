// Shared memory of the fused step beside its arena, and a block's view of its row.
#pragma once

#include "backends/cuda/fused.h"
#include "backends/gpu/block.cuh"
#include "backends/gpu/estimate.cuh"
#include "backends/gpu/softmax.cuh"
#include "core/format/candidates.h"
#include "core/format/samples.h"

// Code that is called, not inlined: rare, or needed at several places. Most of a step's code runs
// once, so that what it costs is above all to be fetched.
#define PKV_APART __device__ __noinline__

namespace pkv::cuda {

// Phase clocks, for tuning: a build with PKV_FUSED_MARKS writes them to FusedArgs::marks.
inline constexpr int kMarks = 16;
#if defined(PKV_FUSED_MARKS)
#define PKV_MARK(args, i)                                                                 \
  do {                                                                                    \
    if (thread_index() == 0) (args).marks[int64_t{block_x()} * kMarks + (i)] = clock64(); \
  } while (false)
#else
#define PKV_MARK(args, i) (void)0
#endif

// How votes become keys of 16 bits that order like them, within [1, kMostKey]; 0 for a vote that is
// NaN. With a window: the bits of a float from kWindowShift up, less `base`, so that 512 keys are a
// doubling. Without: the upper half of its order key.
inline constexpr int32_t kMostKey = 65534;
inline constexpr int32_t kWindowShift = 14;
struct KeyScale {
  int32_t base;
  int32_t window;  // the key where the window of kWindowBins begins; 0: there is no window
};

// Where in the order of bins the wanted-th thing lies; of all blocks, and of those before this one.
struct Cut {
  int32_t bin;
  uint32_t before;       // in bins before it
  uint32_t here;         // in it
  uint32_t team_before;  // the same in blocks of a smaller rank
  uint32_t team_here;
  uint32_t own_here;
};

struct FusedScan {
  uint32_t histogram[kWindowBins];
  uint64_t sums[kFusedWarps];
  uint32_t overflows[4];
  uint32_t exchanges;  // how many histograms the row has passed round
  Cut cut;
  uint32_t total;       // of the last histogram, in all bins
  uint32_t team_total;  // of blocks of a smaller rank
};

inline constexpr int kHeadsAtOnce = 4;     // of attention and samples
inline constexpr int kLeastRowSlots = 16;  // for fetched rows beside dense tokens

// What warps join: statistics of heads, and how a warp's values are scaled.
struct JoinRoom {
  PartialStats warp[kFusedWarps][kHeadsAtOnce];
  float factor[kFusedWarps][kHeadsAtOnce];
  PartialStats all[kHeadsAtOnce];
};

// Of a row's head: how its tail weighs.
struct TailHead {
  float rest;         // log-mass of the pseudo-token; -inf: none
  float trust;        // l
  float samples_max;  // of all blocks
  float samples_sum;
};

// What comes in by its vote.
struct Selection {
  uint32_t key;          // keys from here on are entries of the list
  uint32_t sure;         // keys from here on come in; those below are ties
  uint32_t ties;         // of the row
  uint32_t ties_wanted;  // that come in
  uint32_t tie_base;     // those of blocks before this one
  uint32_t slot_base;    // candidates of blocks before this one, ties apart
  int32_t count;         // candidates of the row
};

// The block's candidates and samples.
struct Entries {
  uint32_t* list;
  float* estimates;  // [count, G]
  float* scores;
  uint32_t* samples;        // places and flags
  float* sample_estimates;  // [sample_count, G]
  int32_t count;
  int32_t sample_count;
  int32_t first_sample;  // number among the row's
};

// The block's part of the arena for hits, arrays of Mailbox::hit_capacity.
struct HitRoom {
  int32_t* memory;
  int32_t capacity;

  // Entries, in any order.
  PKV_DEVICE int32_t* found() const { return memory; }
  // Ascending.
  PKV_DEVICE int32_t* entry() const { return memory + capacity; }
  // Of each among the row's hits; -1: it is none.
  PKV_DEVICE int32_t* place() const { return memory + 2 * capacity; }
  // Of each in the row cache; kNoLine: it is not there.
  PKV_DEVICE int32_t* line() const { return memory + 3 * capacity; }
  // Of all that may be hits of the row: the order key of their score, and their positions.
  PKV_DEVICE uint32_t* order() const { return reinterpret_cast<uint32_t*>(memory + 4 * capacity); }
  PKV_DEVICE uint32_t* positions() const {
    return reinterpret_cast<uint32_t*>(memory + 5 * capacity);
  }
};

struct HitRange {
  int32_t wanted;  // hits of the row
  int32_t all;     // entries of the row that may be hits
  int32_t base;    // those of blocks before
  int32_t own;
};

// A block's range of a row.
struct BlockRow {
  int64_t row;
  int64_t entry;
  int64_t sequence;
  int32_t head;
  int64_t n;
  int32_t wanted;  // candidates of the row
  int64_t begin;   // position of the block's first key
  int32_t length;  // keys of the block
  format::StoreRow records;
  format::Samples samples;
  int32_t first_sample;  // numbers among the row's samples
  int32_t sample_count;
  Share dense;          // tokens of the dense parts, taken as one run
  int32_t dense_slots;  // of them that wait in slots from early on: all or none
};

// A dense part of the row.
struct DenseRun {
  VectorRow keys;
  VectorRow values;
  int64_t start;   // position of its first token
  int64_t before;  // tokens of the parts before
};

template <int kDim>
struct FusedShared {
  static constexpr int kChunks = kDim / 32;
  static constexpr int kPlaneWords = kDim / 32;

  BlockRow at;
  DenseRun dense[PKV_MAX_PARTS];
  FusedScan scan;
  alignas(16) uint32_t words[kFusedHeads][kQueryVectors * kChunks * 4];  // estimate.cuh
  HeadTerms terms[kFusedHeads];
  alignas(16) float raw[kFusedHeads][kDim];          // q_g
  alignas(16) float rotated[kFusedHeads + 1][kDim];  // q'_g, then Q'
  alignas(16) float mean[kDim];                      // of the zone's values,
  int32_t has_mean;                                  // where there are any
  uint32_t planes[8][kPlaneWords];  // bit j of word i of plane p: bit p of z[32 i + j]
  int32_t z_sum;
  float window_deviations;
  int32_t bad_vectors[kFusedHeads + 1];  // of q'_g and Q'
  int32_t bad;
  KeyScale scale;
  float moments[kFusedWarps][3];  // sum, sum of squares, count of sampled votes

  Selection selection;
  Entries entries;
  HitRange hits;

  // Selection.
  int32_t own_ties;             // entries of it whose vote lies in the cut's bin
  int32_t own_chosen;           // of these
  uint32_t ties[kMaxTies];      // order keys of all blocks' ties
  int32_t tie_entry[kMaxTies];  // own ties: entry, then with bit 31 if it came in
  int32_t dropped[kMaxTies];    // entries that did not, ascending
  int32_t dropped_count;

  // Sums of the estimates' exponentials.
  LogSum warp_sums[kFusedWarps][kFusedHeads];
  float stats[kFusedTeam][kStatWords];
  float lse[kFusedHeads];
  float rest[kFusedHeads];  // rest_lse
  float top[kFusedHeads];   // the largest logit less lse
  int32_t slot_base;        // of the block's first candidate among the row's

  float warp_mass[kFusedWarps][kFusedHeads];  // of candidates that are no hits, in units of e^lse
  TailHead tail[kFusedHeads];
  PartialStats samples[kFusedHeads];  // of the block
  JoinRoom join;

  // Hits.
  int32_t own_hits;   // that may come in
  int32_t has_cache;  // of the row
  uint32_t cache_step;
  uint64_t row_barrier;
  uint64_t dense_barrier;
};

// A 64-bit quotient; most are short divisions.
PKV_DEVICE int64_t quotient(int64_t value, int32_t divisor) {
  if (value <= UINT32_MAX) return static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor);
  return value / divisor;
}

// Samples::position, i below 2^16.
PKV_DEVICE int64_t sample_position(const format::Samples& samples, int32_t i) {
  return samples.stride * quotient(i * samples.steps, static_cast<int32_t>(samples.count));
}

// The least i whose sample lies at `position` or behind it: i * steps / count * stride >= position.
PKV_DEVICE int32_t sample_from(const format::Samples& samples, int64_t position) {
  if (samples.steps == 0) return 0;
  const int64_t step =
      quotient(position + samples.stride - 1, static_cast<int32_t>(samples.stride));
  const int64_t i =
      quotient(step * samples.count + samples.steps - 1, static_cast<int32_t>(samples.steps));
  return static_cast<int32_t>(i < samples.count ? i : samples.count);
}

// Keys of the row; the block's first, and how many it has.
struct KeyRange {
  int64_t n;
  int64_t begin;
  int32_t length;
};
// What the scan reads first goes into L2, by one warp; fused_vote.cuh.
template <int kDim>
PKV_DEVICE void prefetch_scan(const FusedArgs& a, const KeyRange& keys,
                              const format::StoreRow& records);

// Entry and KV head of a row, below 2^31.
PKV_DEVICE RowIndex short_row_index(int64_t row, int32_t kv_heads) {
  const auto all = static_cast<uint32_t>(kv_heads);
  const uint32_t entry = static_cast<uint32_t>(row) / all;
  return {entry, static_cast<int32_t>(static_cast<uint32_t>(row) - entry * all)};
}

PKV_DEVICE KeyRange key_range(const FusedArgs& a, int64_t entry, int32_t rank) {
  KeyRange r{};
  r.n = a.lengths[entry];  // below 2^31
  const auto all = static_cast<uint32_t>(r.n);
  const auto team = static_cast<uint32_t>(a.team);
  const uint32_t per = ((all + team - 1) / team + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
  const uint64_t begin = uint64_t{per} * static_cast<uint32_t>(rank);
  r.begin = static_cast<int64_t>(begin < all ? begin : all);
  const int64_t left = r.n - r.begin;
  r.length = static_cast<int32_t>(left < per ? left : per);
  return r;
}

// Three warps find what is the block's of a row, each a part of shared.at: its keys, every lane
// alike ..
template <int kDim>
PKV_DEVICE void find_keys(const FusedArgs& a, int64_t row, int32_t rank,
                          FusedShared<kDim>& shared) {
  const RowIndex index = short_row_index(row, a.codec.geometry.kv_heads);
  const KeyRange keys = key_range(a, index.entry, rank);
  const int64_t sequence = a.sequences[index.entry];
  const format::StoreRow records = a.store.row(sequence, index.head);
  prefetch_scan<kDim>(a, keys, records);
  if (LaneGroup<32>::rank() != 0) return;
  BlockRow& at = shared.at;
  at.row = row;
  at.entry = index.entry;
  at.sequence = sequence;
  at.head = index.head;
  at.n = keys.n;
  at.begin = keys.begin;
  at.length = keys.length;
  at.records = records;
}

// .. its samples and candidates ..
template <int kDim>
PKV_DEVICE void find_samples(const FusedArgs& a, int64_t row, int32_t rank,
                             FusedShared<kDim>& shared) {
  const RowIndex index = short_row_index(row, a.codec.geometry.kv_heads);
  const KeyRange keys = key_range(a, index.entry, rank);
  format::Samples samples = {};
  int32_t first = 0;
  int32_t count = 0;
  if (a.tail_samples > 0) {
    samples = format::samples(a.codec.geometry, keys.n, a.tail_samples);
    first = sample_from(samples, keys.begin);
    count = sample_from(samples, keys.begin + keys.length) - first;
  }
  if (LaneGroup<32>::rank() != 0) return;
  BlockRow& at = shared.at;
  at.samples = samples;
  at.first_sample = first;
  at.sample_count = count;
  at.wanted = static_cast<int32_t>(format::candidate_count(a.rule, keys.n));
  // 5: candidates are this share of the keys; twice as many are to lie in the window.
  int step = 0;
  while (step < a.rule.steps - 1 && keys.n >= a.rule.below[step]) ++step;
  shared.window_deviations = a.quantile[step];
  shared.scan.exchanges = 0;
}

// .. and its dense tokens: lane p has part p.
template <int kDim>
PKV_DEVICE void find_dense(const FusedArgs& a, int64_t row, int32_t rank,
                           FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const RowIndex index = short_row_index(row, a.codec.geometry.kv_heads);
  const int p = Group::rank();
  int64_t length = 0;
  if (p < a.part_count) {
    const TokenRun& run = a.runs[p];
    length = run.length(index.entry, row);
    const int64_t sequence = a.sequences[index.entry];
    DenseRun& dense = shared.dense[p];
    dense.start = run.starts != nullptr ? run.starts[index.entry] : 0;
    dense.keys = run.keys.row(index.entry, sequence, index.head);
    dense.values = run.values.row(index.entry, sequence, index.head);
  }
  const int64_t before = Group::sum_before(length);
  if (p < a.part_count) shared.dense[p].before = before;
  const Share share = share_of(Group::shuffle(before + length, 31), rank, a.team);
  if (p != 0) return;
  const int64_t own = share.end - share.begin;
  shared.at.dense = share;
  shared.at.dense_slots = own <= a.arena.row_slots - kLeastRowSlots ? static_cast<int32_t>(own) : 0;
}

}  // namespace pkv::cuda
