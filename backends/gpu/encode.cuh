// Stage encode: keys and values to key records. docs/algorithm.md, section 3.
// Not here: vectors in registers (encode_registers.cuh); the running value sums (value_sums.cuh).
// A block has a tile of a row's tokens and passes over it three times: the sketches, then the keys,
// which learn there whether a sketch is bad, then the sums of the good values.
// Traffic per key and KV head, d = 128, bf16: 512 B read, 82 B written; the values are read again
// while L2 holds them.
// Bound: with vectors in registers device memory, else shared memory.
// Exact: every sum a fold, one rounding per operation.
// Differs from cpu_ref: tiles in any order; what must be in order is in value_sums.cuh.
#pragma once

#include "backends/gpu/fold.cuh"
#include "backends/gpu/quantise.cuh"
#include "backends/gpu/records.cuh"
#include "backends/gpu/rotate.cuh"
#include "backends/gpu/value_sums.cuh"

namespace PKV_GPU_NS {

struct EncodeArgs {
  CodecView codec;
  StoreView store;
  TensorView keys;    // [b, h, t, d]
  TensorView values;  // [b, h, t, dv]
  int32_t has_values;
  const int32_t* sequences;  // [b]
  const int64_t* starts;     // [b]
  const int64_t* counts;     // [b]
  int64_t rows;              // b * h
  float key_inv_sqrt;        // 1/sqrt(d)
  float value_inv_sqrt;      // 1/sqrt(dv)
  Tiles tiles;
  int32_t* occupancy;  // [sequences * h, d/8, 256]; NULL: not wanted
};

// A block's tokens: `count` from token `first` of the call on, which goes to position `position`.
struct Tile {
  RowIndex at;
  int32_t set;
  int64_t first;
  int64_t position;
  int32_t count;
  format::StoreRow records;
  int32_t* occupancy;  // of the row; NULL: not wanted
};

PKV_DEVICE Tile tile_of(const EncodeArgs& a, int64_t row, int64_t index) {
  Tile tile{};
  const pkv_geometry& geometry = a.codec.geometry;
  tile.at = row_index(row, geometry.kv_heads);
  tile.first = index * a.tiles.tokens;
  const int64_t left = a.counts[tile.at.entry] - tile.first;
  if (left <= 0) return tile;
  tile.count = left < a.tiles.tokens ? static_cast<int32_t>(left) : a.tiles.tokens;
  tile.set = static_cast<int32_t>(a.codec.set(tile.at.entry));
  tile.position = a.starts[tile.at.entry] + tile.first;
  const int64_t sequence = a.sequences[tile.at.entry];
  tile.records = a.store.row(sequence, tile.at.head);
  if (a.occupancy != nullptr) {
    const int64_t S = a.store.layout.subspaces;
    const int64_t store_row = sequence * geometry.kv_heads + tile.at.head;
    tile.occupancy = a.occupancy + store_row * S * format::kCentroids;
  }
  return tile;
}

// Sketches of a tile lie at tokens begin, begin + stride, ..; `count` of them.
struct TileSketches {
  int32_t begin;
  int32_t count;
};
PKV_DEVICE TileSketches sketches_of(const EncodeArgs& a, const Tile& tile) {
  const int32_t stride = a.codec.geometry.sketch_stride;
  if (a.codec.geometry.sketch_bits == 0) return {0, 0};
  const auto past = static_cast<int32_t>(tile.position % stride);
  const int32_t begin = past == 0 ? 0 : stride - past;
  return {begin, begin < tile.count ? (tile.count - 1 - begin) / stride + 1 : 0};
}

PKV_DEVICE void write_zeros(std::byte* target, int32_t words, int32_t rank, int32_t lanes) {
  for (int32_t w = rank; w < words; w += lanes) reinterpret_cast<uint32_t*>(target)[w] = 0;
}

// 3.6, by `lanes` lanes: sign bits and codes 0, every factor and norm NaN.
PKV_DEVICE void write_bad(const EncodeArgs& a, const KeySlot& slot, int64_t position, int32_t rank,
                          int32_t lanes) {
  const gpu::Layout& l = a.store.layout;
  write_zeros(slot.signs(), l.sign_bytes / 4, rank, lanes);
  const int32_t chunk_words = l.chunks * gpu::kChunkBytes / 4;
  if (a.codec.geometry.codec == PKV_CODEC_SCALAR4) {
    for (int32_t w = rank; w < chunk_words; w += lanes) {
      reinterpret_cast<uint32_t*>(slot.record())[w] = w == 3 ? uint32_t{format::kBf16Nan} : 0U;
    }
  } else {
    write_zeros(slot.record(), chunk_words, rank, lanes);
    for (int32_t w = rank; w < (l.record_bytes - l.weight) / 2; w += lanes) {
      slot.weights()[w] = w < l.weights ? format::kBf16Nan : uint16_t{0};
    }
  }
  if (gpu::has_sketch(a.codec.geometry, position)) {
    write_zeros(slot.sketch(), l.sketch_bytes / 4, rank, lanes);
    if (rank == 0) *slot.sketch_factor() = format::kBf16Nan;
  }
  if (rank != 0) return;
  *slot.factor() = format::kBf16Nan;
  if (a.codec.geometry.value_norm != 0) *slot.norm() = format::kBf16Nan;
}

// 3.3, 3.5: what a good key has beside its codes and sketch, by one lane.
PKV_DEVICE void write_factors(const EncodeArgs& a, const KeySlot& slot, float n2, float n1,
                              float v2) {
  *slot.factor() =
      a.codec.geometry.vote == PKV_VOTE_GRADED ? factor_of(n2, n1, n2 == 0.0F) : gpu::kGoodFactor;
  if (a.codec.geometry.value_norm != 0) *slot.norm() = format::float_to_bf16(fsqrt_rn(v2));
}

// 3.7: the pattern of a subspace of a good key.
PKV_DEVICE void count_pattern(const Tile& tile, int32_t subspace, uint32_t pattern) {
  atomic_add(tile.occupancy + int64_t{subspace} * format::kCentroids + pattern, int32_t{1});
}

// Vectors in shared memory, 32 lanes each: every shape. Dynamic shared memory per group: dim floats
// for a vector and dim / 8 for the units of its subspaces.
template <class KeyTable>
struct SharedCoder {
  using Group = LaneGroup<32>;
  static constexpr bool kIsPolar = std::is_same_v<KeyTable, PolarTable>;
  static constexpr bool kIsWide = false;

