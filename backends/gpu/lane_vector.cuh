// Vectors in registers: dimensions 64, 128, 256 or 512, of 16-bit elements of which two can be read
// as a word. docs/algorithm.md, sections 0, 2.3 and 3.4. Exact.
// A vector lies over kLanes lanes, 16 elements each, pairs of neighbours: lane l has in x[r][e]
// element 2 kLanes r + 2 l + e. So loads are whole sectors, the fold of section 0 begins and ends
// inside lanes, and a group of 32 lanes has several vectors at once.
// Shuffles per 4 vectors of 128 dims: rotation 48, each fold 4, bit planes 3.
#pragma once

#include "backends/gpu/fold.cuh"
#include "backends/gpu/quantise.cuh"

namespace PKV_GPU_NS {

// The lanes that have a vector are an aligned run of the 32 that call.
template <int kLanes>
struct LaneVector {
  static_assert(kLanes >= 4 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  using Group = LaneGroup<32>;
  static constexpr int kPairs = 8;
  static constexpr int kDim = 2 * kPairs * kLanes;

  float x[kPairs][2];

  PKV_DEVICE static int lane() { return Group::rank() % kLanes; }
  PKV_DEVICE static int element(int r) { return 2 * kLanes * r + 2 * lane(); }

  // A row as it lies in memory.
  struct Pairs {
    uint32_t word[kPairs];
  };
  PKV_DEVICE static Pairs load(const std::byte* row) {
    Pairs pairs;
    const std::byte* first = row + 4 * lane();
#pragma unroll
    for (int r = 0; r < kPairs; ++r) {
      pairs.word[r] = load_words<1>(first + 4 * kLanes * r).word[0];
    }
    return pairs;
  }
  PKV_DEVICE LaneVector(pkv_dtype dtype, const Pairs& pairs) {
#pragma unroll
    for (int r = 0; r < kPairs; ++r) {
      x[r][0] = std::bit_cast<float>(pairs.word[r] << 16);
      x[r][1] = std::bit_cast<float>(pairs.word[r] & 0xffff0000U);
    }
    if (dtype == PKV_DTYPE_BF16) return;
#pragma unroll
    for (int r = 0; r < kPairs; ++r) {
      x[r][0] = f16_value(pairs.word[r]);
      x[r][1] = f16_value(pairs.word[r] >> 16);
    }
  }

  // x = f(element, x)
  template <class F>
  PKV_DEVICE void each(const F& f) {
#pragma unroll
    for (int r = 0; r < kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) x[r][e] = f(element(r) + e, x[r][e]);
    }
  }

  // FWHT, stages in ascending order of their distance: the pair, the lanes, the pairs of a lane.
  PKV_DEVICE void transform() {
#pragma unroll
    for (int r = 0; r < kPairs; ++r) butterfly(x[r][0], x[r][1]);
#pragma unroll
    for (int bits = 1; bits < kLanes; bits *= 2) {
      const float sign = (lane() & bits) != 0 ? -1.0F : 1.0F;
#pragma unroll
      for (int r = 0; r < kPairs; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // The product is exact, so this is the sum or the difference.
          x[r][e] = ffma_rn(x[r][e], sign, Group::shuffle_xor(x[r][e], bits));
        }
      }
    }
#pragma unroll
    for (int H = 1; H < kPairs; H *= 2) {
#pragma unroll
      for (int r = 0; r < kPairs; ++r) {
        if ((r & H) != 0) continue;
        butterfly(x[r][0], x[r + H][0]);
        butterfly(x[r][1], x[r + H][1]);
      }
    }
  }

  // Section 0, of f(x), for every lane of the vector. The upper half of the lanes goes on with the
  // odd elements, so that each lane adds one number from there on.
  template <class F>
  PKV_DEVICE float fold(const F& f) const {
    const float even = fold_terms<kPairs>([&](int r) { return f(x[r][0]); });
    const float odd = fold_terms<kPairs>([&](int r) { return f(x[r][1]); });
    return fold_lanes<kLanes>(even, odd);
  }
  PKV_DEVICE float square() const {
    return fold([](float a) { return fmul_rn(a, a); });
  }
  // The same of the subspace that the lane's pair r is part of: four lanes.
  template <class F>
  PKV_DEVICE float fold_subspace(int r, const F& f) const {
    return fold_lanes<4>(f(x[r][0]), f(x[r][1]));
  }

