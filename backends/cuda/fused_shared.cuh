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
#define PKV_MARK(args, i)                                              \
  do {                                                                 \
    if (thread_index() == 0) {                                         \
      const int64_t block = int64_t{block_y()} * grid_x() + block_x(); \
      (args).marks[block * kMarks + (i)] = clock64();                  \
    }                                                                  \
  } while (false)
#else
#define PKV_MARK(args, i) (void)0
#endif

PKV_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

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
};

inline constexpr int kTagShift = 48;
inline constexpr int kTagsPerRow = 16;  // histograms of one row at most

// A block's view of its team.
struct Team {
  uint64_t* words;  // of the team's first block
  uint64_t* ties;
  uint64_t* hits;
  uint64_t* claims;
  int32_t block_words;
  int32_t size;
  int32_t rank;
  uint32_t round;  // of rows that the team has served

  PKV_DEVICE Team(const Mailbox& box, int32_t blocks, unsigned number, int32_t own)
      : words(box.words + int64_t{number} * blocks * box.block_words),
        ties(box.lists + int64_t{number} * box.list_words),
        hits(ties + kMaxTies),
        claims(hits + 2 * box.hit_capacity),
        block_words(box.block_words),
        size(blocks),
        rank(own),
        round(0) {}

  PKV_DEVICE uint64_t tag() const { return uint64_t{round + 1} << kTagShift; }
  PKV_DEVICE uint64_t* own(int offset) const { return words + rank * block_words + offset; }
  PKV_DEVICE const uint64_t* of(int block, int offset) const {
    return words + block * block_words + offset;
  }
};

struct FusedScan {
  uint32_t histogram[kWindowBins];
  uint64_t sums[kFusedWarps];
  uint32_t exchanges;  // how many histograms the row has passed round
  Cut cut;
  uint32_t total;       // of the last histogram, in all bins
  uint32_t team_total;  // of blocks of a smaller rank
};

inline constexpr int kHeadsAtOnce = 4;     // of attention and samples
inline constexpr int kVoteWarps = 4;       // that prepare the vote
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
  int32_t dense_slots;  // of them that wait in slots: all or none
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

  Team team;
  BlockRow at;
  DenseRun dense[PKV_MAX_PARTS];
  FusedScan scan;
  alignas(16) uint32_t words[kFusedHeads][kQueryVectors * kChunks * 4];  // estimate.cuh
  HeadTerms terms[kFusedHeads];
  alignas(16) float raw[kFusedHeads][kDim];          // q_g
  alignas(16) float rotated[kFusedHeads + 1][kDim];  // q'_g, then Q'
  double value_sums[kDim];                           // of the zone
  int64_t good_count;                                // of its values
  uint32_t planes[8][kPlaneWords];  // bit j of word i of plane p: bit p of z[32 i + j]
  int32_t z_sums[kVoteWarps];       // parts of the sum of z
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

  // Of the zone's values.
  PKV_DEVICE float mean(int j) const {
    return fdiv_rn(static_cast<float>(value_sums[j]), static_cast<float>(good_count));
  }
};

// The block's, also in code that is called, which has an address in the shared window then. The
// address is kept in a register: else every access works it out anew.
template <int kDim>
PKV_DEVICE FusedShared<kDim>& fused_shared() {
  PKV_DYNAMIC_SHARED(window);
  uint32_t address = shared_address(window);
  asm volatile("" : "+r"(address));
  return *static_cast<FusedShared<kDim>*>(__cvta_shared_to_generic(address));
}

}  // namespace pkv::cuda
