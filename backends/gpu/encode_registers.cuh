// Encode with vectors in registers: dimensions 64, 128, 256 or 512, keys and values alike, of 16-bit
// elements of which two can be read as a word, one rotation. docs/algorithm.md, section 3. Exact. Not here: the tile and its passes (encode.cuh).
// A vector lies over kLanes lanes, 16 elements each, pairs of neighbours: lane l has in x[r][e]
// element 2 kLanes r + 2 l + e. So loads are whole sectors, the fold of section 0 begins and ends
// inside lanes, and a group of 32 lanes has several keys at once.
// Shuffles per 4 keys of 128 dims: rotation 48, each fold 4, bit planes 14.
#pragma once

#include "backends/gpu/encode.cuh"

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
#pragma unroll
    for (int r = 0; r < kPairs; ++r) pairs.word[r] = load_words<1>(row + 2 * element(r)).word[0];
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

// ORs each of kCount words over an aligned run of kLanes lanes. Lane l keeps the words
// l * kCount / kLanes .., in front; where they are fewer than the lanes, several have the same.
template <int kLanes, int kCount>
PKV_DEVICE void scatter_or(uint32_t* words) {
  if constexpr (kLanes > 1) {
    using Group = LaneGroup<32>;
    constexpr int kBits = kLanes / 2;
    if constexpr (kCount > 1) {
      const bool is_upper = (Group::rank() & kBits) != 0;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const uint32_t lower = words[i];
        const uint32_t upper = words[i + kCount / 2];
        words[i] = (is_upper ? upper : lower) | Group::shuffle_xor(is_upper ? lower : upper, kBits);
      }
      scatter_or<kBits, kCount / 2>(words);
    } else {
      words[0] |= Group::shuffle_xor(words[0], kBits);
      scatter_or<kBits, 1>(words);
    }
  }
}

// A vector's bit planes, from pieces in its lanes to whole words of chunks of 32 elements.
template <class Table, int kLanes>
struct LanePlanes {
  static constexpr int kPlanes = Table::kPlanes;
  static constexpr bool kSignsApart = kPlanes == 4;
  static constexpr int kPerChunk = kSignsApart ? 4 : kPlanes + 1;  // words: planes, then signs
  static constexpr int kOver = kLanes < 16 ? kLanes : 16;          // lanes that share a chunk
  static constexpr int kChunks = kOver / 2;                        // that a lane has pieces of
  static constexpr int kKept = kPerChunk / 2;                      // words that a lane keeps

  uint32_t words[kChunks * kPerChunk] = {};
  uint32_t signs[kSignsApart ? kChunks : 1] = {};

  // Of element x[r][e] of a vector.
  PKV_DEVICE void add(int r, int e, uint32_t code, bool is_positive) {
    const int chunk = 2 * kOver * r / 32;
    const int shift = 2 * kOver * r % 32 + e;
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      words[chunk * kPerChunk + p] |= ((code >> p) & 1U) << shift;
    }
    uint32_t& sign_word =
        kSignsApart ? signs[kSignsApart ? chunk : 0] : words[chunk * kPerChunk + kPerChunk - 1];
    sign_word |= (is_positive ? 1U : 0U) << shift;
  }

  // Afterwards words[0 .. kKept) are those from kKept * half() on of chunk(), and signs() its signs
  // in lanes with half() = 1.
  PKV_DEVICE void gather() {
    const int shift = 2 * (LaneGroup<32>::rank() % kOver);
#pragma unroll
    for (int i = 0; i < kChunks * kPerChunk; ++i) words[i] <<= shift;
    scatter_or<kOver, kChunks * kPerChunk>(words);
    if constexpr (kSignsApart) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) signs[i] <<= shift;
      scatter_or<kOver, kChunks>(signs);
    }
  }
  PKV_DEVICE static int half() { return LaneGroup<32>::rank() % 2; }
  PKV_DEVICE static int chunk() {
    const int lane = LaneGroup<32>::rank() % kLanes;
    return kLanes / kOver * (lane % kOver / 2) + lane / kOver;
  }
  PKV_DEVICE uint32_t sign_word() const { return kSignsApart ? signs[0] : words[kKept - 1]; }
};

// The codes of y; leaves the products of level and magnitude in it. unit_of(r): of pair r.
template <class Table, int kLanes, class UnitOf, class LevelOf>
PKV_DEVICE LanePlanes<Table, kLanes> quantise(LaneVector<kLanes>& y, const UnitOf& unit_of,
                                              const LevelOf& level_of_code) {
  LanePlanes<Table, kLanes> planes;
#pragma unroll
  for (int r = 0; r < LaneVector<kLanes>::kPairs; ++r) {
    const Quantiser<Table> quantiser(unit_of(r));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = y.x[r][e];
      const uint32_t code = quantiser.code(absolute(x));
      planes.add(r, e, code, x >= 0.0F);
      x = fmul_rn(level_of_code(code), absolute(x));
    }
  }
  planes.gather();
  return planes;
}

