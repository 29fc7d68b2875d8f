// Running value sums, good keys and first bad position of a call. docs/algorithm.md, section 3.7.
// Sums are in double and in ascending position. In two steps, for the same bits: pieces of a tile
// are summed side by side, then one thread per column adds the sums of the pieces in order. That is
// the sum one by one wherever no addition on the way can round: all terms are multiples of one
// power of two, and the sum of their sizes stays below 2^53 of it. Where that is not sure the
// thread adds the piece's values one by one. Values of 16 bits and like size never need it.
#pragma once

#include "backends/gpu/ahead.cuh"
#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/gpu_vec.cuh"
#include "backends/gpu/records.cuh"

namespace PKV_GPU_NS {

// The tiles of a call's rows, and what they leave in scratch.
struct Tiles {
  int32_t tokens;     // of a tile
  int32_t pieces;     // of a tile, a power of two that divides `tokens`
  int32_t value_dim;  // 0 without values
  int32_t reserved;
  int64_t count;         // of a row
  double* sums;          // [rows, count, pieces, dv] sums of the good values of a piece
  uint32_t* range;       // [rows, count, pieces, dv] ValueRange
  int32_t* good_counts;  // [rows, count]
  int32_t* first_bad;    // [rows, count] position or INT32_MAX

  PKV_HD constexpr int32_t piece_tokens() const { return tokens / pieces; }
  PKV_HD constexpr int64_t piece_row(int64_t row, int64_t tile, int32_t piece) const {
    return ((row * count + tile) * pieces + piece) * value_dim;
  }
};

// Values of a tile: token i is token first + i of the call, at position + i.
struct TileValues {
  TensorView values;
  RowIndex at;
  int64_t first;
  int64_t position;
  int32_t count;

  PKV_DEVICE const std::byte* row(int64_t i) const {
    return values.row(at.entry, at.head, first + i);
  }
};

// Bits of the sizes of values, as fp32: smallest that is not 0, and largest.
struct ValueRange {
  uint32_t least_less_one = ~0U;
  uint32_t most = 0;

  PKV_DEVICE void add(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
    least_less_one = bits - 1U < least_less_one ? bits - 1U : least_less_one;  // 0 wraps
    most = bits > most ? bits : most;
  }

