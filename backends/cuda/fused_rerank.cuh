// The block's candidates and samples, their estimates by 8-bit matrix units, and the warps' sums of
// their exponentials. docs/algorithm.md, sections 6.1, 6.2 and 6.4.
// A key is a row of A, decoded as levels.cuh does it: lane t of four has the 32 dims of chunk t. A
// head is two columns of B, its high and its low bytes. Dims stand in the order of estimate.cuh.
// Traffic per candidate, d = 128: 80 B gathered.
// Exact: the estimates. Bounded: the sums; each in one order.
#pragma once

#include "backends/cuda/fused_select.cuh"
#include "backends/gpu/logit.cuh"
#include "backends/gpu/tail.cuh"

namespace pkv::cuda {

// A word of the list: the key's place in the block's range, and flags.
inline constexpr uint32_t kTieFlag = 1U << 31;
inline constexpr uint32_t kHitFlag = 1U << 30;  // may be a hit
inline constexpr uint32_t kPlaceMask = kHitFlag - 1;
inline constexpr uint32_t kGone = kTieFlag | kPlaceMask;  // a tie that did not come in
// Of a sample: whether it is a candidate, or as a tie may become one.
inline constexpr uint32_t kSampleTaken = kHitFlag;

// Of all lanes, for each of them.
PKV_DEVICE LogSum sum_lanes(const LogSum& mine) {
  using Group = LaneGroup<32>;
  const float most = Group::max(mine.max);
  return {most, Group::sum(mine.sum == 0.0F ? 0.0F : mine.sum * fexp(mine.max - most))};
}

// The list of entries and samples, into shared.entries, then the ties to the team. All threads;
// keys are free behind it.
template <int kDim>
PKV_DEVICE void list_entries(const FusedArgs& a, const BlockRow& at, const Team& team,
                             const Selection& selection, const uint16_t* keys, unsigned char* arena,
                             FusedShared<kDim>& shared) {
  OrderedKeys ordered(keys, at.length, selection.key, selection.sure);
  const KeyCounts total = ordered.count(shared.scan.sums);
  Entries e{};
  e.count = static_cast<int32_t>(total.entries);
  e.samples = reinterpret_cast<uint32_t*>(arena + a.arena.sample_state);
  e.sample_estimates = reinterpret_cast<float*>(arena + a.arena.samples);
  if (e.count <= a.arena.capacity) {
    e.list = reinterpret_cast<uint32_t*>(arena + a.arena.list);
    e.estimates = reinterpret_cast<float*>(arena + a.arena.estimates);
    e.scores = reinterpret_cast<float*>(arena + a.arena.scores);
  } else {
    const int64_t first = at.row * a.spill.entries + selection.slot_base + selection.tie_base;
    e.list = a.spill.lists + first;
    e.estimates = a.spill.estimates + first * a.group;
    e.scores = a.spill.scores + first;
  }
  ordered.visit([&](int32_t i, int32_t entry, int32_t tie) {
    e.list[entry] = static_cast<uint32_t>(i) | (tie >= 0 ? kTieFlag : 0U);
    if (tie >= 0) shared.tie_entry[tie] = entry;
  });
  e.first_sample = at.first_sample;
  e.sample_count = at.sample_count;
#pragma unroll 1
  for (int32_t s = thread_index(); s < e.sample_count; s += kFusedThreads) {
    const auto i =
        static_cast<uint32_t>(sample_position(at.samples, e.first_sample + s) - at.begin);
    const uint32_t key = keys[i];
    e.samples[s] =
        i | (key >= selection.sure ? kSampleTaken : (key >= selection.key ? kTieFlag : 0U));
  }
  const auto own_ties = static_cast<int32_t>(total.ties);
  if (thread_index() == 0) {
    shared.selection = selection;
    shared.entries = e;
    shared.own_ties = own_ties;
    shared.own_chosen = 0;
    shared.dropped_count = 0;
  }
  sync_block();  // the list is written, keys are read
#pragma unroll 1
  for (int32_t t = thread_index(); t < own_ties; t += kFusedThreads) {
    const uint32_t place = e.list[shared.tie_entry[t]] & kPlaceMask;
    const uint32_t order = order_key(vote_of_key(a, at, at.begin + place, shared));
    post(team.ties + selection.tie_base + t, team.tag(), uint64_t{order});
  }
}

PKV_DEVICE void multiply_bytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One key's part of a lane: chunks t, t + 4.
template <int kDim>
struct KeyChunks {
  static constexpr int kChunks = kDim / 32;
  static constexpr int kRounds = (kChunks + 3) / 4;
  Words<4> codes[kRounds];
  uint32_t signs[kRounds];

  PKV_DEVICE void load(const FusedArgs& a, const BlockRow& at, int64_t position, bool is_there) {
    const int t = LaneGroup<32>::rank() % 4;
    const KeySlot slot = key_slot(a.store, at.records, position);
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int chunk = t + 4 * round;
      codes[round] = {};
      signs[round] = 0;
      if (!is_there || chunk >= kChunks) continue;
      codes[round] = load_words<4>(slot.record() + gpu::kChunkBytes * chunk);
      signs[round] = load_words<1>(slot.signs() + 4 * chunk).word[0];
    }
  }
};

