// The decode step in one kernel: what the host decides before a launch. docs/algorithm.md, sections
// 4 to 8; docs/decisions/0012-fused-step.md says why it is built so.
// A row (one KV head of one entry) is served by a team of blocks, one block per multiprocessor,
// each with a contiguous range of the row's keys. Teams pass words to each other through memory
// (fused_exchange.cuh), so the launch is cooperative.
#pragma once

#include "backends/gpu/attend.cuh"
#include "backends/gpu/query.cuh"
#include "backends/gpu/scratch.h"

namespace pkv::cuda {

inline constexpr int kFusedThreads = 512;
inline constexpr int kFusedWarps = kFusedThreads / 32;
inline constexpr int kFusedHeads = 8;    // G at most
inline constexpr int kFusedTeam = 16;    // blocks of a row at most
inline constexpr int kUnitKeys = 64;     // keys that a warp votes on at a time
inline constexpr int kWindowBins = 512;  // of the histograms of votes and of scores
inline constexpr int kMaxTies = 1024;    // keys of the vote's last bin that a list may settle
inline constexpr int kSpareHits = 128;   // beyond k, of the scores' last bin
inline constexpr int kSampleSlack = 2 * kUnitKeys;  // of a block beyond its even share
inline constexpr int kFusedHits = 2048;             // k at most
inline constexpr int kHitArrays = 6;                // of HitRoom
inline constexpr int kFusedSamples = 1024;          // T at most

// What a word of a mailbox is for; offsets within that of a block, in words.
inline constexpr int kHistogramWords = 256;  // two of them take turns
inline constexpr int kStatWords = 64;
struct Mailbox {
  uint64_t* words;      // [blocks, block_words]
  uint64_t* lists;      // [teams, list_words] ties, hits, lines of the row cache
  int32_t block_words;  // multiples of 32
  int32_t list_words;
  int32_t hit_capacity;  // of hits: two words each, and one of lines

  static constexpr int kStats = 2 * kHistogramWords;
  static constexpr int kTail = kStats + kStatWords;
  static constexpr int kPartial = kTail + kStatWords;
};

// Pieces of a block's dynamic shared memory behind FusedShared, in bytes from there: first slots of
// dense tokens and fetched rows. Until the list is written, keys lie over what is in front of it.
struct Arena {
  int32_t keys;          // [keys of the block] of 16 bits; behind the slots where there is room
  int32_t join;          // floats [kFusedWarps, 4, d] that warps join
  int32_t estimates;     // [capacity, G] floats
  int32_t scores;        // [capacity] floats
  int32_t list;          // [capacity] words
  int32_t samples;       // [sample_capacity, G] floats
  int32_t sample_state;  // [sample_capacity] words
  int32_t hits;          // HitRoom
  int32_t tags;          // [lines] of the row cache
  int32_t bytes;
  int32_t capacity;   // entries of a block's list; more go to memory
  int32_t row_slots;  // tokens at a time
  int32_t row_bytes;  // of a slot: K, then V
  int32_t keys_fit;   // 1: keys lie in shared memory
  int32_t is_early;   // 1: slots are free from the beginning, so dense tokens need not wait
};

// Where a block's list goes if the arena is too short, and keys that do not fit.
struct Spill {
  uint16_t* keys;   // [rows, stride]
  uint32_t* lists;  // [rows, entries] and so on
  float* estimates;
  float* scores;
  int64_t key_stride;
  int64_t entries;  // of a row
};

// L(x) without a soft cap.
struct ScaledLogit {
  float scale;
  PKV_DEVICE float operator()(float product) const { return scale * product; }
};

struct FusedArgs {
  StoreView store;
  CodecView codec;
  TensorView queries;  // [b, hq, d]
  pkv_candidate_rule rule;
  float quantile[PKV_MAX_SCHEDULE];  // standard deviations above the mean where the window begins
  int64_t rows;
  int32_t team;
  int32_t group;  // G
  int32_t k;
  int32_t rank;
  const int32_t* sequences;  // [b]
  const int64_t* lengths;    // [b]
  ScaledLogit logit;
  int32_t* candidates;
  int64_t candidates_stride;
  int32_t* candidate_counts;
  float* estimates;
  int32_t* positions;
  float* scores;
  int32_t* counts;
  float* rest_lse;
  float* sample_estimates;
  int32_t tail_samples;  // 0: none are taken
  int32_t tail;          // PKV_TAIL_*
  int32_t has_attention;
  int32_t part_count;
  TokenRun runs[PKV_MAX_PARTS];
  VectorSource row_keys;
  VectorSource row_values;
  pkv_dtype dtype;  // of all K and V
  int32_t key_bytes;
  int32_t value_bytes;
  pkv_row_cache_args row_cache;  // its data is NULL: none
  TensorView output;
  float* lse;
  const float* sink_logits;
  const double* value_sums;
  const int64_t* good_counts;
  Mailbox mailbox;
  Spill spill;
  Arena arena;
  long long* marks;  // PKV_FUSED_MARKS: clocks at the ends of phases
};

// Why the kernel cannot serve a step of this shape on the device, or of these element types; NULL:
// it can. Scratch depends on the shape alone.
const char* why_not_fused_shape(const pkv_step_args& args, int ordinal);
const char* why_not_fused_types(const pkv_step_args& args, int ordinal);

// Bytes of scratch, where the shape can be served.
int64_t fused_scratch_bytes(const pkv_step_args& args, int ordinal);

gpuError_t launch_fused(const pkv_step_args& args, int ordinal, void* scratch, gpuStream_t stream);

}  // namespace pkv::cuda
