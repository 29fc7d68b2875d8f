// Import and export of canonical records. docs/format.md, section 1. Exact: bytes move.
// One thread per key; not on the path of a step.
#pragma once

#include "backends/gpu/records.cuh"

namespace PKV_GPU_NS {

struct StoreArgs {
  pkv_geometry geometry;
  StoreView store;
  int64_t row;  // sequence * kv_heads + head
  int64_t begin;
  int64_t count;
  pkv_records records;  // record i is position begin + i
  int64_t first_sketch;
};

PKV_DEVICE void import_codes(const StoreArgs& a, const KeySlot& slot, int64_t i) {
  const gpu::Layout& l = a.store.layout;
  const uint8_t* codes = a.records.codes + i * l.planes * l.subspaces;
  const uint16_t* factors = a.records.factors + i * l.weights;
  const bool is_scalar4 = a.geometry.codec == PKV_CODEC_SCALAR4;
  for (int32_t c = 0; c < l.chunks; ++c) {
    Words<4> words = {{0, 0, 0, 0}};
    for (int32_t p = 0; p < l.planes; ++p) {
      words.word[p] = plane_word(codes + p * l.subspaces, l.subspaces, c);
    }
    if (is_scalar4 && c == 0) words.word[3] = factors[0];
    store_words(slot.record() + c * gpu::kChunkBytes, words);
  }
  if (is_scalar4) return;
  for (int32_t w = 0; 2 * w < l.record_bytes - l.weight; ++w) {
    slot.weights()[w] = w < l.weights ? factors[w] : uint16_t{0};
  }
}

PKV_DEVICE void export_codes(const StoreArgs& a, const KeySlot& slot, int64_t i) {
  const gpu::Layout& l = a.store.layout;
  uint8_t* codes = a.records.codes + i * l.planes * l.subspaces;
  for (int32_t c = 0; c < l.chunks; ++c) {
    const auto words = load_words<4>(slot.record() + c * gpu::kChunkBytes);
    for (int32_t p = 0; p < l.planes; ++p) {
      store_plane_word(codes + p * l.subspaces, l.subspaces, c, words.word[p]);
    }
  }
  for (int32_t w = 0; w < l.weights; ++w) a.records.factors[i * l.weights + w] = slot.weights()[w];
}

// The word of a sketch's chunk that holds code plane p; the signs are the last one.
PKV_DEVICE int32_t sketch_planes(const pkv_geometry& geometry) { return geometry.sketch_bits - 1; }

PKV_DEVICE void import_sketch(const StoreArgs& a, const KeySlot& slot, int64_t entry) {
  const gpu::Layout& l = a.store.layout;
  const int32_t bytes = a.geometry.value_dim / 8;
  const int32_t planes = sketch_planes(a.geometry);
  const uint8_t* codes = a.records.value_codes + entry * planes * bytes;
  for (int32_t c = 0; c < l.sketch_chunks; ++c) {
    auto* words = reinterpret_cast<uint32_t*>(slot.sketch() + c * l.sketch_chunk_bytes);
    for (int32_t p = 0; p < planes; ++p) words[p] = plane_word(codes + p * bytes, bytes, c);
    words[planes] = plane_word(a.records.value_signs + entry * bytes, bytes, c);
  }
  *slot.sketch_factor() = a.records.value_factors[entry];
}

PKV_DEVICE void export_sketch(const StoreArgs& a, const KeySlot& slot, int64_t entry) {
  const gpu::Layout& l = a.store.layout;
  const int32_t bytes = a.geometry.value_dim / 8;
  const int32_t planes = sketch_planes(a.geometry);
  uint8_t* codes = a.records.value_codes + entry * planes * bytes;
  for (int32_t c = 0; c < l.sketch_chunks; ++c) {
    const auto* words = reinterpret_cast<const uint32_t*>(slot.sketch() + c * l.sketch_chunk_bytes);
    for (int32_t p = 0; p < planes; ++p) store_plane_word(codes + p * bytes, bytes, c, words[p]);
    store_plane_word(a.records.value_signs + entry * bytes, bytes, c, words[planes]);
  }
  a.records.value_factors[entry] = *slot.sketch_factor();
}

PKV_DEVICE void import_key(const StoreArgs& a, int64_t position) {
  const gpu::Layout& l = a.store.layout;
  const int64_t i = position - a.begin;
  const RowIndex at = row_index(a.row, a.geometry.kv_heads);
  const KeySlot slot = key_slot(a.store, a.store.row(at.entry, at.head), position);
  const uint8_t* signs = a.records.signs + i * l.subspaces;
  for (int32_t c = 0; 4 * c < l.sign_bytes; ++c) {
    reinterpret_cast<uint32_t*>(slot.signs())[c] = plane_word(signs, l.subspaces, c);
  }
  if (a.geometry.vote == PKV_VOTE_GRADED) {
    *slot.factor() = a.records.vote_factors[i];
  } else {
    const bool is_bad = is_bf16_nan(a.records.factors[i * l.weights]);
    *slot.factor() = is_bad ? format::kBf16Nan : gpu::kGoodFactor;
  }
  import_codes(a, slot, i);
  if (a.geometry.value_norm != 0) *slot.norm() = a.records.value_norms[i];
  if (gpu::has_sketch(a.geometry, position)) {
    import_sketch(a, slot, position / a.geometry.sketch_stride - a.first_sketch);
  }
}

PKV_DEVICE void export_key(const StoreArgs& a, int64_t position) {
  const gpu::Layout& l = a.store.layout;
  const int64_t i = position - a.begin;
  const RowIndex at = row_index(a.row, a.geometry.kv_heads);
  const KeySlot slot = key_slot(a.store, a.store.row(at.entry, at.head), position);
  uint8_t* signs = a.records.signs + i * l.subspaces;
  for (int32_t c = 0; 4 * c < l.subspaces; ++c) {
    store_plane_word(signs, l.subspaces, c, reinterpret_cast<const uint32_t*>(slot.signs())[c]);
  }
  if (a.geometry.vote == PKV_VOTE_GRADED) a.records.vote_factors[i] = *slot.factor();
  export_codes(a, slot, i);
  if (a.geometry.value_norm != 0) a.records.value_norms[i] = *slot.norm();
  if (gpu::has_sketch(a.geometry, position)) {
    export_sketch(a, slot, position / a.geometry.sketch_stride - a.first_sketch);
  }
}

template <class Traits, bool kImports>
PKV_KERNEL(Traits::kStoreThreads)
convert_records(StoreArgs a) {
  const int64_t step = int64_t{grid_x()} * Traits::kStoreThreads;
  for (int64_t i = int64_t{block_x()} * Traits::kStoreThreads + thread_index(); i < a.count;
       i += step) {
    if constexpr (kImports) {
      import_key(a, a.begin + i);
    } else {
      export_key(a, a.begin + i);
    }
  }
}

}  // namespace PKV_GPU_NS
