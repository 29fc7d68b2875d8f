// Words that the blocks of a team pass to each other. A word carries its own proof that it is
// there: a tag above a payload of 48 bits, in memory that every launch first clears, so that a
// hand-over costs one store and one load, without barriers and fences.
// Words are cleared before the grid's barrier is reached, whose far side is awaited only before the
// first word is posted: the scan lies in between.
#pragma once

#include "backends/cuda/fused_shared.cuh"

namespace pkv::cuda {

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
// Neighbouring words, all loads under way at once.
template <int kCount>
PKV_DEVICE void await_words(const uint64_t* at, uint64_t tag, uint64_t (&out)[kCount]) {
  uint32_t difference = 0;
  do {
    difference = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = read_word(at + i);
#pragma unroll
    for (int i = 0; i < kCount; ++i) difference |= static_cast<uint32_t>((out[i] ^ tag) >> 32);
  } while (difference >> (kTagShift - 32) != 0);
}
PKV_DEVICE float await_float(const uint64_t* at, uint64_t tag) {
  return std::bit_cast<float>(static_cast<uint32_t>(await(at, tag)));
}

// The same word of every block of the team, with its tag, all loads under way at once; the bare tag
// of blocks that there are not.
PKV_DEVICE void await_team(const Team& team, int offset, uint64_t tag,
                           uint64_t (&out)[kFusedTeam]) {
  const int32_t size = team.size;
  const int32_t step = team.block_words;
  uint32_t difference = 0;
  do {
    difference = 0;
    const uint64_t* from = team.of(0, offset);
#pragma unroll
    for (int c = 0; c < kFusedTeam; ++c) {
      out[c] = c < size ? read_word(from) : tag;
      from += step;
    }
#pragma unroll
    for (int c = 0; c < kFusedTeam; ++c) difference |= static_cast<uint32_t>((out[c] ^ tag) >> 32);
  } while (difference >> (kTagShift - 32) != 0);
}

// Clears the block's and its share of the team's words, between launches' barriers. All threads.
PKV_DEVICE void clear_mailbox(const Mailbox& box, const Team& team) {
  const Words<4> zero = {};
  auto* own = team.own(0);
#pragma unroll 1
  for (int i = 2 * thread_index(); i < box.block_words; i += 2 * kFusedThreads) {
    store_words(own + i, zero);
  }
  auto* list = team.ties;
#pragma unroll 1
  for (int i = 2 * (team.rank * kFusedThreads + thread_index()); i < box.list_words;
       i += 2 * team.size * kFusedThreads) {
    store_words(list + i, zero);
  }
}

// How the counts of kPacked bins lie in a word: fields of 11 bits, and a bit that says that one of
// them did not fit; of one bin, 32 bits. Sums over a team's words have room between the fields.
template <int kPacked>
struct PackedCounts {
  static constexpr int kBits = 11;
  static constexpr uint32_t kMost = (1U << kBits) - 1;
  static constexpr uint64_t kOverflow = uint64_t{1} << (kTagShift - 1);
  static constexpr uint64_t kFields = kMost | uint64_t{kMost} << (2 * kBits);
  uint64_t even = 0;  // fields 0 and 2
  uint64_t odd = 0;   // fields 1 and 3

  PKV_DEVICE static uint64_t pack(const uint32_t* counts) {
    if constexpr (kPacked == 1) return counts[0];
    uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < kPacked; ++i) {
      word |= counts[i] <= kMost ? uint64_t{counts[i]} << (kBits * i) : kOverflow;
    }
    return word;
  }
  PKV_DEVICE void add(uint64_t word, bool counts) {
    if constexpr (kPacked == 1) {
      even += counts ? static_cast<uint32_t>(word) : 0U;
    } else {
      even += counts ? word & kFields : 0U;
      odd += counts ? (word >> kBits) & kFields : 0U;
    }
  }
  PKV_DEVICE uint32_t count(int i) const {
    if constexpr (kPacked == 1) return static_cast<uint32_t>(even);
    const uint64_t fields = i % 2 == 0 ? even : odd;
    return static_cast<uint32_t>(fields >> (2 * kBits * (i / 2))) & ((1U << (2 * kBits)) - 1);
  }
};

