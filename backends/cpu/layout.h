// The resident layout of one row's key records, in bytes from the start of the row.
// docs/decisions/0007-cpu-record-layout.md says why; docs/format.md has the canonical planes.
//
// N is the capacity rounded up to whole blocks of 64 keys. The areas, one after another:
//   votes            N / 64 blocks: 4 groups of 16 keys, each S x 16 bytes (byte i of subspace s is
//                    the sign pattern of key 16 * group + i), then what the vote needs beside them:
//                    64 bf16 vote factors (graded), or 64 bytes of which the first 8 are a mask,
//                    bit i % 8 of byte i / 8 set where key i of the block is bad (tier)
//   records          one per key, for the rerank's gather; see `record_bytes`
//   factors          bf16, one per key, or S per key (polar4)
//   sketches         one per sketch, as scalar4's records, or with 2 bits: signs, then codes
//   sketch_factors   bf16, one per sketch
//   norms            bf16, one per key
// Every area begins at a multiple of 64. A load of up to 64 bytes that begins inside the row's
// areas stays inside the row. What lies behind the last key, or pads a record, is undefined.
#pragma once

#include <bit>
#include <cstdint>

#include "core/format/pages.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr int64_t kBlockKeys = 64;
inline constexpr int64_t kGroupKeys = 16;
inline constexpr int64_t kGroups = kBlockKeys / kGroupKeys;
inline constexpr int64_t kLine = 64;
inline constexpr uint8_t kNibbleSign = 8;  // set where y >= 0; bits 0..2 are the magnitude code

constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The stride of gathered records of `bytes` bytes: up to one line a power of two from 16 on, so
// that none lies across two lines; more take whole half lines.
constexpr int64_t gather_stride(int64_t bytes) {
  if (bytes > kLine) return round_up(bytes, kLine / 2);
  int64_t stride = 16;
  while (stride < bytes) stride *= 2;
  return stride;
}

struct Layout {
  int32_t subspaces;        // S
  int32_t factors_per_key;  // S (polar4) or 1
  int64_t tokens;           // N

  int64_t block_bytes;  // from one block of the votes to the next
  int64_t block_tail;   // in a block: where the vote factors or the mask begin

  // A record: byte i < d/2 holds coordinate i in its low nibble and coordinate i + d/2 in its high
  // one. polar4, scalar4: sign bit and 3-bit code. scalar5: 4-bit code, and from `record_signs` on
  // the d/8 bytes of the sign plane.
  int64_t records;
  int64_t record_bytes;  // from one record to the next
  int64_t record_signs;

  int64_t factors;
  int64_t sketches;
  int64_t sketch_bytes;   // from one sketch to the next; 0: no sketches
  int32_t sketch_stride;  // positions from one sketch to the next
  int64_t sketch_factors;
  int64_t norms;
  int64_t row_bytes;  // multiple of 256

  // Byte `subspace` of a key's sign plane.
  constexpr int64_t sign_byte(int64_t position, int64_t subspace) const {
    const int64_t group = position % kBlockKeys / kGroupKeys;
    return position / kBlockKeys * block_bytes + (group * subspaces + subspace) * kGroupKeys +
           position % kGroupKeys;
  }
  constexpr int64_t vote_factor(int64_t position) const {
    return position / kBlockKeys * block_bytes + block_tail + position % kBlockKeys * 2;
  }
  // The byte of the mask that has a key's bit, position % 8.
  constexpr int64_t bad_byte(int64_t position) const {
    return position / kBlockKeys * block_bytes + block_tail + position % kBlockKeys / 8;
  }
  constexpr int64_t record(int64_t position) const { return records + position * record_bytes; }
  constexpr int64_t factor(int64_t position) const {
    return factors + position * factors_per_key * 2;
  }
  // Sketches are counted: entry = position / sketch_stride.
  constexpr int64_t sketch(int64_t entry) const { return sketches + entry * sketch_bytes; }
  constexpr int64_t sketch_factor(int64_t entry) const { return sketch_factors + entry * 2; }
  constexpr int64_t norm(int64_t position) const { return norms + position * 2; }
};

