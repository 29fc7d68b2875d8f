// Where records and K/V vectors lie: the lookups that pkv_store and pkv_pages describe.
// Each view is made once per row; a lookup is then one shift (records) or one division (K/V).
// Not here: what a row holds, which each backend lays out; the tables' checks (core/pipeline).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/format/config.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::format {

// Tokens per page of a store: a power of two from this on.
inline constexpr int64_t kMinPageCapacity = 64;

// The records of one KV head of one sequence: pieces of 2^shift positions each, or a single one.
struct StoreRow {
  std::byte* base;     // in one piece: the row
  void* const* pages;  // of the sequence; NULL: in one piece
  int64_t head_bytes;  // from a page's begin to the KV head's piece
  int32_t shift;
  int64_t mask;

  // The piece that holds `position`; its layout is that of a row of store.capacity tokens.
  PKV_HD std::byte* piece(int64_t position) const {
    return pages == nullptr ? base : static_cast<std::byte*>(pages[position >> shift]) + head_bytes;
  }
  // `position` within its piece.
  PKV_HD constexpr int64_t local(int64_t position) const { return position & mask; }
  // The first position behind the piece that holds `position`.
  PKV_HD constexpr int64_t piece_end(int64_t position) const {
    return pages == nullptr ? INT64_MAX : (position | mask) + 1;
  }
};

// log2 of a power of two, from its exponent: nvcc 13 turns std::countr_zero into 64 in device code.
PKV_HD constexpr int32_t log2_of(int64_t power) {
  const auto bits = std::bit_cast<uint64_t>(static_cast<double>(power));
  return static_cast<int32_t>(bits >> 52) - 1023;
}

PKV_HD inline StoreRow store_row(const pkv_store& store, int32_t kv_heads, int64_t sequence,
                                 int32_t head) {
  StoreRow row{};
  if (store.pages == nullptr) {
    row.base = static_cast<std::byte*>(store.base) + (sequence * kv_heads + head) * store.row_bytes;
    row.shift = 63;
    row.mask = INT64_MAX;
    return row;
  }
  row.pages = store.pages + sequence * store.pages_stride;
  row.head_bytes = head * store.row_bytes;
  row.shift = log2_of(store.capacity);
  row.mask = store.capacity - 1;
  return row;
}

// K or V of one KV head of one sequence, in pages of any number of tokens.
struct TokenPages {
  const void* const* table;  // of the sequence
  int64_t head_offset;
  int64_t token_bytes;
  uint32_t page_tokens;

  // The vector at `position`.
  PKV_HD const std::byte* at(int64_t position) const {
    const auto p = static_cast<uint32_t>(position);
    const uint32_t page = p / page_tokens;
    return static_cast<const std::byte*>(table[page]) + head_offset +
           static_cast<int64_t>(p - page * page_tokens) * token_bytes;
  }
  // The first position behind the page that holds `position`.
  PKV_HD constexpr int64_t page_end(int64_t position) const {
    return position - position % page_tokens + page_tokens;
  }
};

PKV_HD constexpr TokenPages token_pages(const pkv_pages& pages, int64_t sequence, int32_t head) {
  return {pages.table + sequence * pages.table_stride, pages.offset + head * pages.head_bytes,
          pages.token_bytes, static_cast<uint32_t>(pages.page_tokens)};
}

}  // namespace pkv::format