// Counts of the bins of shared.histogram, first bins first, from all blocks; what the wanted-th
// lies in becomes shared.cut, and the histogram is empty again. kPacked counts to a word. 0: there
// are fewer; -1: a count did not fit. All threads, alike.
template <int kPacked, int kDim>
PKV_APART int exchange_histogram(uint32_t wanted) {
  const Team& team = fused_shared<kDim>().team;
  FusedScan& shared = fused_shared<kDim>().scan;
  using Counts = PackedCounts<kPacked>;
  constexpr int kReaders = 128;
  constexpr int kBins = kPacked == 4 ? kWindowBins : 256;
  constexpr int kPer = kBins / kReaders;  // bins of a reader
  constexpr int kWordsPer = kPer / kPacked;
  using Group = LaneGroup<32>;
  const int t = thread_index();
  sync_block();  // counted
  const uint32_t number = shared.exchanges;
  const int offset = static_cast<int>(number % 2) * kHistogramWords + kWordsPer * t;
  const uint64_t tag = uint64_t{team.round * kTagsPerRow + number + 1} << kTagShift;
  uint32_t own[kPer] = {};
  Counts all[kWordsPer] = {};
  Counts prior[kWordsPer] = {};
  uint32_t sum = 0;
  uint32_t prior_sum = 0;
  bool is_over = false;
  if (t < kReaders) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      own[i] = shared.histogram[kPer * t + i];
      shared.histogram[kPer * t + i] = 0;
    }
#pragma unroll
    for (int word = 0; word < kWordsPer; ++word) {
      post(team.own(offset + word), tag, Counts::pack(own + kPacked * word));
    }
    uint64_t flags = 0;
#pragma unroll
    for (int word = 0; word < kWordsPer; ++word) {
      uint64_t words[kFusedTeam];
      await_team(team, offset + word, tag, words);
#pragma unroll
      for (int c = 0; c < kFusedTeam; ++c) {
        all[word].add(words[c], true);
        prior[word].add(words[c], c < team.rank);
        flags |= words[c];
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      sum += all[i / kPacked].count(i % kPacked);
      prior_sum += prior[i / kPacked].count(i % kPacked);
    }
    is_over = kPacked != 1 && (flags & Counts::kOverflow) != 0;
    const uint64_t mine = uint64_t{sum} << 32 | prior_sum;
    const uint64_t in_warp = Group::sum_before(mine);
    if (Group::rank() == 31) shared.sums[Group::index()] = in_warp + mine;
    sum = static_cast<uint32_t>(in_warp >> 32);  // from here on: what lies before
    prior_sum = static_cast<uint32_t>(in_warp);
  }
  const int overflows = __syncthreads_or(is_over ? 1 : 0);
  uint64_t total = 0;
#pragma unroll
  for (int warp = 0; warp < kReaders / 32; ++warp) {
    if (warp < Group::index()) {
      sum += static_cast<uint32_t>(shared.sums[warp] >> 32);
      prior_sum += static_cast<uint32_t>(shared.sums[warp]);
    }
    total += shared.sums[warp];
  }
  if (t == 0) {
    shared.exchanges = number + 1;
    shared.total = static_cast<uint32_t>(total >> 32);
    shared.team_total = static_cast<uint32_t>(total);
  }
  if (t < kReaders) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const uint32_t here = all[i / kPacked].count(i % kPacked);
      const uint32_t team_here = prior[i / kPacked].count(i % kPacked);
      if (wanted > sum && wanted <= sum + here) {
        shared.cut = {kPer * t + i, sum, here, prior_sum, team_here};
      }
      sum += here;
      prior_sum += team_here;
    }
  }
  sync_block();
  if (overflows != 0) return -1;
  return wanted >= 1 && wanted <= static_cast<uint32_t>(total >> 32) ? 1 : 0;
}

}  // namespace pkv::cuda
