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

// Where the record and the signs of a key lie.
template <int kDim>
struct RecordPlace {
  const std::byte* record;
  const std::byte* signs;

  // `area`: of records in Layout; positions are below 2^31.
  PKV_DEVICE RecordPlace(int64_t area, const format::StoreRow& records, int64_t position) {
    const auto at = static_cast<uint32_t>(position);
    const std::byte* piece = records.piece(at);
    const uint64_t local = at & static_cast<uint32_t>(records.mask);
    record = piece + area + local * (kDim / gpu::kChunkDims * gpu::kChunkBytes);
    signs = piece + local * (kDim / 8);
  }
  // Into L2.
  PKV_DEVICE void prefetch() const {
#pragma unroll
    for (int i = 0; i < kDim / gpu::kChunkDims * gpu::kChunkBytes; i += kSector) {
      prefetch_sector(record + i);
    }
    prefetch_sector(signs);
  }
};

// One key's part of a lane: chunks t, t + 4.
template <int kDim>
struct KeyChunks {
  static constexpr int kChunks = kDim / 32;
  static constexpr int kRounds = (kChunks + 3) / 4;
  Words<4> codes[kRounds];
  uint32_t signs[kRounds];

  PKV_DEVICE void load(const RecordPlace<kDim>& place, bool is_there) {
    const int t = LaneGroup<32>::rank() % 4;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int chunk = t + 4 * round;
      codes[round] = {};
      signs[round] = 0;
      if (!is_there || chunk >= kChunks) continue;
      codes[round] = load_words<4>(place.record + gpu::kChunkBytes * chunk);
      signs[round] = load_words<1>(place.signs + 4 * chunk).word[0];
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

// Entries and samples of a warp that it multiplies at once: a lane has two.
template <int kDim>
struct EntryRound {
  static constexpr int kRows = 16;
  static constexpr int kStep = kRows * kFusedWarps;  // from a round of a warp to its next
  KeyChunks<kDim> keys[2];
  uint32_t words[2];  // of the list

  PKV_DEVICE static int32_t index(int32_t row, int r) {
    return row + LaneGroup<32>::rank() / 4 + 8 * r;
  }
  // Of those from `row` on that exist; the block has one at least.
  PKV_DEVICE void load(const Entries& e, int64_t area, const format::StoreRow& records,
                       int64_t begin, int32_t row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t i = index(row, r);
      const bool is_there = i < e.count + e.sample_count;
      words[r] = 0;
      if (is_there) words[r] = i < e.count ? e.list[i] : e.samples[i - e.count];
      keys[r].load({area, records, begin + (words[r] & kPlaceMask)}, is_there);
    }
  }
};

// A warp's estimates, and the sums of their exponentials for each of its heads.
template <int kDim, int kTiles>
class Estimator {
 public:
  using Group = LaneGroup<32>;
  PKV_DEVICE Estimator(const FusedShared<kDim>& shared, int32_t group, ScaledLogit logit)
      : tile0_(shared, 0, group),
        tile1_(shared, 4 * (kTiles - 1), group),
        group_(group),
        logit_(logit) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) sums_[i] = LogSum::nothing();
  }

  PKV_DEVICE void take(const EntryRound<kDim>& entries, const Entries& e, int32_t row) {
    using Chunks = KeyChunks<kDim>;
    const int t = Group::rank() % 4;
    uint32_t y[2][8 * Chunks::kRounds];
    float w[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Chunks& chunks = entries.keys[r];
#pragma unroll
      for (int round = 0; round < Chunks::kRounds; ++round) {
        decode_scalar<PKV_CODEC_SCALAR4>(chunks.codes[round].word, chunks.signs[round],
                                         y[r] + 8 * round);
        if (t + 4 * round < Chunks::kChunks) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) y[r][8 * round + i] = 0;
      }
      const uint32_t factor = Group::shuffle(chunks.codes[0].word[3], Group::rank() & ~3);
      w[r] = format::bf16_to_float(static_cast<uint16_t>(factor));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const HeadTile<kDim>& heads = tile == 0 ? tile0_ : tile1_;
      float est[2];
      heads.estimate(y, w, est);
      if (!heads.is_there) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t i = entries.index(row, r);
        if (i < e.count) {
          e.estimates[i * group_ + 4 * tile + t] = est[r];
          if ((entries.words[r] & kTieFlag) == 0) sums_[tile].add(logit_(est[r]));
        } else if (i < e.count + e.sample_count) {
          // A bad key's factors are NaN.
          e.sample_estimates[(i - e.count) * group_ + 4 * tile + t] =
              w[r] != w[r] ? quiet_nan() : est[r];
        }
      }
    }
  }

  // The warp's sums to shared.warp_sums.
  PKV_DEVICE void store_sums(FusedShared<kDim>& shared) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int bits = 4; bits < 32; bits *= 2) {
        const LogSum other = {Group::shuffle_xor(sums_[tile].max, bits),
                              Group::shuffle_xor(sums_[tile].sum, bits)};
        sums_[tile] = both(sums_[tile], other);
      }
      if (Group::rank() >= 4) continue;
      shared.warp_sums[Group::index()][4 * tile + Group::rank()] = sums_[tile];
    }
  }

 private:
  HeadTile<kDim> tile0_;
  HeadTile<kDim> tile1_;
  int32_t group_;
  ScaledLogit logit_;
  LogSum sums_[kTiles];
};

// Estimates of the list's entries and of samples. All threads; behind it shared.warp_sums has the
// candidates' sums but for ties. `area`: of records in Layout. The next keys' loads are under way
// while those before are multiplied.
template <int kDim, int kTiles>
PKV_APART void estimate_entries(int64_t area, int32_t group, ScaledLogit logit) {
  using Round = EntryRound<kDim>;
  FusedShared<kDim>& shared = fused_shared<kDim>();
  const Entries e = shared.entries;
  const format::StoreRow records = shared.at.records;
  const int64_t begin = shared.at.begin;
  const int32_t total = e.count + e.sample_count;
  Estimator<kDim, kTiles> estimator(shared, group, logit);
  if (total > 0) {
    int32_t row = Round::kRows * LaneGroup<32>::index();
    int32_t left = (total - row + Round::kStep - 1) / Round::kStep;
    Round even;
    Round odd;
    even.load(e, area, records, begin, row);
    // All rounds but the first.
#pragma unroll 1
    for (int32_t i = Round::kStep + thread_index(); i < e.count; i += kFusedThreads) {
      RecordPlace<kDim>(area, records, begin + (e.list[i] & kPlaceMask)).prefetch();
    }
#pragma unroll 1
    for (; left > 0; left -= 2) {
      odd.load(e, area, records, begin, row + Round::kStep);
      estimator.take(even, e, row);
      row += Round::kStep;
      if (left == 1) break;
      even.load(e, area, records, begin, row + Round::kStep);
      estimator.take(odd, e, row);
      row += Round::kStep;
    }
  }
  estimator.store_sums(shared);
  sync_block();
}

}  // namespace pkv::cuda
