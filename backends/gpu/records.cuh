// The record of one key as words, to and from its place in a piece (layout.h). Encode writes with
// these, import and export convert.
#pragma once

#include "backends/gpu/gpu_vec.cuh"
#include "backends/gpu/views.h"

namespace PKV_GPU_NS {

// One key's place.
struct KeySlot {
  std::byte* piece;
  int64_t local;
  const gpu::Layout* layout;

  PKV_DEVICE std::byte* signs() const { return piece + layout->sign(local); }
  PKV_DEVICE uint16_t* factor() const {
    return reinterpret_cast<uint16_t*>(piece + layout->factor(local));
  }
  PKV_DEVICE std::byte* record() const { return piece + layout->record(local); }
  // layout->weights of them.
  PKV_DEVICE uint16_t* weights() const {
    return reinterpret_cast<uint16_t*>(record() + layout->weight);
  }
  PKV_DEVICE uint16_t* norm() const {
    return reinterpret_cast<uint16_t*>(piece + layout->norm(local));
  }
  // Where the position has a sketch.
  PKV_DEVICE std::byte* sketch() const {
    return piece + layout->sketch(local / layout->sketch_stride);
  }
  PKV_DEVICE uint16_t* sketch_factor() const {
    return reinterpret_cast<uint16_t*>(piece +
                                       layout->sketch_factor(local / layout->sketch_stride));
  }
};

PKV_DEVICE KeySlot key_slot(const StoreView& store, const format::StoreRow& row, int64_t position) {
  return {row.piece(position), row.local(position), &store.layout};
}

// Bytes 4 * chunk .. of a canonical plane of `bytes` bytes, as a word; zeros behind its end.
PKV_DEVICE uint32_t plane_word(const uint8_t* plane, int32_t bytes, int32_t chunk) {
  uint32_t word = 0;
  for (int32_t i = 0; i < 4 && 4 * chunk + i < bytes; ++i) {
    word |= uint32_t{plane[4 * chunk + i]} << (8 * i);
  }
  return word;
}
PKV_DEVICE void store_plane_word(uint8_t* plane, int32_t bytes, int32_t chunk, uint32_t word) {
  for (int32_t i = 0; i < 4 && 4 * chunk + i < bytes; ++i) {
    plane[4 * chunk + i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

}  // namespace PKV_GPU_NS
