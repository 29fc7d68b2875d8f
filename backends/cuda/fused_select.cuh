// The candidates of a row: its C largest votes, from 16-bit keys and exact votes where keys are
// equal at the cut. docs/algorithm.md, section 5. Exact; no slot by an atomic.
//  1. The window's histogram gives the key at the cut in one exchange. If it misses (or a count
//     overflows) two histograms over all keys do.
//  2. Keys that equal it and do not all come in are ties: a few are listed to the team, which
//     settles them later, while records travel; many go through four more histograms, of their
//     exact votes, and by position.
#pragma once

#include "backends/cuda/fused_scan.cuh"

namespace pkv::cuda {

// How many keys of the block are entries of a list, and ties among them.
struct KeyCounts {
  uint32_t entries;
  uint32_t ties;
};

// Keys of the block in runs of each warp, in order: entries are those from `low` up, ties those of
// them below `high`.
class OrderedKeys {
 public:
  PKV_DEVICE OrderedKeys(const uint16_t* keys, int32_t length, uint32_t low, uint32_t high)
      : keys_(keys), low_(low << 16 | low), high_(high << 16 | high) {
    const auto padded = static_cast<int32_t>(gpu::round_up(length, kUnitKeys));
    const auto run =
        static_cast<int32_t>(gpu::round_up((padded + kFusedWarps - 1) / kFusedWarps, kAtOnce * 32));
    const int32_t begin = run * LaneGroup<32>::index();
    begin_ = begin < padded ? begin : padded;
    end_ = padded - begin_ < run ? padded : begin_ + run;
  }

  // Of the block. All threads.
  PKV_DEVICE KeyCounts count(uint64_t* room) {
    using Group = LaneGroup<32>;
    uint32_t entries = 0;
    uint32_t sure = 0;
#pragma unroll 1
    for (int32_t i = begin_ + kAtOnce * Group::rank(); i < end_; i += kAtOnce * 32) {
      const Words<4> words = load_words<4>(keys_ + i);
      each_at_least(words, low_, [&](int) { ++entries; });
      each_at_least(words, high_, [&](int) { ++sure; });
    }
    const uint64_t mine = uint64_t{Group::sum(entries - sure)} << 32 | Group::sum(entries);
    sync_block();  // the room is free
    if (Group::rank() == 0) room[Group::index()] = mine;
    sync_block();
    uint64_t total = 0;
    uint64_t before = 0;
#pragma unroll
    for (int warp = 0; warp < kFusedWarps; ++warp) {
      if (warp < Group::index()) before += room[warp];
      total += room[warp];
    }
    before_ = {static_cast<uint32_t>(before), static_cast<uint32_t>(before >> 32)};
    return {static_cast<uint32_t>(total), static_cast<uint32_t>(total >> 32)};
  }

  // visit(i, entry, tie) for each entry, `tie` -1 or its number; after count().
  template <class Visit>
  PKV_DEVICE void visit(const Visit& visit_entry) const {
    using Group = LaneGroup<32>;
    constexpr int kTie = 16;  // bits from which ties are counted
    KeyCounts before = before_;
#pragma unroll 1
    for (int32_t base = begin_; base < end_; base += kAtOnce * 32) {
      const int32_t first = base + kAtOnce * Group::rank();
      Words<4> words = {};
      if (first < end_) words = load_words<4>(keys_ + first);
      uint32_t entries = 0;
      uint32_t sure = 0;
      each_at_least(words, low_, [&](int j) { entries |= 1U << j; });
      if (!Group::any(entries != 0)) continue;
      each_at_least(words, high_, [&](int j) { sure |= 1U << j; });
      const uint32_t ties = entries & ~sure;
      const auto mine =
          static_cast<uint32_t>(Group::count_bits(entries) + (Group::count_bits(ties) << kTie));
      const uint32_t lower = Group::sum_before(mine);
      const uint32_t all = Group::shuffle(lower + mine, 31);
      uint32_t entry = before.entries + (lower & ((1U << kTie) - 1));
      uint32_t tie = before.ties + (lower >> kTie);
      before.entries += all & ((1U << kTie) - 1);
      before.ties += all >> kTie;
#pragma unroll 1
      for (; entries != 0; entries &= entries - 1) {
        const int j = trailing_zeros(entries);
        const bool is_tie = ((ties >> j) & 1U) != 0;
        visit_entry(first + j, static_cast<int32_t>(entry),
                    is_tie ? static_cast<int32_t>(tie) : -1);
        ++entry;
        if (is_tie) ++tie;
      }
    }
  }