constexpr Layout make_layout(const pkv_geometry& geometry, int64_t capacity) {
  const bool is_graded = geometry.vote == PKV_VOTE_GRADED;
  const int64_t half = geometry.head_dim / 2;
  const int64_t value_plane = geometry.value_dim / format::kSubspace;
  Layout l{};
  l.subspaces = geometry.head_dim / format::kSubspace;
  l.factors_per_key = format::factors_per_key(geometry);
  l.tokens = round_up(capacity, kBlockKeys);
  l.block_tail = kBlockKeys * l.subspaces;
  l.block_bytes = l.block_tail + (is_graded ? 2 * kBlockKeys : kLine);
  l.record_signs = half;
  l.sketch_stride = geometry.sketch_stride;
  l.record_bytes = gather_stride(geometry.codec == PKV_CODEC_SCALAR5 ? half + l.subspaces : half);
  if (geometry.sketch_bits != 0) {
    l.sketch_bytes = gather_stride(geometry.sketch_bits == 2 ? 2 * value_plane : 4 * value_plane);
  }
  const int64_t sketch_count = format::sketch_count(geometry, l.tokens);

  int64_t end = l.tokens / kBlockKeys * l.block_bytes;
  const auto take = [&end](int64_t bytes) {
    const int64_t begin = end;
    end = round_up(end + bytes, kLine);
    return begin;
  };
  l.records = take(l.tokens * l.record_bytes);
  l.factors = take(l.tokens * l.factors_per_key * 2);
  l.sketches = take(sketch_count * l.sketch_bytes);
  l.sketch_factors = take(sketch_count * 2);
  l.norms = take(geometry.value_norm != 0 ? l.tokens * 2 : 0);
  l.row_bytes = round_up(end + kLine, 256);
  return l;
}

// The records of one row, in one piece or in pages: each page is laid out as a row of its own.
struct RecordRow {
  format::StoreRow store;
  const Layout* layout;

  uint8_t* piece(int64_t position) const {
    return reinterpret_cast<uint8_t*>(store.piece(position));
  }
  // The block of the votes that begins with this position.
  uint8_t* block(int64_t position) const {
    return piece(position) + store.local(position) / kBlockKeys * layout->block_bytes;
  }
  uint8_t* record(int64_t position) const {
    return piece(position) + layout->record(store.local(position));
  }
  uint8_t* factor(int64_t position) const {
    return piece(position) + layout->factor(store.local(position));
  }
  uint8_t* norm(int64_t position) const {
    return piece(position) + layout->norm(store.local(position));
  }
  uint8_t* sketch(int64_t entry) const {
    return sketch_piece(entry) + layout->sketch(local_sketch(entry));
  }
  uint8_t* sketch_factor(int64_t entry) const {
    return sketch_piece(entry) + layout->sketch_factor(local_sketch(entry));
  }

 private:
  uint8_t* sketch_piece(int64_t entry) const { return piece(entry * layout->sketch_stride); }
  // Strides that divide a page are powers of two.
  int64_t local_sketch(int64_t entry) const {
    if (store.pages == nullptr) return entry;
    const auto stride = static_cast<uint32_t>(layout->sketch_stride);
    return store.local(entry * stride) >> std::countr_zero(stride);
  }
};

inline RecordRow record_row(const pkv_store& store, const Layout& layout, int32_t kv_heads,
                            int64_t sequence, int32_t kv_head) {
  return {format::store_row(store, kv_heads, sequence, kv_head), &layout};
}

// Tier: sets or clears a key's bit in the mask of its block.
inline void set_bad(uint8_t* row, const Layout& layout, int64_t position, bool is_bad) {
  uint8_t& byte = row[layout.bad_byte(position)];
  const int bit = 1 << (position % 8);
  byte = static_cast<uint8_t>(is_bad ? byte | bit : byte & ~bit);
}

// Whether a position carries a value sketch (3.5).
constexpr bool has_sketch(const pkv_geometry& geometry, int64_t position) {
  return geometry.sketch_bits != 0 && position % geometry.sketch_stride == 0;
}

}  // namespace pkv::cpu
