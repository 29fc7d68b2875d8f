// Selection without sorting: the best of a list by value, then by place. docs/algorithm.md,
// sections 5 and 6.2.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

// A list of (value, position), positions ascending, that only ever needs its `wanted` best. When it
// is full it drops what cannot be among them and raises the threshold.
struct Survivors {
  const Isa* isa;
  float* values;       // [capacity], room for 16 more
  int32_t* positions;  // likewise
  float* boundary;     // likewise; temporary
  int64_t capacity;
  int64_t wanted;
  int64_t count;
  float threshold;  // values below are not added; NaN never is
  bool is_full;     // had no room for its best: nothing more was added
};

inline constexpr int64_t kSurvivorsAtLeast = 16384;  // rows below that never drop any
inline constexpr int64_t kSampleBlocks = 256;        // of a threshold: at most,
inline constexpr int64_t kSampleBlocksLeast = 32;    // at least,
inline constexpr int64_t kSampledHits = 80;          // and such that as many are among the best

// Room for rows of up to max_length keys of which at most max_wanted are selected.
Survivors take_survivors(Scratch& scratch, const Isa& isa, int64_t max_length, int64_t max_wanted);

void reset(Survivors& survivors, int64_t wanted, float threshold);

// Adds those of votes[0, count) that reach the threshold, at positions first, first + 1, ..
void add_votes(const float* votes, int64_t count, int64_t first, Survivors& survivors);

// Leaves the `wanted` best, equal values by smallest position, in the order they were in. No value
// is NaN.
void keep_best(Survivors& survivors);

// Of `count` values, a bound that at least `rank` of them reach, and hardly more; -inf if there are
// fewer. NaN does not count.
float bound_of_rank(const Isa& isa, const float* values, int64_t count, int64_t rank);

// The rank of a threshold in a sample of `sampled` of n values that the `wanted` best of all very
// likely reach: neighbours resemble each other, so the margin is wide. A miss costs a second scan.
int64_t sample_rank(int64_t wanted, int64_t n, int64_t sampled);

}  // namespace pkv::cpu