 private:
  static constexpr int kAtOnce = 8;

  // use(j) for keys of at least those of `least`, two to a word.
  template <class Use>
  PKV_DEVICE static void each_at_least(const Words<4>& words, uint32_t least, const Use& use) {
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i) {
      bool high = false;
      bool low = false;
      (void)__vibmax_u16x2(words.word[i], least, &high, &low);
      if (low) use(2 * i);
      if (high) use(2 * i + 1);
    }
  }

  const uint16_t* keys_;
  uint32_t low_;
  uint32_t high_;
  int32_t begin_;
  int32_t end_;
  KeyCounts before_ = {};
};

// A digit of 8 bits, from the top: adds to what the digits before have found.
struct DigitSum {
  uint32_t prefix = 0;
  uint32_t wanted = 0;
  uint32_t before = 0;       // in all blocks, above the prefix
  uint32_t team_before = 0;  // in blocks before

  // `count_digits` adds to shared.histogram[255 - digit]. False: there are fewer than wanted.
  template <class Count>
  PKV_DEVICE bool next(const Team& team, FusedScan& shared, const Count& count_digits) {
    count_digits();
    if (exchange_histogram<1>(team, shared, wanted) <= 0) return false;
    const Cut& cut = shared.cut;
    prefix = prefix << 8 | static_cast<uint32_t>(255 - cut.bin);
    wanted -= cut.before;
    before += cut.before;
    team_before += cut.team_before;
    return true;
  }
};

// Many equal keys at the cut: exact votes, then positions decide; keys that come in are raised
// above the cut's, others become 0.
template <int kDim>
PKV_APART Selection settle_many_ties(const FusedArgs& a, const BlockRow& at, const Team team,
                                     uint16_t* keys, uint32_t cut_key, FusedShared<kDim>& shared,
                                     Selection selection) {
  const auto each_tie = [&](const auto& f) {
#pragma unroll 1
    for (int32_t i = thread_index(); i < at.length; i += kFusedThreads) {
      if (keys[i] == cut_key) f(i, order_key(vote_of_key(a, at, at.begin + i, shared)));
    }
  };
  DigitSum digits;
  digits.wanted = selection.ties_wanted;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    digits.next(team, shared.scan, [&] {
      each_tie([&](int32_t, uint32_t order) {
        if (shift < 24 && order >> (shift + 8) != digits.prefix) return;
        atomic_add(shared.scan.histogram + (255U - ((order >> shift) & 0xffU)), 1U);
      });
    });
  }
  const auto equal_before = static_cast<int32_t>(shared.scan.cut.team_here);
  const auto equal_wanted = static_cast<int32_t>(digits.wanted);
  const int32_t quota = equal_wanted > equal_before ? equal_wanted - equal_before : 0;
  each_tie([&](int32_t i, uint32_t order) {
    if (order != digits.prefix) keys[i] = order > digits.prefix ? cut_key + 1 : 0;
  });
  sync_block();
  OrderedKeys ordered(keys, at.length, cut_key, cut_key + 1);
  ordered.count(shared.scan.sums);
  ordered.visit([&](int32_t i, int32_t, int32_t tie) {
    if (tie >= 0) keys[i] = tie < quota ? cut_key + 1 : 0;
  });
  sync_block();
  selection.slot_base +=
      digits.team_before +
      static_cast<uint32_t>(equal_before < equal_wanted ? equal_before : equal_wanted);
  selection.key = selection.sure = cut_key + 1;
  selection.ties = selection.tie_base = 0;
  return selection;
}

