// The candidates of a row: its C largest votes, from 16-bit keys and exact votes where keys are
// equal at the cut. docs/algorithm.md, section 5. Exact; no slot by an atomic.
//  1. The window's histogram gives the key at the cut in one exchange. If it misses (or a count
//     overflows) two histograms over all keys do.
//  2. Keys that equal it and do not all come in are ties: a few are listed to the team, which
//     settles them later, while records travel; many go through four more histograms, of their
//     exact votes, and by position.
#pragma once

#include "backends/cuda/fused_vote.cuh"
#include "core/format/candidates.h"

namespace pkv::cuda {

struct Selection {
  uint32_t key;          // keys from here on are entries of the list
  uint32_t sure;         // keys from here on come in; those below are ties
  uint32_t ties;         // of the row
  uint32_t ties_wanted;  // that come in
  uint32_t tie_base;     // those of blocks before this one
  uint32_t slot_base;    // candidates of blocks before this one, ties apart
  int32_t count;         // candidates of the row
};

// Keys of the block in runs of each warp, in order. kind(key): 0 left out, 1 an entry, 2 a tie.
class OrderedKeys {
 public:
  PKV_DEVICE OrderedKeys(const uint16_t* keys, int32_t length) : keys_(keys) {
    const auto padded = static_cast<int32_t>(gpu::round_up(length, kUnitKeys));
    const auto run =
        static_cast<int32_t>(gpu::round_up((padded + kFusedWarps - 1) / kFusedWarps, kAtOnce * 32));
    const int32_t begin = run * LaneGroup<32>::index();
    begin_ = begin < padded ? begin : padded;
    end_ = padded - begin_ < run ? padded : begin_ + run;
  }

  // Entries of the block; of them ties in the high word. All threads.
  template <class Kind>
  PKV_DEVICE uint64_t count(uint64_t* room, const Kind& kind) {
    using Group = LaneGroup<32>;
    uint64_t mine = 0;
#pragma unroll 1
    for (int32_t i = begin_ + kAtOnce * Group::rank(); i < end_; i += kAtOnce * 32) {
      const Words<4> words = load_words<4>(keys_ + i);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) mine += weight(kind(key(words, j)));
    }
    mine = Group::sum(mine);
    sync_block();  // the room is free
    if (Group::rank() == 0) room[Group::index()] = mine;
    sync_block();
    uint64_t total = 0;
    before_ = 0;
#pragma unroll
    for (int warp = 0; warp < kFusedWarps; ++warp) {
      if (warp < Group::index()) before_ += room[warp];
      total += room[warp];
    }
    return total;
  }

  // visit(i, entry, tie) for each entry, `tie` -1 or its number; after count() with the same kinds.
  template <class Kind, class Visit>
  PKV_DEVICE void visit(const Kind& kind, const Visit& visit_entry) const {
    using Group = LaneGroup<32>;
    uint64_t before = before_;
#pragma unroll 1
    for (int32_t base = begin_; base < end_; base += kAtOnce * 32) {
      const int32_t first = base + kAtOnce * Group::rank();
      Words<4> words = {};
      if (first < end_) words = load_words<4>(keys_ + first);
      uint64_t mine = 0;
      uint32_t entries = 0;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int what = kind(key(words, j));
        mine += weight(what);
        if (what != 0) entries |= 1U << j;
      }
      if (!Group::any(entries != 0)) continue;
      uint64_t at = before + Group::sum_before(mine);
      before = Group::shuffle(at + mine, 31);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (((entries >> j) & 1U) == 0) continue;
        const int what = kind(key(words, j));
        visit_entry(first + j, static_cast<int32_t>(static_cast<uint32_t>(at)),
                    what == 2 ? static_cast<int32_t>(at >> 32) : -1);
        at += weight(what);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 8;
  PKV_DEVICE static uint32_t key(const Words<4>& words, int j) {
    return (words.word[j / 2] >> (16 * (j % 2))) & 0xffffU;
  }
  PKV_DEVICE static uint64_t weight(int kind) {
    return kind == 0 ? 0 : (kind == 1 ? 1 : (uint64_t{1} << 32) + 1);
  }

  const uint16_t* keys_;
  int32_t begin_;
  int32_t end_;
  uint64_t before_ = 0;
};

// A digit of 8 bits, from the top: adds to what the digits before have found.
struct DigitSum {
  uint32_t prefix = 0;
  int64_t wanted = 0;
  uint32_t before = 0;       // in all blocks, above the prefix
  uint32_t team_before = 0;  // in blocks before
  Cut cut = {};