  static constexpr uint32_t kNothing = ~0U;  // only zeros
  PKV_DEVICE uint32_t packed() const {
    return most == 0 ? kNothing : ((least_less_one + 1U) >> 23) | (most >> 23) << 16;
  }
};

// Good values of column j at tokens begin .. end of a tile, ascending: add(value).
template <class IsBad, class Add>
PKV_DEVICE void for_good_values(const TileValues& v, int32_t j, int32_t begin, int32_t end,
                                const IsBad& is_bad, const Add& add) {
  load_ahead(
      begin, end, [&](int64_t t) { return load_bits(v.values.dtype, v.row(t), j); },
      [&](int64_t t, uint32_t bits) {
        if (!is_bad(t)) add(value_of(v.values.dtype, bits));
      });
}

// The same of one piece, into its sum and range. A bad value counts as 0: no sum that begins at +0
// is changed by that.
template <bool kIsBf16>
PKV_DEVICE void sum_piece(const TileValues& v, int32_t j, int32_t begin, int32_t end,
                          const uint8_t* bad, double& sum, ValueRange& range) {
  load_ahead(
      begin, end,
      [&](int64_t t) {
        const std::byte* row = v.row(t);
        if constexpr (kIsBf16) return uint32_t{reinterpret_cast<const uint16_t*>(row)[j]};
        return load_bits(v.values.dtype, row, j);
      },
      [&](int64_t t, uint32_t bits) {
        const float loaded =
            kIsBf16 ? std::bit_cast<float>(bits << 16) : value_of(v.values.dtype, bits);
        const float value = bad[t] != 0 ? 0.0F : loaded;
        sum += static_cast<double>(value);
        range.add(value);
      });
}

// What a tile leaves, by all threads of the block: bad[i] says whether token i is bad.
PKV_DEVICE void add_tile(const Tiles& tiles, bool has_values, const TileValues& v, int64_t row,
                         int64_t tile, const uint8_t* bad) {
  if (has_values) {
    const int32_t dv = tiles.value_dim;
    for (int32_t i = thread_index(); i < tiles.pieces * dv; i += block_size()) {
      const int32_t piece = i / dv;
      const int32_t j = i - piece * dv;
      const int32_t begin = piece * tiles.piece_tokens();
      const int32_t behind = begin + tiles.piece_tokens();
      double sum = 0.0;
      ValueRange range;
      const int32_t end = behind < v.count ? behind : v.count;
      if (v.values.dtype == PKV_DTYPE_BF16) {
        sum_piece<true>(v, j, begin, end, bad, sum, range);
      } else {
        sum_piece<false>(v, j, begin, end, bad, sum, range);
      }
      const int64_t at = tiles.piece_row(row, tile, piece) + j;
      tiles.sums[at] = sum;
      tiles.range[at] = range.packed();
    }
  }
  using Group = LaneGroup<32>;
  if (Group::index() != Group::count() - 1) return;  // the last group: often without a column
  int32_t good = 0;
  int32_t first_bad = INT32_MAX;
  for (int32_t t = Group::rank(); t < v.count; t += Group::kLanes) {
    good += bad[t] == 0 ? 1 : 0;
    if (bad[t] != 0 && first_bad == INT32_MAX) first_bad = static_cast<int32_t>(v.position + t);
  }
  good = Group::sum(good);
  first_bad = Group::min(first_bad);
  if (Group::rank() != 0) return;
  tiles.good_counts[row * tiles.count + tile] = good;
  tiles.first_bad[row * tiles.count + tile] = first_bad;
}

// Of values: fraction bits of the dtype.
PKV_DEVICE int32_t fraction_bits(pkv_dtype dtype) {
  if (dtype == PKV_DTYPE_F32) return 23;
  return dtype == PKV_DTYPE_F16 ? 10 : 7;
}

// Whether adding up to 2^log2_count values of a packed range to `sum`, one by one, cannot round:
// with q a power of two that divides all of them, |sum| + sum |value| <= 2^53 q.
PKV_DEVICE bool is_exact(double sum, uint32_t range, int32_t fraction, int32_t log2_count) {
  const auto exponent = [](uint32_t field) { return static_cast<int32_t>(field < 1 ? 1 : field); };
  constexpr int32_t kBias = 127;
  int32_t q = exponent(range & 0xffffU) - kBias - fraction;
  int32_t top = exponent(range >> 16) - kBias + 1 + log2_count;  // sum |value| <= 2^top
  const auto bits = std::bit_cast<uint64_t>(sum);
  if (bits != 0) {
    const auto field = static_cast<int32_t>((bits >> 52) & 0x7ffU);
    if (field == 0 || field == 0x7ff) return false;  // -0 too
    const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const int32_t lowest = field - 1023 - 52 + trailing_zeros(significand);
    q = lowest < q ? lowest : q;
    const int32_t above = field - 1023 + 1;  // |sum| <= 2^above
    top = (above > top ? above : top) + 1;
  }
  return top - q <= 53;
}

struct FinishArgs {
  Tiles tiles;
  StoreView store;
  TensorView values;
  const int32_t* sequences;  // [b]
  const int64_t* starts;     // [b]
  const int64_t* counts;     // [b]
  int64_t rows;
  double* value_sums;    // [sequences * h, dv]; NULL: not wanted
  int64_t* good_counts;  // [sequences * h]
  int64_t* first_bad;    // [b, h]; NULL: not wanted
};

PKV_DEVICE void finish_counts(const FinishArgs& a, int64_t row, int64_t store_row, int64_t tiles) {
  using Group = LaneGroup<32>;
  int64_t good = 0;
  int32_t first_bad = INT32_MAX;
  for (int64_t i = Group::rank(); i < tiles; i += Group::kLanes) {
    const int64_t at = row * a.tiles.count + i;
    good += a.tiles.good_counts[at];
    first_bad = a.tiles.first_bad[at] < first_bad ? a.tiles.first_bad[at] : first_bad;
  }
  good = Group::sum(good);
  first_bad = Group::min(first_bad);
  if (Group::rank() != 0) return;
  a.good_counts[store_row] += good;
  if (a.first_bad != nullptr) a.first_bad[row] = first_bad == INT32_MAX ? -1 : first_bad;
}

// Column j of a row of `count` tokens.
PKV_DEVICE void finish_column(const FinishArgs& a, const TileValues& v, int64_t row,
                              int64_t store_row, int64_t count, int32_t j) {
  const int32_t dv = a.tiles.value_dim;
  const int32_t length = a.tiles.piece_tokens();
  const int32_t fraction = fraction_bits(a.values.dtype);
  const int32_t log2_length = significant_bits(static_cast<uint32_t>(length));
  const format::StoreRow records = a.store.row(a.sequences[v.at.entry], v.at.head);
  const int64_t pieces = (count + length - 1) / length;
  const int64_t first = a.tiles.piece_row(row, 0, 0) + j;
  double& target = a.value_sums[store_row * dv + j];
  double sum = target;
  int64_t p = 0;
  while (p < pieces) {
    double sums[kLoadAhead];
    uint32_t ranges[kLoadAhead];
#pragma unroll
    for (int i = 0; i < kLoadAhead; ++i) {
      const int64_t at = first + (p + i < pieces ? p + i : pieces - 1) * dv;
      sums[i] = a.tiles.sums[at];
      ranges[i] = a.tiles.range[at];
    }
    int done = 0;  // pieces added as a whole, up to one that is not
#pragma unroll
    for (int i = 0; i < kLoadAhead; ++i) {
      const bool is_whole = ranges[i] == ValueRange::kNothing
                                ? std::bit_cast<uint64_t>(sum) != uint64_t{1} << 63
                                : is_exact(sum, ranges[i], fraction, log2_length);
      if (done != i || p + i >= pieces || !is_whole) continue;
      sum += sums[i];
      ++done;
    }
    p += done;
    if (done == kLoadAhead || p >= pieces) continue;
    TileValues piece = v;
    piece.first = p * length;
    piece.position = v.position + piece.first;
    const int64_t left = count - piece.first;
    const auto is_bad = [&](int64_t t) {
      return is_bf16_nan(*key_slot(a.store, records, piece.position + t).factor());
    };
    for_good_values(piece, j, 0, left < length ? static_cast<int32_t>(left) : length, is_bad,
                    [&sum](float value) { sum += static_cast<double>(value); });
    ++p;
  }
  target = sum;
}

// Thread: a column of a row. The first group of the first block: the row's counts.
template <class Traits>
PKV_KERNEL(Traits::kFinishThreads)
finish_rows(FinishArgs a) {
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const RowIndex at = row_index(row, a.store.kv_heads);
    const int64_t count = a.counts[at.entry];
    const int64_t store_row = int64_t{a.sequences[at.entry]} * a.store.kv_heads + at.head;
    const TileValues values = {a.values, at, 0, a.starts[at.entry], 0};
    const int64_t j = int64_t{block_x()} * Traits::kFinishThreads + thread_index();
    if (a.value_sums != nullptr && j < a.tiles.value_dim) {
      finish_column(a, values, row, store_row, count, static_cast<int32_t>(j));
    }
    if (block_x() == 0 && thread_index() < 32) {
      finish_counts(a, row, store_row, (count + a.tiles.tokens - 1) / a.tiles.tokens);
    }
  }
}

}  // namespace PKV_GPU_NS
