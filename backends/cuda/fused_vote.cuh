// The graded vote by binary matrix units: keys of 16 bits and the histogram of their window.
// docs/algorithm.md, section 4.2. Exact: the products' sums are integers.
// The eight bit planes of the integers z are the columns of B, signs of 16 keys (d = 128) the rows
// of A; weights 1, 2, 4 .. -128 of the planes combine the counts of bits that both have.
//   d = 64: a row of A has two keys, and B comes twice, with zeros for the other key.
//   d = 256: two products add up; lane t of four has words 2 t and 2 t + 1 of a key.
// Traffic per key, d = 128: 18 B read.
#pragma once

#include "backends/cuda/fused_exchange.cuh"
#include "backends/gpu/best.cuh"
#include "backends/gpu/vote.cuh"

namespace pkv::cuda {

// c += the counts of a & b over 128 bits: 16 rows, 8 columns.
PKV_DEVICE void count_bits(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

PKV_DEVICE uint32_t load_stream(const std::byte* from) {
  uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}
PKV_DEVICE uint16_t load_stream16(const std::byte* from) {
  uint16_t half;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(half) : "l"(from));
  return half;
}

PKV_DEVICE void prefetch(const std::byte* from, int64_t bytes) {
  // Whole units of 16 bytes, which both ends are multiples of.
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from),
               "r"(static_cast<uint32_t>(bytes / 16 * 16))
               : "memory");
}