  GroupVector v;
  float* unit;  // [dim / 8]

  static constexpr int64_t shared_floats(int32_t groups, int32_t d, int32_t dv) {
    const int64_t most = d > dv ? d : dv;
    return groups * (most + most / 8);
  }

  PKV_DEVICE SharedCoder(const EncodeArgs& a, const Tile& /*tile*/, unsigned char* memory) {
    const int32_t d = a.codec.geometry.head_dim;
    const int32_t dv = a.tiles.value_dim;
    const int32_t most = d > dv ? d : dv;
    v = {reinterpret_cast<float*>(memory) + Group::index() * (most + most / 8), 0};
    unit = v.x + most;
  }

  PKV_DEVICE void sketches(const EncodeArgs& a, const Tile& tile, const TileSketches& all,
                           uint8_t* bad) {
    v.dim = a.codec.geometry.value_dim;
    for (int32_t i = Group::index(); i < all.count; i += Group::count()) {
      const int32_t t = all.begin + i * a.codec.geometry.sketch_stride;
      const float* mu = a.codec.value_row(a.codec.params.value_center, tile.set, tile.at.head);
      load(a.values, tile, t, [mu](int j, float x) { return fsub_rn(x, mu[j]); });
      rotate(v, a.codec.value_plan, a.codec.params.value_signs_1, a.codec.params.value_signs_2);
      const float n2 = square();
      if (Group::rank() == 0) bad[t] = is_finite(n2) ? 0 : 1;
      if (!is_finite(n2)) continue;  // the key writes it
      const KeySlot slot = key_slot(a.store, tile.records, tile.position + t);
      if (a.codec.geometry.sketch_bits == 2) {
        write_sketch<Normal2Table>(a, slot, n2);
      } else {
        write_sketch<Normal4Table>(a, slot, n2);
      }
    }
  }