template <class KeyTable, int kLanes>
struct RegisterCoder {
  using Group = LaneGroup<32>;
  using Vector = LaneVector<kLanes>;
  static constexpr int kDim = Vector::kDim;
  static constexpr int kAtOnce = 32 / kLanes;  // vectors of a group
  static constexpr bool kIsPolar = std::is_same_v<KeyTable, PolarTable>;

  static constexpr int kLevels = 1 << KeyTable::kPlanes;

  // Shared: [kDim] pairs of mu and sigma_1 * s, of neighbours; [kLevels].
  const Words<4>* scaling;
  const float* levels;

  static constexpr int64_t shared_floats(int32_t /*groups*/, int32_t /*d*/, int32_t /*dv*/) {
    return 2 * kDim + kLevels;
  }

  // What it leaves in shared memory may be read after a sync of the block.
  PKV_DEVICE RegisterCoder(const EncodeArgs& a, const Tile& tile, unsigned char* memory) {
    auto* floats = reinterpret_cast<float*>(memory);
    const float* mu = a.codec.key_row(a.codec.params.center, tile.set, tile.at.head);
    const float* s = a.codec.key_row(a.codec.params.balance, tile.set, tile.at.head);
    for (int32_t j = thread_index(); j < kDim; j += block_size()) {
      float* pair = floats + 4 * (j / 2) + j % 2;
      pair[0] = mu[j];
      pair[2] = fmul_rn(a.codec.params.signs_1[j], s[j]);
    }
    if (thread_index() == 0) {
      each_level<KeyTable>([&](uint32_t i, float level) { floats[2 * kDim + i] = level; });
    }
    scaling = reinterpret_cast<const Words<4>*>(memory);
    levels = floats + 2 * kDim;
  }

  PKV_DEVICE void sketches(const EncodeArgs& a, const Tile& tile, const TileSketches& all,
                           uint8_t* bad) const {
    const float* mu = a.codec.value_row(a.codec.params.value_center, tile.set, tile.at.head);
    const float* sigma = a.codec.params.value_signs_1;
    for (int32_t base = kAtOnce * Group::index(); base < all.count;
         base += kAtOnce * Group::count()) {
      const int32_t i = base + Group::rank() / kLanes;
      const bool is_there = i < all.count;
      const int32_t t = all.begin + (is_there ? i : all.count - 1) * a.codec.geometry.sketch_stride;
      Vector y(a.values.dtype, Vector::load(row_of(a.values, tile, t)));
      y.each([=](int j, float v) { return fmul_rn(sigma[j], fsub_rn(v, mu[j])); });
      y.transform();
      const float n2 = y.square();
      const bool is_good = is_finite(n2);
      if (is_there && Vector::lane() == 0) bad[t] = is_good ? 0 : 1;
      const KeySlot slot = key_slot(a.store, tile.records, tile.position + t);
      if (a.codec.geometry.sketch_bits == 2) {
        write_sketch<Normal2Table>(a, slot, y, n2, is_there && is_good);
      } else {
        write_sketch<Normal4Table>(a, slot, y, n2, is_there && is_good);
      }
    }
  }

  PKV_DEVICE void keys(const EncodeArgs& a, const Tile& tile, uint8_t* bad) const {
    for (int32_t base = kAtOnce * Group::index(); base < tile.count;
         base += kAtOnce * Group::count()) {
      const int32_t i = base + Group::rank() / kLanes;
      const bool is_there = i < tile.count;
      const int32_t t = is_there ? i : tile.count - 1;
      const typename Vector::Pairs key = Vector::load(row_of(a.keys, tile, t));
      float v2 = 0.0F;
      if (a.has_values != 0) {
        v2 = Vector(a.values.dtype, Vector::load(row_of(a.values, tile, t))).square();
      }
      Vector y(a.keys.dtype, key);
      center(y);
      y.transform();
      const float n2 = y.square();
      const float n1 = y.fold([](float x) { return absolute(x); });
      const bool is_bad = bad[t] != 0 || !is_finite(n2) || !is_finite(v2);
      Group::sync();  // bad[t] is read
      const KeySlot slot = key_slot(a.store, tile.records, tile.position + t);
      write_codes(a, tile, slot, y, n2, is_there && !is_bad);
      if (!is_there) continue;
      if (is_bad) {
        if (Vector::lane() == 0) bad[t] = 1;
        write_bad(a, slot, tile.position + t, Vector::lane(), kLanes);
      } else if (Vector::lane() == 0) {
        write_factors(a, slot, n2, n1, v2);
      }
    }
  }