  // `count_digits` adds to shared.histogram[255 - digit]. False: there are fewer than wanted.
  template <class Count>
  PKV_DEVICE bool next(Team& team, FusedScan& shared, const Count& count_digits) {
    sync_block();  // the histogram is empty
    count_digits();
    bool overflows = false;
    cut = exchange_histogram<1>(team, shared, wanted, &overflows);
    if (cut.bin < 0) return false;
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
PKV_APART void settle_many_ties(const FusedArgs& a, const BlockRow& at, Team& team, uint16_t* keys,
                                uint32_t cut_key, FusedShared<kDim>& shared, Selection& selection) {
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
  const int64_t equal_before = digits.cut.team_here;
  int64_t quota = digits.wanted - equal_before;
  quota = quota < 0 ? 0 : quota;
  each_tie([&](int32_t i, uint32_t order) {
    if (order != digits.prefix) keys[i] = order > digits.prefix ? cut_key + 1 : 0;
  });
  sync_block();
  OrderedKeys ordered(keys, at.length);
  const auto kind = [cut_key](uint32_t key) { return key == cut_key ? 1 : 0; };
  ordered.count(shared.scan.sums, kind);
  ordered.visit(
      kind, [&](int32_t i, int32_t entry, int32_t) { keys[i] = entry < quota ? cut_key + 1 : 0; });
  sync_block();
  selection.slot_base +=
      digits.team_before +
      static_cast<uint32_t>(equal_before < digits.wanted ? equal_before : digits.wanted);
  selection.key = selection.sure = cut_key + 1;
  selection.ties = selection.tie_base = 0;
}

// The key at the cut by two histograms over all keys. False: all keys come in.
PKV_APART inline bool find_cut_key(const BlockRow& at, Team& team, const uint16_t* keys,
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

// All threads, after the scan.
template <int kDim>
PKV_DEVICE Selection select_keys(const FusedArgs& a, const BlockRow& at, Team& team, uint16_t* keys,
                                 FusedShared<kDim>& shared) {
  FusedScan& scan = shared.scan;
  const KeyScale scale = shared.scale;
  DigitSum digits;
  digits.wanted = format::candidate_count(a.rule, at.n);
  uint32_t cut_key = 0;
  bool is_found = false;
  if (scale.window != 0) {
    bool overflows = false;
    const Cut cut = exchange_histogram<4>(team, scan, digits.wanted, &overflows);
    // Bin 0 has all that lies above the window.
    if (cut.bin > 0 && !overflows) {
      is_found = true;
      cut_key = static_cast<uint32_t>(scale.window + kWindowBins - 1 - cut.bin);
      digits.cut = cut;
      digits.wanted -= cut.before;
      digits.before = cut.before;
      digits.team_before = cut.team_before;
    }
  } else {
    sync_block();  // keys are written
  }
  Selection result = {};
  if (digits.wanted + digits.before == 0) {
    result.key = result.sure = kMostKey + 1;  // none
    return result;
  }
  if (!is_found) {
    if (!find_cut_key(at, team, keys, scan, digits)) {
      result.key = result.sure = 1;
      result.slot_base = digits.cut.team_total;
      result.count = static_cast<int32_t>(digits.cut.total);
      return result;
    }
    cut_key = digits.prefix;
  }
  result.key = cut_key;
  result.count = static_cast<int32_t>(digits.before + digits.wanted);
  result.slot_base = digits.team_before;
  if (digits.wanted == digits.cut.here) {
    result.sure = cut_key;
    result.slot_base += digits.cut.team_here;
    return result;
  }
  result.sure = cut_key + 1;
  result.ties = digits.cut.here;
  result.ties_wanted = static_cast<uint32_t>(digits.wanted);
  result.tie_base = digits.cut.team_here;
  if (result.ties > kMaxTies) settle_many_ties(a, at, team, keys, cut_key, shared, result);
  return result;
}

}  // namespace pkv::cuda
