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

// Keys of the block in order: entries are those from `low` up, ties those of them below `high`. A
// warp has a run of them, in pieces of which each lane has neighbouring keys.
class OrderedKeys {
 public:
  PKV_DEVICE OrderedKeys(const uint16_t* keys, int32_t length, uint32_t low, uint32_t high)
      : keys_(keys), low_(low << 16 | low), high_(high << 16 | high) {
    const auto padded = static_cast<int32_t>(gpu::round_up(length, kUnitKeys));
    const auto run =
        static_cast<int32_t>(gpu::round_up((padded + kFusedWarps - 1) / kFusedWarps, kAtOnce * 32));
    const int32_t begin = run * Group::index();
    begin_ = begin < padded ? begin : padded;
    end_ = padded - begin_ < run ? padded : begin_ + run;
  }

  // Of the block. All threads.
  PKV_DEVICE KeyCounts count(uint64_t* room) {
    uint32_t entries = 0;
    uint32_t ties = 0;
#pragma unroll 1
    for (int32_t piece = begin_; piece < end_; piece += kPiece) {
      last_ = find(piece);
      const uint32_t counts = last_.counts();
      entries += counts & kEntryMask;
      ties += counts >> kTieShift;
    }
    entries = Group::sum(entries);
    ties = Group::sum(ties);
    sync_block();  // the room is free
    if (Group::rank() == 0) room[Group::index()] = uint64_t{ties} << 32 | entries;
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
    KeyCounts before = before_;
#pragma unroll 1
    for (int32_t piece = begin_; piece < end_; piece += kPiece) {
      Found found = last_;
      if (end_ - begin_ > kPiece) found = find(piece);
      const uint32_t mine = found.counts();
      const uint32_t lower = Group::sum_before(mine);
      const uint32_t all = Group::shuffle(lower + mine, 31);
      uint32_t entry = before.entries + (lower & kEntryMask);
      uint32_t tie = before.ties + (lower >> kTieShift);
      before.entries += all & kEntryMask;
      before.ties += all >> kTieShift;
      int32_t first = piece + Group::rank() * kAtOnce * loads(piece);
#pragma unroll 1
      while ((found.entries[0] | found.entries[1]) != 0) {
        if (found.entries[0] == 0) {
          found = {{found.entries[1], 0}, {found.ties[1], 0}};
          first += 64;
        }
        const int j = __ffsll(static_cast<long long>(found.entries[0])) - 1;
        const bool is_tie = ((found.ties[0] >> j) & 1U) != 0;
        visit_entry(first + j, static_cast<int32_t>(entry),
                    is_tie ? static_cast<int32_t>(tie) : -1);
        ++entry;
        if (is_tie) ++tie;
        found.entries[0] &= found.entries[0] - 1;
      }
    }
  }

 private:
  using Group = LaneGroup<32>;
  static constexpr int kAtOnce = 8;  // keys of a load
  static constexpr int kLoads = 16;  // of a lane and a piece at most
  static constexpr int32_t kPiece = 32 * kAtOnce * kLoads;
  static constexpr int kTieShift = 16;  // of counts: entries, and from this bit on ties
  static constexpr uint32_t kEntryMask = (1U << kTieShift) - 1;

  // A lane's keys of a piece, a bit each.
  struct Found {
    uint64_t entries[2];
    uint64_t ties[2];
    PKV_DEVICE uint32_t counts() const {
      return static_cast<uint32_t>(__popcll(entries[0]) + __popcll(entries[1]) +
                                   ((__popcll(ties[0]) + __popcll(ties[1])) << kTieShift));
    }
  };

  // Loads of each lane.
  PKV_DEVICE int32_t loads(int32_t piece) const {
    const int32_t left = end_ - piece;
    return ((left < kPiece ? left : kPiece) + 32 * kAtOnce - 1) / (32 * kAtOnce);
  }

