// Words that the blocks of a team pass to each other. A word carries its own proof that it is
// there: a tag above a payload of 48 bits, in memory that every launch first clears, so that a
// hand-over costs one store and one load, without barriers and fences.
// Words are cleared before the grid's barrier is reached, whose far side is awaited only before the
// first word is posted: the scan lies in between.
#pragma once

#include <cooperative_groups.h>

#include "backends/cuda/fused_shared.cuh"

namespace pkv::cuda {

inline constexpr int kTagShift = 48;
inline constexpr int kTagsPerRow = 16;  // histograms of one row at most

// A block's view of its team.
struct Team {
  uint64_t* words;  // of the team's first block
  uint64_t* ties;
  uint64_t* hits;
  int32_t block_words;
  int32_t size;
  int32_t rank;
  uint32_t round;      // of rows that the team has served
  uint32_t histogram;  // how many this row has passed round

  PKV_DEVICE uint64_t tag() const { return uint64_t{round + 1} << kTagShift; }
  PKV_DEVICE uint64_t* own(int offset) const {
    return words + int64_t{rank} * block_words + offset;
  }
  PKV_DEVICE const uint64_t* of(int block, int offset) const {
    return words + int64_t{block} * block_words + offset;
  }
};

PKV_DEVICE uint64_t payload(uint64_t word) { return word & ((uint64_t{1} << kTagShift) - 1); }

PKV_DEVICE void post(uint64_t* at, uint64_t tag, uint64_t value) { post_word(at, tag | value); }
PKV_DEVICE void post(uint64_t* at, uint64_t tag, float value) {
  post_word(at, tag | std::bit_cast<uint32_t>(value));
}
PKV_DEVICE uint64_t await(const uint64_t* at, uint64_t tag) {
#pragma unroll 1
  for (;;) {
    const uint64_t word = read_word(at);
    if (((word ^ tag) >> kTagShift) == 0) return payload(word);
    spin_pause();
  }
}
PKV_DEVICE float await_float(const uint64_t* at, uint64_t tag) {
  return std::bit_cast<float>(static_cast<uint32_t>(await(at, tag)));
}

// The same word of every block of the team, all loads under way at once.
PKV_DEVICE void await_team(const Team& team, int offset, uint64_t tag,
                           uint64_t (&out)[kFusedTeam]) {
  bool is_there = false;
  while (!is_there) {
    is_there = true;
#pragma unroll
    for (int c = 0; c < kFusedTeam; ++c) {
      out[c] = c < team.size ? read_word(team.of(c, offset)) : tag;
    }
#pragma unroll
    for (int c = 0; c < kFusedTeam; ++c) {
      is_there = is_there && ((out[c] ^ tag) >> kTagShift) == 0;
      out[c] = payload(out[c]);
    }
  }
}

// Clears a block's and the team's words, between launches' barriers. All threads.
PKV_DEVICE void clear_mailbox(const Mailbox& box, int32_t team, int64_t block) {
  const Words<4> zero = {};
  auto* own = box.words + block * box.block_words;
#pragma unroll 1
  for (int i = 2 * thread_index(); i < box.block_words; i += 2 * kFusedThreads) {
    store_words(own + i, zero);
  }
  auto* list = box.lists + block / team * box.list_words;
  const auto rank = static_cast<int>(block % team);
#pragma unroll 1
  for (int i = 2 * (rank * kFusedThreads + thread_index()); i < box.list_words;
       i += 2 * team * kFusedThreads) {
    store_words(list + i, zero);
  }
}

// The next histogram begins empty. All threads; no sync.
PKV_DEVICE void clear_histogram(FusedScan& shared) {
#pragma unroll 1
  for (int i = thread_index(); i < kWindowBins; i += kFusedThreads) shared.histogram[i] = 0;
  if (thread_index() != 0) return;
  shared.cut.bin = -1;
  shared.overflows = 0;
}

// Counts of the bins of `shared.histogram`, first bins first, from all blocks: the cut of the
// wanted-th. kPacked counts to a word: 4 of 12 bits, of which the largest says "at least", or one.
// `overflows`: a count did not fit. All threads; the histogram is cleared afterwards, which a sync
// of the block must follow before it is used.
template <int kPacked>
PKV_APART Cut exchange_histogram(Team& team, FusedScan& shared, int64_t wanted, bool* overflows) {
  constexpr int kReaders = 128;
  constexpr int kBins = kPacked == 4 ? kWindowBins : 256;
  constexpr int kPer = kBins / kReaders;  // bins of a reader
  constexpr int kWordsPer = kPer / kPacked;
  constexpr uint64_t kMost = 4095;
  const int offset = static_cast<int>(team.histogram % 2) * kHistogramWords;
  const uint64_t tag = uint64_t{team.round * kTagsPerRow + team.histogram + 1} << kTagShift;
  ++team.histogram;
  const int t = thread_index();
  sync_block();  // counted
  uint32_t own[kPer] = {};
  if (t < kReaders) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) own[i] = shared.histogram[kPer * t + i];
#pragma unroll
    for (int word = 0; word < kWordsPer; ++word) {
      uint64_t value = 0;
      if constexpr (kPacked == 1) {
        value = own[word];
      } else {
#pragma unroll
        for (int i = 0; i < kPacked; ++i) {
          value |= uint64_t{own[i] < kMost ? own[i] : kMost} << (12 * i);
        }
      }
      post(team.own(offset + kWordsPer * t + word), tag, value);
    }
  }
  uint32_t all[kPer] = {};
  uint32_t prior[kPer] = {};
  bool is_over = false;
  if (t < kReaders) {
#pragma unroll
    for (int word = 0; word < kWordsPer; ++word) {
      uint64_t words[kFusedTeam];
      await_team(team, offset + kWordsPer * t + word, tag, words);
#pragma unroll
      for (int c = 0; c < kFusedTeam; ++c) {
#pragma unroll
        for (int i = 0; i < kPacked; ++i) {
          uint32_t count = 0;
          if constexpr (kPacked == 1) {
            count = static_cast<uint32_t>(words[c]);
          } else {
            count = static_cast<uint32_t>(words[c] >> (12 * i)) & 4095U;
            is_over = is_over || count == kMost;
          }
          all[kPacked * word + i] += count;
          if (c < team.rank) prior[kPacked * word + i] += count;
        }
      }
    }
  }
  uint32_t sum = 0;
  uint32_t prior_sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    sum += all[i];
    prior_sum += prior[i];
  }
  using Group = LaneGroup<32>;
  const uint64_t mine = uint64_t{sum} << 32 | prior_sum;
  const uint64_t in_warp = Group::sum_before(mine);
  if (t < kReaders && Group::rank() == 31) shared.sums[Group::index()] = in_warp + mine;
  if (is_over) atomic_or(&shared.overflows, 1U);
  sync_block();
  uint64_t before = in_warp;
  uint64_t total = 0;
#pragma unroll
  for (int warp = 0; warp < kReaders / 32; ++warp) {
    if (warp < Group::index()) before += shared.sums[warp];
    total += shared.sums[warp];
  }
  auto first = static_cast<uint32_t>(before >> 32);
  if (t < kReaders && wanted > first && wanted <= int64_t{first} + sum) {
    auto prior_first = static_cast<uint32_t>(before);
    Cut cut = {-1, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (cut.bin < 0 && wanted <= int64_t{first} + all[i]) {
        cut = {kPer * t + i, first, all[i], prior_first, prior[i], own[i], 0, 0};
      }
      first += all[i];
      prior_first += prior[i];
    }
    shared.cut = cut;
  }
  sync_block();
  Cut cut = shared.cut;
  cut.total = static_cast<uint32_t>(total >> 32);
  cut.team_total = static_cast<uint32_t>(total);
  *overflows = shared.overflows != 0;
  sync_block();  // all have read
  clear_histogram(shared);
  return cut;
}

}  // namespace pkv::cuda