inline constexpr int kSector = 32;  // bytes that are fetched together
PKV_DEVICE void prefetch_sector(const std::byte* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// Into L2, by one thread: `keys` at most from `position` on, as far as they lie in one piece.
PKV_DEVICE void prefetch_keys(const gpu::Layout& layout, const format::StoreRow& records,
                              int64_t position, int64_t keys) {
  const int64_t end = records.piece_end(position);
  if (keys > end - position) keys = end - position;
  if (keys < kUnitKeys) return;
  const std::byte* piece = records.piece(position);
  const int64_t local = records.local(position);
  prefetch(piece + layout.sign(local), keys * layout.sign_bytes);
  prefetch(piece + layout.factor(local), keys * 2);
}

// What a lane knows of the query.
template <int kDim>
struct VoteQuery {
  static constexpr int kColumns = kDim == 128 ? 1 : 2;
  uint32_t b[kColumns];
  int32_t weight[4];  // of the lane's two planes; and times 2^16
  int32_t z_sum;

  PKV_DEVICE explicit VoteQuery(const FusedShared<kDim>& shared) {
    const int lane = LaneGroup<32>::rank();
    const int plane = lane / 4;
    const int t = lane % 4;
    if constexpr (kDim == 128) {
      b[0] = shared.planes[plane][t];
    } else if constexpr (kDim == 64) {
      b[0] = t < 2 ? shared.planes[plane][t % 2] : 0;
      b[1] = t < 2 ? 0 : shared.planes[plane][t % 2];
    } else {
      b[0] = shared.planes[plane][2 * t];
      b[1] = shared.planes[plane][2 * t + 1];
    }
    weight[0] = 1 << (2 * t);
    weight[1] = t == 3 ? -128 : 2 << (2 * t);
    weight[2] = weight[0] * 65536;
    weight[3] = weight[1] * 65536;
    z_sum = 0;
#pragma unroll
    for (int i = 0; i < kVoteWarps; ++i) z_sum += shared.z_sums[i];
  }
};

// A lane's first signs and factors of a unit.
template <int kDim>
struct UnitPlace {
  const std::byte* signs;
  const std::byte* factors;

  // A unit that lies `keys` behind in the same piece.
  PKV_DEVICE void advance(int32_t keys) {
    signs += keys * (kDim / 8);
    factors += keys * 2;
  }
};

// 64 keys of a warp.
template <int kDim>
struct VoteUnit {
  static constexpr int kWords = kDim / 16;  // of a lane
  uint32_t word[kWords];
  uint16_t factor[2];

  static constexpr int kKeyStep = kDim == 64 ? 16 : 8;
  // The lane's two keys of the unit.
  PKV_DEVICE static int key(int i) {
    const int g = LaneGroup<32>::rank() / 4;
    const int t = LaneGroup<32>::rank() % 4;
    if constexpr (kDim == 64) return 32 * (t / 2) + 2 * g + t % 2 + kKeyStep * i;
    return 16 * t + g + kKeyStep * i;
  }

  // All keys of the unit exist.
  PKV_DEVICE void load_full(const UnitPlace<kDim>& place) {
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      word[j] = load_stream(place.signs + (offset(j, 0) - offset(0, 0)));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = load_stream16(place.factors + 2 * kKeyStep * i);
  }
  // `left`: keys of the unit that exist, at least one; the votes of others become NaN.
  PKV_DEVICE void load(const UnitPlace<kDim>& place, int64_t left) {
    const int lane = LaneGroup<32>::rank();
    const std::byte* signs = place.signs - offset(0, lane);
    const std::byte* factors = place.factors - 2 * key(0);
    const auto there = static_cast<int>(left < kUnitKeys ? left : kUnitKeys);
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const int at = offset(j, lane);
      word[j] = load_stream(signs + (at < there * (kDim / 8) ? at : 0));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is_there = key(i) < there;
      factor[i] = load_stream16(factors + (is_there ? 2 * key(i) : 0));
      if (!is_there) factor[i] = format::kBf16Nan;
    }
  }
  // The lane's of the unit at `position`, below 2^31; `factors`: of Layout.
  PKV_DEVICE static UnitPlace<kDim> place(int64_t factors, const format::StoreRow& records,
                                          int64_t position) {
    const auto at = static_cast<uint32_t>(position);
    const std::byte* piece = records.piece(at);
    const uint32_t local = at & static_cast<uint32_t>(records.mask);
    return {piece + uint64_t{local} * (kDim / 8) + offset(0, LaneGroup<32>::rank()),
            piece + factors + uint64_t{local} * 2 + 2 * key(0)};
  }

  // 4.2: the votes of the lane's keys.
  PKV_DEVICE void vote(const VoteQuery<kDim>& q, float (&out)[2]) const {
    int32_t part[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      int32_t c[4] = {};
      if constexpr (kDim == 128) {
        count_bits(c, word[2 * m], word[2 * m + 1], q.b[0]);
      } else if constexpr (kDim == 64) {
        count_bits(c, word[m / 2 * 2], word[m / 2 * 2 + 1], q.b[m % 2]);
      } else {
        count_bits(c, word[4 * m], word[4 * m + 2], q.b[0]);
        count_bits(c, word[4 * m + 1], word[4 * m + 3], q.b[1]);
      }
      // Two keys of 16 bits in a word; carries cancel, since both sums fit.
      part[m] = c[0] * q.weight[0] + c[1] * q.weight[1] + c[2] * q.weight[2] + c[3] * q.weight[3];
    }
    using Group = LaneGroup<32>;
    const bool high = (Group::rank() & 2) != 0;
    const bool low = (Group::rank() & 1) != 0;
    int32_t a = high ? part[2] : part[0];
    int32_t b = high ? part[3] : part[1];
    a += Group::shuffle_xor(high ? part[0] : part[2], 2);
    b += Group::shuffle_xor(high ? part[1] : part[3], 2);
    int32_t both = low ? b : a;
    both += Group::shuffle_xor(low ? a : b, 1);
    const int32_t first = static_cast<int16_t>(both & 0xffff);
    const int32_t second = (both - first) >> 16;
    out[0] = fmul_rn(static_cast<float>(2 * first - q.z_sum), format::bf16_to_float(factor[0]));
    out[1] = fmul_rn(static_cast<float>(2 * second - q.z_sum), format::bf16_to_float(factor[1]));
  }

  // Bytes from the unit's signs to word j of a lane.
  PKV_DEVICE static int offset(int j, int lane) {
    if constexpr (kDim != 256) return 4 * (32 * j + lane);
    // Words 4 m .. 4 m + 3: pairs 2 t, 2 t + 1 of key 16 m + g, then of key 16 m + 8 + g.
    return (16 * (j / 4) + 8 * (j / 2 % 2) + lane / 4) * 32 + 8 * (lane % 4) + 4 * (j % 2);
  }
};

// With a window, which begins above 0, all votes below 0 are one key.
template <bool kHasWindow>
PKV_DEVICE uint32_t scaled_key(const KeyScale& scale, float vote) {
  int32_t key = 0;
  if constexpr (kHasWindow) {
    if (vote != vote) return 0;
    key = (std::bit_cast<int32_t>(vote) >> kWindowShift) - scale.base;
  } else {
    const uint32_t order = order_key(vote);
    if (order == 0) return 0;
    key = static_cast<int32_t>(order >> 16);
  }
  return static_cast<uint32_t>(key < 1 ? 1 : (key > kMostKey ? kMostKey : key));
}

