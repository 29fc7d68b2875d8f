// Stage fetch: K and V rows at given positions, byte for byte. docs/algorithm.md, section 7.
// Traffic: every row once from where it lies, once to where it goes; bound by PCIe for host memory.
// Exact: bytes move.
// Differs from cpu_ref: a vector is one item of sixteen lanes, K and V alike, so that all reads of
// a block are under way at once.
#pragma once

#include "backends/gpu/vectors.cuh"

namespace PKV_GPU_NS {

inline constexpr int kFetchLanes = 16;

struct FetchSide {
  VectorSource source;  // [sequences, h, n, width]
  TensorView target;    // [b, h, k, width]
  int64_t bytes;        // of a vector
};

struct FetchArgs {
  FetchSide sides[2];  // K and V, as many as are wanted
  int32_t side_count;
  int32_t kv_heads;
  int32_t k;
  int64_t rows;
  const int32_t* sequences;  // [b]
  const int32_t* positions;  // [rows, k]; negative: zeros
};

// Lanes copy units of kUnit bytes; `from` NULL: zeros.
template <class Unit>
PKV_DEVICE void copy_units(std::byte* to, const std::byte* from, int64_t bytes, int lane) {
  const int64_t count = bytes / int64_t{sizeof(Unit)};
  for (int64_t i = lane; i < count; i += kFetchLanes) {
    reinterpret_cast<Unit*>(to)[i] =
        from == nullptr ? Unit{} : reinterpret_cast<const Unit*>(from)[i];
  }
}

PKV_DEVICE void copy_vector(std::byte* to, const std::byte* from, int64_t bytes, int lane) {
  const auto all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                   static_cast<uintptr_t>(bytes);
  if (all % 16 == 0) {
    copy_units<Words<4>>(to, from, bytes, lane);
  } else if (all % 4 == 0) {
    copy_units<uint32_t>(to, from, bytes, lane);
  } else if (all % 2 == 0) {
    copy_units<uint16_t>(to, from, bytes, lane);
  } else {
    copy_units<uint8_t>(to, from, bytes, lane);
  }
}

// Sixteen lanes: one vector of one side.
template <class Traits>
PKV_KERNEL(Traits::kFetchThreads)
fetch_rows(FetchArgs a) {
  constexpr int kItems = Traits::kFetchThreads / kFetchLanes;
  const int lane = thread_index() % kFetchLanes;
  const int64_t items = int64_t{a.k} * a.side_count;
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const RowIndex at = row_index(row, a.kv_heads);
    const int64_t sequence = a.sequences[at.entry];
    for (int64_t item = int64_t{block_x()} * kItems + thread_index() / kFetchLanes; item < items;
         item += int64_t{grid_x()} * kItems) {
      const FetchSide& side = a.sides[item < a.k ? 0 : 1];
      const int64_t slot = item < a.k ? item : item - a.k;
      const int32_t position = a.positions[row * a.k + slot];
      const std::byte* from =
          position < 0 ? nullptr : side.source.row(sequence, sequence, at.head).at(position);
      copy_vector(side.target.row(at.entry, at.head, slot), from, side.bytes, lane);
    }
  }
}

}  // namespace PKV_GPU_NS