// B of a tile of four heads: column 2 h + part of lane g = column.
template <int kDim>
struct HeadTile {
  static constexpr int kRounds = KeyChunks<kDim>::kRounds;
  uint32_t b[8 * kRounds];
  HeadTerms terms;  // of head t of the tile
  bool is_there;    // that head

  PKV_DEVICE HeadTile(const FusedShared<kDim>& shared, int32_t first, int32_t group) {
    constexpr int kChunks = kDim / 32;
    const int lane = LaneGroup<32>::rank();
    const int t = lane % 4;
    const int head = first + lane / 8;
    const int part = lane / 4 % 2;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int chunk = t + 4 * round;
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        Words<4> words = {};
        if (head < group && chunk < kChunks) {
          words = load_words<4>(&shared.words[head][((v + 2 * part) * kChunks + chunk) * 4]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) b[8 * round + 4 * v + e] = words.word[e];
      }
    }
    is_there = first + t < group;
    terms = shared.terms[is_there ? first + t : 0];
  }

  // The estimates of head t for rows g and g + 8, with the factors w of both.
  PKV_DEVICE void estimate(const uint32_t (&y)[2][8 * kRounds], const float (&w)[2],
                           float (&out)[2]) const {
    int32_t c[4] = {};
#pragma unroll
    for (int i = 0; i < 4 * kRounds; ++i) {
      const uint32_t rows[4] = {y[0][2 * i], y[1][2 * i], y[0][2 * i + 1], y[1][2 * i + 1]};
      multiply_bytes(c, rows, b[2 * i], b[2 * i + 1]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Intermediate sums may wrap, the product fits.
      const uint32_t dot =
          2U * (256U * static_cast<uint32_t>(c[2 * r]) + static_cast<uint32_t>(c[2 * r + 1])) +
          static_cast<uint32_t>(terms.sum);
      const auto product = static_cast<float>(static_cast<int32_t>(dot));
      out[r] = limited(fadd_rn(fmul_rn(fmul_rn(product, w[r]), terms.unit), terms.bias));
    }
  }
};

// All threads; behind it shared.warp_sums has the candidates' sums but for ties.
template <int kDim, int kTiles>
PKV_DEVICE void estimate_entries(const FusedArgs& a, const BlockRow& at, const Entries& e,
                                 FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  using Chunks = KeyChunks<kDim>;
  constexpr int kRows = 16;
  const int g = Group::rank() / 4;
  const int t = Group::rank() % 4;
  const HeadTile<kDim> tile0(shared, 0, a.group);
  const HeadTile<kDim> tile1(shared, 4 * (kTiles - 1), a.group);
  LogSum sums[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) sums[i] = LogSum::nothing();
  const int32_t total = e.count + e.sample_count;
  constexpr int kStep = kRows * kFusedWarps;
  Chunks next[2];
  uint32_t next_words[2];
  const auto load_next = [&](int32_t first) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = first + g + 8 * r;
      const bool is_there = i < total;
      next_words[r] = 0;
      if (is_there) next_words[r] = i < e.count ? e.list[i] : e.samples[i - e.count];
      next[r].load(a, at, at.begin + (next_words[r] & kPlaceMask), is_there);
    }
  };
  int32_t row = kRows * Group::index();
  if (row < total) load_next(row);
    // The next keys' loads are under way while these are multiplied.
#pragma unroll 1
  for (; row < total; row += kStep) {
    Chunks chunks[2];
    uint32_t words[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      chunks[r] = next[r];
      words[r] = next_words[r];
    }
    if (row + kStep < total) load_next(row + kStep);
    uint32_t y[2][8 * Chunks::kRounds];
    float w[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int round = 0; round < Chunks::kRounds; ++round) {
        decode_scalar<PKV_CODEC_SCALAR4>(chunks[r].codes[round].word, chunks[r].signs[round],
                                         y[r] + 8 * round);
        if (t + 4 * round < Chunks::kChunks) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) y[r][8 * round + i] = 0;
      }
      const uint32_t factor = Group::shuffle(chunks[r].codes[0].word[3], Group::rank() & ~3);
      w[r] = format::bf16_to_float(static_cast<uint16_t>(factor));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const HeadTile<kDim>& heads = tile == 0 ? tile0 : tile1;
      float est[2];
      heads.estimate(y, w, est);
      if (!heads.is_there) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t i = row + g + 8 * r;
        if (i < e.count) {
          e.estimates[i * a.group + 4 * tile + t] = est[r];
          if ((words[r] & kTieFlag) == 0) sums[tile].add(a.logit(est[r]));
        } else if (i < total) {
          // A bad key's factors are NaN.
          e.sample_estimates[(i - e.count) * a.group + 4 * tile + t] =
              w[r] != w[r] ? quiet_nan() : est[r];
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2) {
      const LogSum other = {Group::shuffle_xor(sums[tile].max, bits),
                            Group::shuffle_xor(sums[tile].sum, bits)};
      sums[tile] = both(sums[tile], other);
    }
    if (g == 0) shared.warp_sums[Group::index()][4 * tile + t] = sums[tile];
  }
  sync_block();
}

}  // namespace pkv::cuda