// The scale from the moments of the sampled votes: every warp of every block comes to the same.
template <int kDim>
PKV_DEVICE KeyScale key_scale(const FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  float moments[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    moments[i] = Group::sum(Group::rank() < kFusedWarps ? shared.moments[Group::rank()][i] : 0.0F);
  }
  const float part = __frcp_rn(moments[2]);
  const float mean = moments[0] * part;
  const float variance = moments[1] * part - mean * mean;
  const float begin = fmadd(shared.window_deviations, variance * rsqrtf(variance), mean);
  // 512 keys to a doubling around the window; what lies far below becomes one key.
  constexpr int32_t kBelow = 40000;
  if (!(shared.window_deviations > 0.0F) || !(begin > 1e-18F) || !(begin < 1e18F)) return {0, 0};
  return {(std::bit_cast<int32_t>(begin) >> kWindowShift) - kBelow, kBelow};
}

// Every block of the team samples the same keys: a unit of each warp, spread over the row.
template <int kDim>
struct VoteSample {
  VoteUnit<kDim> unit;
  int64_t left;

  PKV_DEVICE static int64_t position(int64_t n, int warp) {
    return n * warp / kFusedWarps / kUnitKeys * kUnitKeys;
  }
  PKV_DEVICE void load(const FusedArgs& a, const BlockRow& at) {
    const int64_t at_key = position(at.n, LaneGroup<32>::index());
    left = at.n - at_key;
    if (left <= 0) return;
    unit.load(VoteUnit<kDim>::place(a.store.layout.factors, at.records, at_key), left);
  }

  PKV_DEVICE void sum(const VoteQuery<kDim>& q, FusedShared<kDim>& shared) const {
    using Group = LaneGroup<32>;
    float moments[3] = {};
    if (left > 0) {
      float votes[2];
      unit.vote(q, votes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (votes[i] != votes[i]) continue;
        moments[0] += votes[i];
        moments[1] += votes[i] * votes[i];
        moments[2] += 1.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      moments[i] = Group::sum(moments[i]);
      if (Group::rank() == 0) shared.moments[Group::index()][i] = moments[i];
    }
  }
};

// Adds 1 to a word of shared memory if `number` is not negative; without a branch.
PKV_DEVICE void count_if_positive(uint32_t* counter, int32_t number) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ge.s32 p, %1, 0;\n"
      "@p red.shared.add.u32 [%0], 1;\n}" ::"r"(shared_address(counter)),
      "r"(number)
      : "memory");
}

// The keys of a unit's votes and, with a window, those of the window into the histogram.
template <bool kHasWindow, int kDim>
PKV_DEVICE void keep_votes(const VoteUnit<kDim>& unit, const VoteQuery<kDim>& q,
                           const KeyScale& scale, uint16_t* keys, uint32_t* histogram) {
  float votes[2];
  unit.vote(q, votes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t key = scaled_key<kHasWindow>(scale, votes[i]);
    keys[VoteUnit<kDim>::key(i)] = static_cast<uint16_t>(key);
    if constexpr (kHasWindow) {
      const int32_t bin = static_cast<int32_t>(key) - scale.window;
      const int32_t most = kWindowBins - 1;
      count_if_positive(histogram + (most - (bin < most ? bin : most)), bin);
    }
  }
}

// The vote of one key, by one thread, from the bit planes.
template <int kDim>
PKV_APART float vote_of_key(const FusedArgs& a, const BlockRow& at, int64_t position,
                            const FusedShared<kDim>& shared) {
  const KeySlot slot = key_slot(a.store, at.records, position);
  const auto* signs = reinterpret_cast<const uint32_t*>(slot.signs());
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const uint32_t word = signs[i];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const int32_t count = LaneGroup<32>::count_bits(word & shared.planes[p][i]);
      sum += p == 7 ? -128 * count : count << p;
    }
  }
  return fmul_rn(static_cast<float>(2 * sum - VoteQuery<kDim>(shared).z_sum),
                 format::bf16_to_float(*slot.factor()));
}

}  // namespace pkv::cuda
