// The largest of a row's floats, equal ones by the smaller place, without sorting: for select
// (docs/algorithm.md, section 5) and the hits of rerank (section 6.2).
// Values become unsigned keys of the same order. Three passes count the digits of the keys, 11, 11
// and 10 bits, from the highest: the key at the cut and how many that are equal to it come in. Then
// each run of a row counts its keys above and at the cut, and writes behind the runs before it.
// Traffic: the values five times, from the second time on mostly in cache.
// Exact: counts, no slots by atomics. NaN is never taken.
#pragma once

#include "backends/gpu/block.cuh"
#include "backends/gpu/gpu_vec.cuh"

namespace PKV_GPU_NS {

inline constexpr int kBestPasses = 3;
inline constexpr int kBestBins = 2048;
constexpr int best_bits(int pass) { return pass == 2 ? 10 : 11; }
constexpr int best_shift(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }

// What is asked of a row: the `wanted` best of n, fewer where fewer are no NaN. Below 2^31.
struct BestRow {
  const float* values;
  int64_t n;
  int64_t wanted;
};

// After some passes: how the key at the cut begins.
struct BestState {
  uint32_t prefix;
  int32_t need;    // keys that begin so and come in, in the order of the rest of the key
  int32_t wanted;  // in all
};

// In global memory, between the kernels of a long row.
struct BestScratch {
  uint32_t* bins;     // [rows, kBestPasses, kBestBins], 0 at first
  BestState* states;  // [rows, kBestPasses] after each pass
  uint64_t* runs;     // [rows, run_count] keys above (high word) and at the cut
  int32_t run_count;
};

// Shared memory of a block. Counters lie in kCopies copies, so that fewer lanes meet at one.
template <int kThreads>
struct BestShared {
  static constexpr int kCopies = 4;
  uint32_t bins[kBestBins * kCopies];
  uint32_t sums[kThreads / 32];
  uint64_t runs[kThreads / 32];
  BestState state;
};

// Orders like the value; 0 for NaN alone.
PKV_DEVICE uint32_t order_key(float value) {
  if (value != value) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(fadd_rn(value, 0.0F));  // one zero
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
PKV_DEVICE float value_of_order_key(uint32_t key) {
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffU : ~key);
}

// f(place, key) for places of [begin, end) that are `step` apart. NaN keys come too.
template <class F>
PKV_DEVICE void each_key(const float* values, int64_t begin, int64_t end, int step, const F& f) {
  constexpr int kAtOnce = 4;
  for (int64_t first = begin; first < end; first += int64_t{kAtOnce} * step) {
    float value[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t place = first + int64_t{i} * step;
      value[i] = place < end ? values[place] : quiet_nan();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) f(first + int64_t{i} * step, order_key(value[i]));
  }
}

template <int kThreads>
PKV_DEVICE void clear_bins(BestShared<kThreads>& shared) {
  for (int i = thread_index(); i < kBestBins * BestShared<kThreads>::kCopies; i += kThreads) {
    shared.bins[i] = 0;
  }
  sync_block();
}

// Counts digit kPass of the keys of [begin, end) that begin with `prefix`, into shared.bins.
template <int kPass, int kThreads>
PKV_DEVICE void count_digits(const float* values, int64_t begin, int64_t end, uint32_t prefix,
                             BestShared<kThreads>& shared) {
  constexpr int kCopies = BestShared<kThreads>::kCopies;
  constexpr uint32_t kMask = (1U << best_bits(kPass)) - 1U;
  const int copy = thread_index() % kCopies;
  each_key(values, begin + thread_index(), end, kThreads, [&](int64_t, uint32_t key) {
    bool counts = key != 0;
    if constexpr (kPass > 0) {
      counts = counts && key >> (best_shift(kPass) + best_bits(kPass)) == prefix;
    }
    if (!counts) return;
    const uint32_t digit = (key >> best_shift(kPass)) & kMask;
    atomic_add(shared.bins + digit * kCopies + copy, 1U);
  });
  sync_block();
}

template <int kThreads>
PKV_DEVICE uint32_t counted(const BestShared<kThreads>& shared, int digit) {
  uint32_t sum = 0;
  for (int i = 0; i < BestShared<kThreads>::kCopies; ++i) {
    sum += shared.bins[digit * BestShared<kThreads>::kCopies + i];
  }
  return sum;
}

// The state after pass kPass, whose digits were counted: bin(digit) keys. For all threads.
template <int kPass, int kThreads, class Bin>
PKV_DEVICE BestState find_digit(const BestState& before, const Bin& bin,
                                BestShared<kThreads>& shared) {
  constexpr int kBins = 1 << best_bits(kPass);
  constexpr int kPerThread = (kBins + kThreads - 1) / kThreads;
  // Thread t has the t-th run of digits from the largest down.
  const int first = kBins - 1 - thread_index() * kPerThread;
  uint32_t mine = 0;
  for (int i = 0; i < kPerThread && first - i >= 0; ++i) mine += bin(first - i);
  const BlockSum<uint32_t> sum = block_sum<kThreads>(mine, shared.sums);
  // All that are there, if they are fewer than wanted: known after the first pass.
  const auto all = static_cast<int32_t>(sum.total);
  const int32_t need = before.need < all ? before.need : all;
  if (need == 0) {
    if (thread_index() == 0) shared.state = {0, 0, 0};
  } else if (static_cast<uint32_t>(need) > sum.before &&
             static_cast<uint32_t>(need) <= sum.before + mine) {
    int digit = first;
    auto rest = static_cast<uint32_t>(need) - sum.before;
    for (uint32_t here = bin(digit); rest > here; here = bin(--digit)) rest -= here;
    shared.state.prefix = before.prefix << best_bits(kPass) | static_cast<uint32_t>(digit);
    shared.state.need = static_cast<int32_t>(rest);
    shared.state.wanted = kPass == 0 ? need : before.wanted;
  }
  sync_block();
  const BestState result = shared.state;
  sync_block();
  return result;
}

PKV_DEVICE BestState first_state(const BestRow& row) {
  return {0, static_cast<int32_t>(row.wanted), static_cast<int32_t>(row.wanted)};
}

// For the lanes of a group: keys above (high word) and at the cut of a run.
PKV_DEVICE uint64_t count_run(const BestRow& row, const BestState& cut, int64_t begin,
                              int64_t end) {
  uint64_t count = 0;
  each_key(row.values, begin + LaneGroup<32>::rank(), end, 32, [&](int64_t, uint32_t key) {
    if (key > cut.prefix) count += uint64_t{1} << 32;
    if (key == cut.prefix) ++count;
  });
  return LaneGroup<32>::sum(count);
}

// Writes the places of a run that come in, ascending. `before`: the counts of all runs before.
PKV_DEVICE void write_run(const BestRow& row, const BestState& cut, int64_t begin, int64_t end,
                          uint64_t before, int32_t* out) {
  using Group = LaneGroup<32>;
  constexpr int kAtOnce = 4;
  const auto need = static_cast<uint32_t>(cut.need);
  auto equal = static_cast<uint32_t>(before);
  int64_t slot = static_cast<int64_t>(before >> 32) + (equal < need ? equal : need);
  for (int64_t first = begin; first < end; first += kAtOnce * 32) {
    uint32_t keys[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t place = first + 32 * i + Group::rank();
      keys[i] = place < end ? order_key(row.values[place]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t at_cut = Group::ballot(keys[i] == cut.prefix);
      const bool comes_in =
          keys[i] > cut.prefix ||
          (keys[i] == cut.prefix && equal + static_cast<uint32_t>(Group::rank_in(at_cut)) < need);
      const uint32_t chosen = Group::ballot(comes_in);
      if (comes_in) {
        out[slot + Group::rank_in(chosen)] = static_cast<int32_t>(first + 32 * i + Group::rank());
      }
      equal += static_cast<uint32_t>(Group::count_bits(at_cut));
      slot += Group::count_bits(chosen);
    }
  }
}

// A row in `count` runs of whole groups of 32 keys.
struct BestRuns {
  int64_t n;
  int64_t keys;  // of a run

  PKV_DEVICE BestRuns(int64_t n_, int32_t count)
      : n(n_), keys((n_ + 32 * int64_t{count} - 1) / (32 * int64_t{count}) * 32) {}
  PKV_DEVICE int64_t begin(int64_t run) const { return run * keys < n ? run * keys : n; }
};

}  // namespace PKV_GPU_NS
