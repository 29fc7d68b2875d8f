// Shared memory of the fused step beside its arena, and a block's view of its row.
#pragma once

#include "backends/cuda/fused.h"
#include "backends/gpu/block.cuh"
#include "backends/gpu/estimate.cuh"
#include "backends/gpu/softmax.cuh"
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

// How votes become keys of 16 bits that order like them: the bits of order_key from `shift` up,
// less `base`, within [1, kMostKey]; 0 for a vote that is NaN.
inline constexpr int32_t kMostKey = 65534;
struct KeyScale {
  int32_t shift;
  int32_t base;
  int32_t window;  // the key where the window of kWindowBins begins; 0: there is no window
};

// Where in the order of bins the wanted-th thing lies; of all blocks, and of those before this one.
struct Cut {
  int32_t bin;           // -1: there are fewer
  uint32_t before;       // in bins before it
  uint32_t here;         // in it
  uint32_t team_before;  // the same in blocks of a smaller rank
  uint32_t team_here;
  uint32_t own_here;
  uint32_t total;       // in all bins
  uint32_t team_total;  // of blocks of a smaller rank
};

struct FusedScan {
  uint32_t histogram[kWindowBins];
  uint64_t sums[kFusedWarps];
  Cut cut;
  uint32_t overflows;
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

// A block's range of a row.
struct BlockRow {
  int64_t row;
  int64_t entry;
  int64_t sequence;
  int32_t head;
  int64_t n;
  int64_t begin;   // position of the block's first key
  int32_t length;  // keys of the block
  format::StoreRow records;
  // By another thread, later:
  int64_t first_sample;  // numbers among the row's samples
  int32_t sample_count;
  Share dense;          // tokens of the dense parts, taken as one run
  int32_t dense_slots;  // of them that wait in slots: all or none
};

template <int kDim>
struct FusedShared {
  static constexpr int kChunks = kDim / 32;
  static constexpr int kPlaneWords = kDim / 32;

  BlockRow at;
  FusedScan scan;
  alignas(16) uint32_t words[kFusedHeads][kQueryVectors * kChunks * 4];  // estimate.cuh
  HeadTerms terms[kFusedHeads];
  alignas(16) float raw[kFusedHeads][kDim];          // q_g
  alignas(16) float rotated[kFusedHeads + 1][kDim];  // q'_g, then Q'
  alignas(16) int32_t z[kDim];
  uint32_t planes[8][kPlaneWords];  // bit j of word i of plane p: bit p of z[32 i + j]
  int32_t z_sum;
  float window_deviations;
  int32_t bad;
  KeyScale scale;
  float moments[kFusedWarps][3];  // sum, sum of squares, count of sampled votes

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

  TailHead tail[kFusedHeads];
  PartialStats samples[kFusedHeads];  // of the block
  JoinRoom join;

  // Hits.
  int32_t own_hits;  // that may come in
  uint64_t row_barrier;
  uint64_t dense_barrier;
};

PKV_DEVICE BlockRow block_row(const FusedArgs& a, int64_t row, int32_t rank) {
  BlockRow r{};
  r.row = row;
  const RowIndex at = row_index(row, a.codec.geometry.kv_heads);
  r.entry = at.entry;
  r.head = at.head;
  r.sequence = a.sequences[at.entry];
  r.n = a.lengths[at.entry];
  const int64_t per = gpu::round_up((r.n + a.team - 1) / a.team, kUnitKeys);
  r.begin = per * rank < r.n ? per * rank : r.n;
  const int64_t left = r.n - r.begin;
  r.length = static_cast<int32_t>(left < per ? left : per);
  r.records = a.store.row(r.sequence, r.head);
  return r;
}

// The least i whose sample lies at `position` or behind it: i * steps / count * stride >= position.
PKV_DEVICE int64_t sample_from(const format::Samples& samples, int64_t position) {
  if (samples.steps == 0) return 0;
  const int64_t step = (position + samples.stride - 1) / samples.stride;
  const int64_t i = (step * samples.count + samples.steps - 1) / samples.steps;
  return i < samples.count ? i : samples.count;
}

// What of the row's samples and dense tokens is the block's. By one thread.
PKV_APART inline void share_row(const FusedArgs& a, int32_t rank, BlockRow& r) {
  r.first_sample = 0;
  r.sample_count = 0;
  if (a.tail_samples > 0) {
    const format::Samples samples = format::samples(a.codec.geometry, r.n, a.tail_samples);
    r.first_sample = sample_from(samples, r.begin);
    r.sample_count =
        static_cast<int32_t>(sample_from(samples, r.begin + r.length) - r.first_sample);
  }
  int64_t count = 0;
#pragma unroll 1
  for (int32_t p = 0; p < a.part_count; ++p) count += a.runs[p].length(r.entry, r.row);
  r.dense = share_of(count, rank, a.team);
  const int64_t own = r.dense.end - r.dense.begin;
  r.dense_slots = own <= a.arena.row_slots - kLeastRowSlots ? static_cast<int32_t>(own) : 0;
}

}  // namespace pkv::cuda