// What comes in where the cut lies in keys equal to `cut_key`, of which digits.wanted do.
template <int kDim>
PKV_DEVICE Selection cut_selection(const FusedArgs& a, const BlockRow& at, const Team& team,
                                   uint16_t* keys, uint32_t cut_key, const DigitSum& digits,
                                   FusedShared<kDim>& shared) {
  const Cut& cut = shared.scan.cut;
  Selection result = {};
  result.key = cut_key;
  result.count = static_cast<int32_t>(digits.before + digits.wanted);
  result.slot_base = digits.team_before;
  if (digits.wanted == cut.here) {
    result.sure = cut_key;
    result.slot_base += cut.team_here;
    return result;
  }
  result.sure = cut_key + 1;
  result.ties = cut.here;
  result.ties_wanted = digits.wanted;
  result.tie_base = cut.team_here;
  if (result.ties > kMaxTies) {
    return settle_many_ties(a, at, team, keys, cut_key, shared, result);
  }
  return result;
}

// The key at the cut by two histograms over all keys. False: all keys come in.
PKV_APART inline bool find_cut_key(const BlockRow& at, const Team team, const uint16_t* keys,
                                   FusedScan& scan, DigitSum& digits) {
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const bool has_enough = digits.next(team, scan, [&] {
#pragma unroll 1
      for (int32_t i = thread_index(); i < at.length; i += kFusedThreads) {
        const uint32_t key = keys[i];
        if (key == 0 || (round == 1 && key >> 8 != digits.prefix)) continue;
        atomic_add(scan.histogram + (255U - (round == 0 ? key >> 8 : key & 0xffU)), 1U);
      }
    });
    if (!has_enough) return false;
  }
  return true;
}

// Without a window, or where it missed. All threads; keys are written.
template <int kDim>
PKV_APART Selection select_widely(const FusedArgs& a, const BlockRow& at, const Team team,
                                  uint16_t* keys, FusedShared<kDim>& shared) {
  DigitSum digits;
  digits.wanted = static_cast<uint32_t>(at.wanted);
  Selection result = {};
  if (!find_cut_key(at, team, keys, shared.scan, digits)) {
    result.key = result.sure = 1;
    result.slot_base = shared.scan.team_total;
    result.count = static_cast<int32_t>(shared.scan.total);
    return result;
  }
  return cut_selection(a, at, team, keys, digits.prefix, digits, shared);
}

// All threads, after the scan.
template <int kDim>
PKV_DEVICE Selection select_keys(const FusedArgs& a, const BlockRow& at, const Team& team,
                                 uint16_t* keys, FusedShared<kDim>& shared) {
  const auto wanted = static_cast<uint32_t>(at.wanted);
  Selection none = {};
  none.key = none.sure = kMostKey + 1;
  if (wanted == 0) {
    sync_block();  // keys are written
    return none;
  }
  const int32_t window = shared.scale.window;
  if (window != 0) {
    const int found = exchange_histogram<4>(team, shared.scan, wanted);
    const Cut& cut = shared.scan.cut;
    // Bin 0 has all that lies above the window.
    if (found > 0 && cut.bin > 0) {
      DigitSum digits;
      digits.wanted = wanted - cut.before;
      digits.before = cut.before;
      digits.team_before = cut.team_before;
      const auto key = static_cast<uint32_t>(window + kWindowBins - 1 - cut.bin);
      return cut_selection(a, at, team, keys, key, digits, shared);
    }
  } else {
    sync_block();  // keys are written
  }
  return select_widely(a, at, team, keys, shared);
}

}  // namespace pkv::cuda