  PKV_DEVICE Found find(int32_t piece) const {
    Found found = {};
    const int32_t all = loads(piece);
    const int32_t first = piece + Group::rank() * kAtOnce * all;
    // Lanes begin with different ones of their loads, so that they meet different banks.
    int32_t load =
        static_cast<int32_t>(static_cast<uint32_t>(Group::rank()) % static_cast<uint32_t>(all));
#pragma unroll 1
    for (int32_t i = 0; i < all; ++i) {
      const int32_t at = first + kAtOnce * load;
      if (at < end_) {
        const Words<4> words = load_words<4>(keys_ + at);
        const uint64_t entries = at_least(words, low_);
        const int shift = kAtOnce * (load % 8);
        const bool is_upper = load >= 8;
        found.entries[0] |= is_upper ? 0 : entries << shift;
        found.entries[1] |= is_upper ? entries << shift : 0;
        if (low_ != high_) {
          const uint64_t ties = entries & ~at_least(words, high_);
          found.ties[0] |= is_upper ? 0 : ties << shift;
          found.ties[1] |= is_upper ? ties << shift : 0;
        }
      }
      load = load + 1 == all ? 0 : load + 1;
    }
    return found;
  }

  // Bit j: key j of eight is at least those of `least`, two to a word.
  PKV_DEVICE static uint64_t at_least(const Words<4>& words, uint32_t least) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce / 2; ++i) {
      bool high = false;
      bool low = false;
      (void)__vibmax_u16x2(words.word[i], least, &high, &low);
      if (low) bits |= 1U << (2 * i);
      if (high) bits |= 2U << (2 * i);
    }
    return bits;
  }

  const uint16_t* keys_;
  uint32_t low_;
  uint32_t high_;
  int32_t begin_;
  int32_t end_;
  KeyCounts before_ = {};
  Found last_ = {};
};

// A digit of 8 bits, from the top: adds to what the digits before have found.
struct DigitSum {
  uint32_t prefix = 0;
  uint32_t wanted = 0;
  uint32_t before = 0;       // in all blocks, above the prefix
  uint32_t team_before = 0;  // in blocks before

  // `count_digits` adds to shared.histogram[255 - digit]. False: there are fewer than wanted.
  template <int kDim, class Count>
  PKV_DEVICE bool next(FusedScan& shared, const Count& count_digits) {
    count_digits();
    if (exchange_histogram<1, kDim>(wanted) <= 0) return false;
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
PKV_APART Selection settle_many_ties(const FusedArgs& a, const BlockRow& at, uint16_t* keys,
                                     uint32_t cut_key, FusedShared<kDim>& shared,
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
    digits.next<kDim>(shared.scan, [&] {
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
PKV_DEVICE Selection cut_selection(const FusedArgs& a, const BlockRow& at, uint16_t* keys,
                                   uint32_t cut_key, const DigitSum& digits,
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
    return settle_many_ties(a, at, keys, cut_key, shared, result);
  }
  return result;
}

// The key at the cut by two histograms over all keys. False: all keys come in.
template <int kDim>
PKV_APART bool find_cut_key(const BlockRow& at, const uint16_t* keys, FusedScan& scan,
                            DigitSum& digits) {
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const bool has_enough = digits.next<kDim>(scan, [&] {
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
PKV_APART Selection select_widely(const FusedArgs& a, const BlockRow& at, uint16_t* keys,
                                  FusedShared<kDim>& shared) {
  DigitSum digits;
  digits.wanted = static_cast<uint32_t>(at.wanted);
  Selection result = {};
  if (!find_cut_key<kDim>(at, keys, shared.scan, digits)) {
    result.key = result.sure = 1;
    result.slot_base = shared.scan.team_total;
    result.count = static_cast<int32_t>(shared.scan.total);
    return result;
  }
  return cut_selection(a, at, keys, digits.prefix, digits, shared);
}

// All threads, after the scan.
template <int kDim>
PKV_DEVICE Selection select_keys(const FusedArgs& a, const BlockRow& at, uint16_t* keys,
                                 FusedShared<kDim>& shared) {
  const auto wanted = static_cast<uint32_t>(at.wanted);
  Selection none = {};
  none.key = none.sure = kMostKey + 1;
  if (wanted == 0) {
    sync_block();  // keys are written
    return none;
  }
  const int32_t window = shared.scale.window;
  if (window != 0) {
    const int found = exchange_histogram<4, kDim>(wanted);
    const Cut& cut = shared.scan.cut;
    // Bin 0 has all that lies above the window.
    if (found > 0 && cut.bin > 0) {
      DigitSum digits;
      digits.wanted = wanted - cut.before;
      digits.before = cut.before;
      digits.team_before = cut.team_before;
      const auto key = static_cast<uint32_t>(window + kWindowBins - 1 - cut.bin);
      return cut_selection(a, at, keys, key, digits, shared);
    }
  } else {
    sync_block();  // keys are written
  }
  return select_widely(a, at, keys, shared);
}

}  // namespace pkv::cuda