 private:
  PKV_DEVICE static const std::byte* row_of(const TensorView& from, const Tile& tile, int32_t t) {
    return from.row(tile.at.entry, tile.at.head, tile.first + t);
  }
  // sigma_1 * (s * (k - mu)); a sign changes no rounding.
  PKV_DEVICE void center(Vector& y) const {
#pragma unroll
    for (int r = 0; r < Vector::kPairs; ++r) {
      const Words<4> pair = scaling[Vector::element(r) / 2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto mu = std::bit_cast<float>(pair.word[e]);
        const auto s = std::bit_cast<float>(pair.word[2 + e]);
        y.x[r][e] = fmul_rn(s, fsub_rn(y.x[r][e], mu));
      }
    }
  }

  // Signs, codes and factors of a key, by all lanes; only `writes` lanes write.
  PKV_DEVICE void write_codes(const EncodeArgs& a, const Tile& tile, const KeySlot& slot, Vector& y,
                              float n2, bool writes) const {
    const auto level = [this](uint32_t code) { return levels[code]; };
    if constexpr (kIsPolar) {
      float unit[Vector::kPairs];
#pragma unroll
      for (int r = 0; r < Vector::kPairs; ++r) {
        const float rho = fsqrt_rn(y.fold_subspace(r, [](float x) { return fmul_rn(x, x); }));
        unit[r] = n2 == 0.0F || rho == 0.0F ? unit_of_nothing() : rho;
      }
      const auto planes = quantise<KeyTable>(
          y, [&unit](int r) { return unit[r]; }, level);
#pragma unroll
      for (int r = 0; r < Vector::kPairs; ++r) {
        const float product = y.fold_subspace(r, [](float x) { return x; });
        const float alpha = fdiv_rn(product, unit[r]);
        const uint16_t w = is_finite(unit[r]) ? format::float_to_bf16(fdiv_rn(unit[r], alpha)) : 0;
        if (writes && Vector::lane() % 4 == 0) slot.weights()[Vector::element(r) / 8] = w;
      }
      if (writes) put(tile, slot, planes, 0);
    } else {
      const float u = scalar_unit(n2, a.key_inv_sqrt);
      const auto planes = quantise<KeyTable>(
          y, [u](int) { return u; }, level);
      const float product = y.fold([](float x) { return x; });
      const uint16_t w = factor_of(n2, product, n2 == 0.0F);
      if (!writes) return;
      put(tile, slot, planes, w);
      if (KeyTable::kPlanes == 4 && Vector::lane() == 0) {
        store_words(slot.weights(), Words<4>{{w, 0, 0, 0}});
      }
    }
  }

  // Pairs of lanes have a chunk: its words m0 and m1, and m2 with m3 or `w`; the odd one its signs.
  PKV_DEVICE static void put(const Tile& tile, const KeySlot& slot,
                             const LanePlanes<KeyTable, kLanes>& planes, uint16_t w) {
    Words<2> words = {{planes.words[0], planes.words[1]}};
    if (planes.half() == 1) {
      if constexpr (KeyTable::kPlanes == 3) words.word[1] = planes.chunk() == 0 ? w : 0U;
      const uint32_t signs = planes.sign_word();
      reinterpret_cast<uint32_t*>(slot.signs())[planes.chunk()] = signs;
      if (tile.occupancy != nullptr) {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          count_pattern(tile, 4 * planes.chunk() + b, (signs >> (8 * b)) & 0xffU);
        }
      }
    }
    store_words(slot.record() + gpu::kChunkBytes * planes.chunk() + 8 * planes.half(), words);
  }

  template <class Table>
  PKV_DEVICE static void write_sketch(const EncodeArgs& a, const KeySlot& slot, Vector& y, float n2,
                                      bool writes) {
    const float u = scalar_unit(n2, a.value_inv_sqrt);
    const auto planes = quantise<Table>(
        y, [u](int) { return u; }, level_of<Table>);
    const float product = y.fold([](float x) { return x; });
    if (!writes) return;
    constexpr int kKept = planes.kKept;
    Words<kKept> words;
#pragma unroll
    for (int i = 0; i < kKept; ++i) words.word[i] = planes.words[i];
    store_words(slot.sketch() + 8 * kKept * planes.chunk() + 4 * kKept * planes.half(), words);
    if (Vector::lane() == 0) *slot.sketch_factor() = factor_of(n2, product, n2 == 0.0F);
  }
};

}  // namespace PKV_GPU_NS
