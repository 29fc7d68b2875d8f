// The resident layout of key records on a GPU: a piece is one KV head's run of `capacity` tokens,
// in one piece per row or one per page (core/format/pages.h). Token-major, so that a lane reads a
// key's words with one load. docs/decisions/0010-gpu-source.md says why; docs/format.md has the
// canonical planes.
//
// Areas of a piece, each aligned to 256 bytes:
//   signs     the sign plane of a key, padded with zeros to 4, 8, or a multiple of 16 bytes
//   factors   16 bits per key: the bf16 vote factor; with vote = tier 1.0. NaN: a bad key
//   records   per key chunks of 16 bytes, one for 32 dims: the words m0, m1, m2 of the first three
//             bit planes of the codes, and as fourth word
//               scalar4  in chunk 0 the bf16 factor w, else 0
//               scalar5  the word m3
//               polar4   0
//             then, behind the chunks, the factors: scalar5 one bf16, polar4 d/8 of them; padded
//             with zeros to a multiple of 16
//   norms     16 bits per key, with value_norm
//   sketches  one per sketch_stride keys: chunks for 32 dims of the value, with 4 bits the words
//             m0, m1, m2, sign, with 2 bits m0, sign
//   sketch_factors  16 bits per sketch
// Bit j % 32 of a word is dim j of its chunk, that is the canonical bytes in their order. Bits of
// dims that do not exist are 0. What lies behind the last key is undefined.
#pragma once

#include <cstdint>

#include "core/format/records.h"

namespace pkv::gpu {

inline constexpr int kChunkDims = 32;
inline constexpr int kChunkBytes = 16;
inline constexpr uint16_t kGoodFactor = 0x3f80;  // 1.0: vote = tier

PKV_HD constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct Layout {
  int32_t subspaces;     // d/8: bytes of a sign plane
  int32_t planes;        // of the codes: 3 or 4
  int32_t sign_bytes;    // from one key's signs to the next's
  int32_t record_bytes;  // from one record to the next, a multiple of 16
  int32_t chunks;        // of a record
  int32_t weight;        // where in a record its factors begin
  int32_t weights;       // how many they are
  int32_t sketch_bytes;  // from one sketch to the next; 0: no sketches
  int32_t sketch_chunks;
  int32_t sketch_chunk_bytes;
  int32_t sketch_stride;
  int64_t factors;  // where the areas begin; signs at 0
  int64_t records;
  int64_t norms;
  int64_t sketches;
  int64_t sketch_factors;
  int64_t piece_bytes;  // multiple of 256

  // Bytes from the begin of a piece to what a key has; `local` is its position in the piece.
  PKV_HD constexpr int64_t sign(int64_t local) const { return local * sign_bytes; }
  PKV_HD constexpr int64_t factor(int64_t local) const { return factors + 2 * local; }
  PKV_HD constexpr int64_t record(int64_t local) const { return records + local * record_bytes; }
  PKV_HD constexpr int64_t norm(int64_t local) const { return norms + 2 * local; }
  // `entry` = local / sketch_stride.
  PKV_HD constexpr int64_t sketch(int64_t entry) const { return sketches + entry * sketch_bytes; }
  PKV_HD constexpr int64_t sketch_factor(int64_t entry) const { return sketch_factors + 2 * entry; }
};

// The least of 4, 8, 16, 32, .. that has room for a sign plane, in multiples of 16 from there on.
PKV_HD constexpr int32_t sign_stride(int32_t bytes) {
  if (bytes <= 4) return 4;
  return bytes <= 8 ? 8 : static_cast<int32_t>(round_up(bytes, 16));
}

PKV_HD constexpr Layout make_layout(const pkv_geometry& geometry, int64_t capacity) {
  const int32_t d = geometry.head_dim;
  const int32_t dv = geometry.value_dim;
  Layout l{};
  l.subspaces = d / format::kSubspace;
  l.planes = format::code_planes(geometry.codec);
  l.sign_bytes = sign_stride(l.subspaces);
  l.chunks = (d + kChunkDims - 1) / kChunkDims;
  l.weights = format::factors_per_key(geometry);
  const bool is_scalar4 = geometry.codec == PKV_CODEC_SCALAR4;
  l.weight = is_scalar4 ? 12 : l.chunks * kChunkBytes;
  l.record_bytes = l.chunks * kChunkBytes;
  if (!is_scalar4) l.record_bytes += static_cast<int32_t>(round_up(2 * l.weights, 16));
  if (geometry.sketch_bits != 0) {
    l.sketch_stride = geometry.sketch_stride;
    l.sketch_chunks = (dv + kChunkDims - 1) / kChunkDims;
    l.sketch_chunk_bytes = 4 * geometry.sketch_bits;
    l.sketch_bytes = l.sketch_chunks * l.sketch_chunk_bytes;
  }
  const int64_t sketch_count = format::sketch_count(geometry, capacity);

  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = round_up(end + bytes, 256);
    return begin;
  };
  take(capacity * l.sign_bytes);
  l.factors = take(2 * capacity);
  l.records = take(capacity * l.record_bytes);
  l.norms = take(geometry.value_norm != 0 ? 2 * capacity : 0);
  l.sketches = take(sketch_count * l.sketch_bytes);
  l.sketch_factors = take(2 * sketch_count);
  l.piece_bytes = end;
  return l;
}

// Whether a position carries a value sketch (3.5).
PKV_HD constexpr bool has_sketch(const pkv_geometry& geometry, int64_t position) {
  return geometry.sketch_bits != 0 && position % geometry.sketch_stride == 0;
}

}  // namespace pkv::gpu
