// Encode with vectors in registers (lane_vector.cuh): keys and values of one width, one rotation.
// docs/algorithm.md, section 3. Exact. Not here: the tile and its passes (encode.cuh).
#pragma once

#include "backends/gpu/encode.cuh"
#include "backends/gpu/lane_vector.cuh"

namespace PKV_GPU_NS {

template <class KeyTable, int kLanes>
struct RegisterCoder {
  using Group = LaneGroup<32>;
  using Vector = LaneVector<kLanes>;
  static constexpr int kDim = Vector::kDim;
  static constexpr int kAtOnce = 32 / kLanes;  // vectors of a group
  static constexpr bool kIsPolar = std::is_same_v<KeyTable, PolarTable>;
  // Takes more registers than Traits::kEncodeBlocks leaves.
  static constexpr bool kIsWide = kLanes < 8 || !std::is_same_v<KeyTable, Normal4Table>;

  static constexpr int kLevels = 1 << (2 * KeyTable::kPlanes);

  // Shared: [kDim] pairs of mu and sigma_1 * s, of neighbours; levels by code, in [kLevels].
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
#pragma unroll 1
    for (int32_t j = thread_index(); j < kDim; j += block_size()) {
      float* pair = floats + 4 * (j / 2) + j % 2;
      pair[0] = mu[j];
      pair[2] = fmul_rn(a.codec.params.signs_1[j], s[j]);
    }
    if (thread_index() == 0) {
      each_level<KeyTable>([&](int i, float level) {
        floats[2 * kDim + static_cast<int>(spread_code(static_cast<uint32_t>(i)))] = level;
      });
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
      if (is_there && !is_bad && Vector::lane() == 0) write_factors(a, slot, n2, n1, v2);
      write_codes(a, tile, slot, y, n2, is_there && !is_bad);
      if (!is_there || !is_bad) continue;
      if (Vector::lane() == 0) bad[t] = 1;
      write_bad(a, slot, tile.position + t, Vector::lane(), kLanes);
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
      const Words<4> pair = (scaling + Vector::lane())[kLanes * r];
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

  // Pairs of lanes have a chunk: the even one its words m0 and m1, the odd one m2 with m3 or `w`.
  PKV_DEVICE static void put(const Tile& tile, const KeySlot& slot,
                             const VectorPlanes<KeyTable, kLanes>& planes, uint16_t w) {
    const int chunk = planes.codes.chunk();
    const int half = planes.codes.half();
    Words<2> words = {{planes.codes.word[0], planes.codes.word[1]}};
    const uint32_t signs = planes.kSignsApart ? planes.signs.word[0] : words.word[1];
    if (!planes.kSignsApart && half == 1) words.word[1] = chunk == 0 ? w : 0U;
    store_words(slot.record() + gpu::kChunkBytes * chunk + 8 * half, words);
    if (half != (planes.kSignsApart ? 0 : 1)) return;
    reinterpret_cast<uint32_t*>(slot.signs())[chunk] = signs;
    if (tile.occupancy == nullptr) return;
    for (int b = 0; b < 4; ++b) count_pattern(tile, 4 * chunk + b, (signs >> (8 * b)) & 0xffU);
  }

  template <class Table>
  PKV_DEVICE static void write_sketch(const EncodeArgs& a, const KeySlot& slot, Vector& y, float n2,
                                      bool writes) {
    const float u = scalar_unit(n2, a.value_inv_sqrt);
    const auto planes = quantise<Table>(
        y, [u](int) { return u; }, level_of<Table>);
    const float product = y.fold([](float x) { return x; });
    if (!writes) return;
    // With one plane the even lanes have all there is of a chunk.
    const Words<2> words = {{planes.codes.word[0], planes.codes.word[1]}};
    const int chunk = planes.codes.chunk();
    if (Table::kPlanes == 3) {
      store_words(slot.sketch() + 16 * chunk + 8 * planes.codes.half(), words);
    } else if (planes.codes.half() == 0) {
      store_words(slot.sketch() + 8 * chunk, words);
    }
    if (Vector::lane() == 0) *slot.sketch_factor() = factor_of(n2, product, n2 == 0.0F);
  }
};

}  // namespace PKV_GPU_NS