  PKV_DEVICE void keys(const EncodeArgs& a, const Tile& tile, uint8_t* bad) {
    for (int32_t t = Group::index(); t < tile.count; t += Group::count()) {
      const float v2 = value_square(a, tile, t);
      v.dim = a.codec.geometry.head_dim;
      const float* mu = a.codec.key_row(a.codec.params.center, tile.set, tile.at.head);
      const float* s = a.codec.key_row(a.codec.params.balance, tile.set, tile.at.head);
      load(a.keys, tile, t, [mu, s](int j, float k) { return fmul_rn(s[j], fsub_rn(k, mu[j])); });
      rotate(v, a.codec.key_plan, a.codec.params.signs_1, a.codec.params.signs_2);
      const float n2 = square();
      const KeySlot slot = key_slot(a.store, tile.records, tile.position + t);
      const bool is_bad = bad[t] != 0 || !is_finite(n2) || !is_finite(v2);
      Group::sync();  // bad[t] is read
      if (is_bad) {
        if (Group::rank() == 0) bad[t] = 1;
        write_bad(a, slot, tile.position + t, Group::rank(), Group::kLanes);
        continue;
      }
      const float n1 = fold_group(v.dim, [this](int j) { return absolute(v.x[j]); });
      if (Group::rank() == 0) write_factors(a, slot, n2, n1, v2);
      if constexpr (kIsPolar) {
        write_polar(tile, slot, n2);
      } else {
        write_scalar(a, tile, slot, n2);
      }
    }
  }

 private:
  template <class F>
  PKV_DEVICE void load(const TensorView& from, const Tile& tile, int32_t t, const F& f) const {
    const std::byte* row = from.row(tile.at.entry, tile.at.head, tile.first + t);
    v.each([&](int j, float) { return f(j, load_element(from.dtype, row, j)); });
  }
  PKV_DEVICE float square() const {
    return fold_group(v.dim, [this](int j) { return fmul_rn(v.x[j], v.x[j]); });
  }
  PKV_DEVICE float value_square(const EncodeArgs& a, const Tile& tile, int32_t t) {
    if (a.has_values == 0) return 0.0F;
    v.dim = a.codec.geometry.value_dim;
    load(a.values, tile, t, [](int, float x) { return x; });
    return square();
  }

  // One chunk of 32 elements: put(chunk, code planes, signs), for all lanes. Leaves in v the
  // products of level and magnitude.
  template <class Table, class UnitOf, class Put>
  PKV_DEVICE void quantise(const UnitOf& unit_of, const Put& put) const {
    for (int32_t c = 0; gpu::kChunkDims * c < v.dim; ++c) {
      const int32_t j = gpu::kChunkDims * c + Group::rank();
      const bool is_there = j < v.dim;
      const float y = is_there ? v.x[j] : -1.0F;
      uint32_t code = 0;
      if (is_there) {
        code = Quantiser<Table>(unit_of(j)).code(absolute(y));
        v.x[j] = fmul_rn(level_of<Table>(code), absolute(y));
      }
      uint32_t planes[Table::kPlanes];
#pragma unroll
      for (int p = 0; p < Table::kPlanes; ++p) {
        planes[p] = Group::ballot(code_bit(code, p) != 0);
      }
      put(c, planes, Group::ballot(y >= 0.0F));
    }
  }
  PKV_DEVICE float sum() const {
    return fold_group(v.dim, [this](int j) { return v.x[j]; });
  }

  // The signs and code planes of a chunk, to their places. Words behind the planes are 0.
  template <int kPlanes>
  PKV_DEVICE static void put_key_chunk(const Tile& tile, const KeySlot& slot, int32_t c,
                                       const uint32_t (&planes)[kPlanes], uint32_t signs) {
    const int32_t S = slot.layout->subspaces;
    if (tile.occupancy != nullptr && Group::rank() < 4 && 4 * c + Group::rank() < S) {
      count_pattern(tile, 4 * c + Group::rank(), (signs >> (8 * Group::rank())) & 0xffU);
    }
    if (Group::rank() != 0) return;
    reinterpret_cast<uint32_t*>(slot.signs())[c] = signs;
    Words<4> words = {{0, 0, 0, 0}};
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) words.word[p] = planes[p];
    store_words(slot.record() + c * gpu::kChunkBytes, words);
  }
  // The sign plane's words behind the last chunk.
  PKV_DEVICE static void pad_signs(const KeySlot& slot) {
    const gpu::Layout& l = *slot.layout;
    for (int32_t c = l.chunks + Group::rank(); c < l.sign_bytes / 4; c += Group::kLanes) {
      reinterpret_cast<uint32_t*>(slot.signs())[c] = 0;
    }
  }

