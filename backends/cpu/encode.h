// Stage encode in pieces: a run of keys of one row of the store. docs/algorithm.md, section 3.
// Not here: how a call is cut into pieces and what it adds up (encode.cpp).
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/cpu/isa.h"
#include "backends/cpu/layout.h"
#include "backends/cpu/rows.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr int64_t kPieceKeys = 1024;

// Positions [begin, end), at most kPieceKeys of them and in no more than kPieceKeys / 64 blocks,
// all in one piece of the store's row, from whose start they count.
struct Piece {
  const pkv_codec_params* codec;
  int64_t entry;  // of the batch
  int32_t head;
  Layout layout;
  uint8_t* row;
  Rows keys;  // row 0 is the key of position `begin`
  Rows values;
  int64_t begin;
  int64_t end;
};

struct PieceResult {
  int64_t good;       // keys that are not bad
  int64_t first_bad;  // position, or -1
};

PieceResult encode_piece(const Isa& isa, const Piece& piece);

// Adds the good values of positions [begin, end), in this order, to sums[0..columns); `values` row
// 0 is position `begin`, and its column 0 that of sums[0].
void add_values(const Isa& isa, const RecordRow& records, const Rows& values, int64_t begin,
                int64_t end, int32_t columns, double* sums);

// Whether the key at a position is bad: its factors are NaN then (3.6).
inline bool is_bad(const RecordRow& records, int64_t position) {
  uint16_t factor = 0;
  std::memcpy(&factor, records.factor(position), sizeof factor);
  return (factor & 0x7fff) > 0x7f80;
}

}  // namespace pkv::cpu