 private:
  PKV_DEVICE static void butterfly(float& a, float& b) {
    const float difference = fsub_rn(a, b);
    a = fadd_rn(a, b);
    b = difference;
  }
  template <int kOver>
  PKV_DEVICE static float fold_lanes(float even, float odd) {
    const bool is_upper = (lane() & (kOver / 2)) != 0;
    float sum =
        fadd_rn(is_upper ? odd : even, Group::shuffle_xor(is_upper ? even : odd, kOver / 2));
#pragma unroll
    for (int bits = kOver / 4; bits >= 1; bits /= 2) {
      sum = fadd_rn(sum, Group::shuffle_xor(sum, bits));
    }
    return fadd_rn(sum, Group::shuffle_xor(sum, kOver / 2));
  }
};

// Four bits of each element of a vector, from the lanes that have the elements to whole words of
// the chunks of 32. Two words of a lane have its bits; a round per lane bit gives half of them away
// for as many of another lane, and puts that lane's place among the elements where the choice was:
//   places of bits    at first                              at last
//   16 lanes          c1 c0 ph pl e, words by c2            l3 l2 l1 l0 e, words by pl
//   8 lanes           h  c0 ph pl e, words by c1            h  l2 l1 l0 e
//   4 lanes           h1 h0 ph pl e, words by c0            h1 h0 l1 l0 e
// c: chunk, h: run of elements in it, ph pl: which of the four, l: lane, e: of a pair.
template <int kLanes>
struct LanePlanes {
  static constexpr int kOver = kLanes < 16 ? kLanes : 16;  // lanes that share a chunk
  uint32_t word[2] = {};

  // Bit p of the four of x[r][e] stands at place 2 p.
  PKV_DEVICE void add(int r, int e, uint32_t bits) {
    const int run =
        kLanes == 4 ? 8 * (r & 3) : (kLanes == 8 ? 16 * (r & 1) + 4 * (r & 2) : 8 * (r & 3));
    word[r / 4] |= bits << (run + e);
  }

  // Afterwards word[i] is number 2 * half() + i of the four planes of chunk().
  PKV_DEVICE void gather() { exchange<kOver / 2>(); }
  PKV_DEVICE static int half() { return LaneGroup<32>::rank() % 2; }
  PKV_DEVICE static int chunk() {
    const int lane = LaneGroup<32>::rank() % kLanes;
    return kLanes / kOver * (lane % kOver / 2) + lane / kOver;
  }

 private:
  template <int kBit>
  PKV_DEVICE void exchange() {
    if constexpr (kBit > 0) {
      constexpr int kPlace = 2 * kBit;
      // Bits whose place has no kPlace in it.
      constexpr uint32_t kLower = 0xffffffffU / ((1U << kPlace) + 1U);
      const bool is_upper = (LaneGroup<32>::rank() & kBit) != 0;
      const uint32_t own = is_upper ? word[1] : word[0];
      const uint32_t other = LaneGroup<32>::shuffle_xor(is_upper ? word[0] : word[1], kBit);
      const uint32_t lower = is_upper ? other : own;  // of the lane without kBit
      const uint32_t upper = is_upper ? own : other;
      word[0] = (lower & kLower) | (upper & kLower) << kPlace;
      word[1] = ((lower >> kPlace) & kLower) | (upper & ~kLower);
      exchange<kBit / 2>();
    }
  }
};

// Of a vector: codes and signs, as far as four bits go; signs apart from codes of four bits.
template <class Table, int kLanes>
struct VectorPlanes {
  static constexpr bool kSignsApart = Table::kPlanes == 4;
  LanePlanes<kLanes> codes;
  LanePlanes<kLanes> signs;
};

// The codes of y; leaves the products of level and magnitude in it. unit_of(r): of pair r. The sign
// stands behind the planes of the code, or alone.
template <class Table, int kLanes, class UnitOf, class LevelOf>
PKV_DEVICE VectorPlanes<Table, kLanes> quantise(LaneVector<kLanes>& y, const UnitOf& unit_of,
                                                const LevelOf& level) {
  VectorPlanes<Table, kLanes> planes;
#pragma unroll
  for (int r = 0; r < LaneVector<kLanes>::kPairs; ++r) {
    const Quantiser<Table> quantiser(unit_of(r));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = y.x[r][e];
      const uint32_t code = quantiser.code(absolute(x));
      if constexpr (planes.kSignsApart) {
        planes.codes.add(r, e, code);
        planes.signs.add(r, e, x >= 0.0F ? 1U : 0U);
      } else {
        planes.codes.add(r, e, code | (x >= 0.0F ? 1U << (2 * Table::kPlanes) : 0U));
      }
      x = fmul_rn(level(code), absolute(x));
    }
  }
  planes.codes.gather();
  if constexpr (planes.kSignsApart) planes.signs.gather();
  return planes;
}

}  // namespace PKV_GPU_NS
