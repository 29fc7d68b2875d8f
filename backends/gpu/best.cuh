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

// Counters of a block, in kCopies copies, so that fewer lanes meet at one.
template <int kCopies>
struct BestBins {
  uint32_t counts[kBestBins * kCopies];

  // A barrier stands behind.
  template <int kThreads>
  PKV_DEVICE void clear() {
    for (int i = thread_index(); i < kBestBins * kCopies; i += kThreads) counts[i] = 0;
    sync_block();
  }
  PKV_DEVICE void add(uint32_t digit) {
    atomic_add(counts + digit * kCopies + thread_index() % kCopies, 1U);
  }
  PKV_DEVICE uint32_t operator()(int digit) const {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) sum += counts[digit * kCopies + i];
    return sum;
  }
  // Adds what was counted to `bins` in global memory. Barriers stand before and behind.
  template <int kThreads>
  PKV_DEVICE void add_to(uint32_t* bins, int count) const {
    sync_block();
    for (int digit = thread_index(); digit < count; digit += kThreads) {
      const uint32_t here = (*this)(digit);
      if (here > 0) atomic_add(bins + digit, here);
    }
    sync_block();
  }
};

// Shared memory of a block.
template <int kThreads, int kCopies = 4>
struct BestShared {
  BestBins<kCopies> bins;
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

// Keys of places place .. place + 3; 0 from `end` on.
struct FourKeys {
  uint32_t key[4];

  PKV_DEVICE FourKeys(const float* values, int64_t place, int64_t end, bool is_aligned) {
    if (is_aligned && place + 4 <= end) {
      const Words<4> words = load_words<4>(values + place);
#pragma unroll
      for (int e = 0; e < 4; ++e) key[e] = order_key(std::bit_cast<float>(words.word[e]));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        key[e] = place + e < end ? order_key(values[place + e]) : 0U;
      }
    }
  }
  FourKeys() = default;
};

PKV_DEVICE bool starts_aligned(const float* values, int64_t begin) {
  return reinterpret_cast<uintptr_t>(values + begin) % 16 == 0;
}

// f(key) for the places of [begin, end), by `threads` of which the caller is number `thread`. 0,
// the key of NaN, comes more often than it is there.
template <class F>
PKV_DEVICE void each_key(const float* values, int64_t begin, int64_t end, int thread, int threads,
                         const F& f) {
  constexpr int kAtOnce = 4;
  const bool is_aligned = starts_aligned(values, begin);
  for (int64_t first = begin + 4 * thread; first < end; first += int64_t{4 * kAtOnce} * threads) {
    FourKeys keys[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      keys[i] = FourKeys(values, first + int64_t{4 * i} * threads, end, is_aligned);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) f(keys[i].key[e]);
    }
  }
}

constexpr uint32_t best_digit(uint32_t key, int pass) {
  return (key >> best_shift(pass)) & ((1U << best_bits(pass)) - 1U);
}

// Counts digit kPass of the keys of [begin, end) that begin with `prefix`.
template <int kPass, int kThreads, int kCopies>
PKV_DEVICE void count_digits(const float* values, int64_t begin, int64_t end, uint32_t prefix,
                             BestBins<kCopies>& bins) {
  each_key(values, begin, end, thread_index(), kThreads, [&](uint32_t key) {
    bool counts = key != 0;
    if constexpr (kPass > 0) {
      counts = counts && key >> (best_shift(kPass) + best_bits(kPass)) == prefix;
    }
    if (counts) bins.add(best_digit(key, kPass));
  });
  sync_block();
}

// The state after pass kPass, whose digits were counted: bin(digit) keys. For all threads.
template <int kPass, int kThreads, int kCopies, class Bin>
PKV_DEVICE BestState find_digit(const BestState& before, const Bin& bin,
                                BestShared<kThreads, kCopies>& shared) {
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
  each_key(row.values, begin, end, LaneGroup<32>::rank(), 32, [&](uint32_t key) {
    if (key > cut.prefix) count += uint64_t{1} << 32;
    if (key == cut.prefix) ++count;
  });
  return LaneGroup<32>::sum(count);
}

// Writes the places of a run that come in, ascending. `before`: the counts of all runs before. A
// lane has four neighbours at a time.
PKV_DEVICE void write_run(const BestRow& row, const BestState& cut, int64_t begin, int64_t end,
                          uint64_t before, int32_t* out) {
  using Group = LaneGroup<32>;
  constexpr int kAtOnce = 4;
  const auto need = static_cast<uint32_t>(cut.need);
  const bool is_aligned = starts_aligned(row.values, begin);
  auto equal = static_cast<uint32_t>(before);
  int64_t slot = static_cast<int64_t>(before >> 32) + (equal < need ? equal : need);
  for (int64_t first = begin; first < end; first += kAtOnce * 128) {
    FourKeys keys[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      keys[i] = FourKeys(row.values, first + 128 * i + 4 * Group::rank(), end, is_aligned);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t* key = keys[i].key;
      uint32_t equal_here = equal;  // before the lane's
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t at_cut = Group::ballot(key[e] == cut.prefix);
        equal_here += static_cast<uint32_t>(Group::rank_in(at_cut));
        equal += static_cast<uint32_t>(Group::count_bits(at_cut));
      }
      bool comes_in[4];
      int64_t target = slot;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        comes_in[e] = key[e] > cut.prefix;
        if (key[e] == cut.prefix) comes_in[e] = equal_here++ < need;
        const uint32_t chosen = Group::ballot(comes_in[e]);
        target += Group::rank_in(chosen);
        slot += Group::count_bits(chosen);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (comes_in[e]) {
          out[target++] = static_cast<int32_t>(first + 128 * i + 4 * Group::rank() + e);
        }
      }
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