  PKV_DEVICE void write_scalar(const EncodeArgs& a, const Tile& tile, const KeySlot& slot,
                               float n2) const {
    const float u = scalar_unit(n2, a.key_inv_sqrt);
    quantise<KeyTable>([u](int) { return u; },
                       [&](int32_t c, const uint32_t(&planes)[KeyTable::kPlanes], uint32_t signs) {
                         put_key_chunk(tile, slot, c, planes, signs);
                       });
    pad_signs(slot);
    const uint16_t w = factor_of(n2, sum(), n2 == 0.0F);
    if (Group::rank() != 0) return;
    if constexpr (KeyTable::kPlanes == 3) {
      slot.weights()[0] = w;  // its chunk's fourth word is 0 else
    } else {
      store_words(slot.weights(), Words<4>{{w, 0, 0, 0}});
    }
  }

  PKV_DEVICE void write_polar(const Tile& tile, const KeySlot& slot, float n2) const {
    const gpu::Layout& l = *slot.layout;
    Group::sync();
    for (int32_t b = Group::rank(); b < l.subspaces; b += Group::kLanes) {
      const float* y = v.x + 8 * b;
      const float rho = fsqrt_rn(fold8([y](int j) { return fmul_rn(y[j], y[j]); }));
      unit[b] = n2 == 0.0F || rho == 0.0F ? unit_of_nothing() : rho;
    }
    Group::sync();
    quantise<KeyTable>([this](int j) { return unit[j / 8]; },
                       [&](int32_t c, const uint32_t(&planes)[KeyTable::kPlanes], uint32_t signs) {
                         put_key_chunk(tile, slot, c, planes, signs);
                       });
    pad_signs(slot);
    Group::sync();
    for (int32_t b = Group::rank(); b < (l.record_bytes - l.weight) / 2; b += Group::kLanes) {
      uint16_t w = 0;
      if (b < l.subspaces && is_finite(unit[b])) {
        const float* product = v.x + 8 * b;
        const float rho = unit[b];
        const float alpha = fdiv_rn(fold8([product](int j) { return product[j]; }), rho);
        w = format::float_to_bf16(fdiv_rn(rho, alpha));
      }
      slot.weights()[b] = w;
    }
    Group::sync();  // before v is written again
  }

  template <class Table>
  PKV_DEVICE void write_sketch(const EncodeArgs& a, const KeySlot& slot, float n2) const {
    const float u = scalar_unit(n2, a.value_inv_sqrt);
    quantise<Table>([u](int) { return u; },
                    [&](int32_t c, const uint32_t(&planes)[Table::kPlanes], uint32_t signs) {
                      if (Group::rank() != 0) return;
                      Words<Table::kPlanes + 1> words;
#pragma unroll
                      for (int p = 0; p < Table::kPlanes; ++p) words.word[p] = planes[p];
                      words.word[Table::kPlanes] = signs;
                      store_words(slot.sketch() + c * a.store.layout.sketch_chunk_bytes, words);
                    });
    const uint16_t w = factor_of(n2, sum(), n2 == 0.0F);
    if (Group::rank() == 0) *slot.sketch_factor() = w;
  }
};

// Block: a tile of a row.
template <class Traits, class Coder>
PKV_KERNEL(Traits::kEncodeThreads, Coder::kIsWide ? 1 : Traits::kEncodeBlocks)
encode_tiles(EncodeArgs a) {
  struct Shared {
    uint8_t bad[Traits::kEncodeTokens];
  };
  PKV_SHARED(Shared, shared);
  PKV_DYNAMIC_SHARED(memory);
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const Tile tile = tile_of(a, row, block_x());
    if (tile.count == 0) continue;  // the whole block
    Coder coder(a, tile, memory);
#pragma unroll 1
    for (int32_t t = thread_index(); t < tile.count; t += Traits::kEncodeThreads) shared.bad[t] = 0;
    sync_block();
    const TileSketches sketches = sketches_of(a, tile);
    if (sketches.count > 0) coder.sketches(a, tile, sketches, shared.bad);
    sync_block();
    coder.keys(a, tile, shared.bad);
    sync_block();
    const TileValues values = {a.values, tile.at, tile.first, tile.position, tile.count};
    add_tile(a.tiles, a.has_values != 0, values, row, block_x(), shared.bad);
    sync_block();  // shared is read
  }
}

}  // namespace PKV_GPU_NS
