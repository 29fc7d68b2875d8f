// The kernels of stage encode. docs/algorithm.md, section 3.
// Exact: as in columns-inl.h, rotate-inl.h, quantise-inl.h.
// Differs from cpu_ref: up to 16 keys at a time, one per lane; a lane without a key repeats another
// key and is not stored; bad keys are overwritten after their batch.
// Bound: arithmetic. At d = 128, scalar4: about 35 vector instructions per coordinate and batch.
#include "backends/cpu/encode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/encode_piece.cpp"
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "backends/cpu/columns-inl.h"
#include "backends/cpu/quantise-inl.h"
#include "backends/cpu/rotate-inl.h"
#include "core/format/codec_sets.h"
#include "core/format/half.h"
#include "core/format/inv_sqrt.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

inline constexpr int kMaxDim = format::kMaxHeadDim;
inline constexpr int kMaxDwords = kMaxDim / 8 + kMaxDim / 32;  // scalar5: codes, then signs

// Lane i of a batch is item first + i; only those of [begin, end) exist.
struct Batch {
  int64_t first;
  int begin_lane;
  int end_lane;

  Batch(int64_t item, int64_t begin, int64_t end)
      : first(item),
        begin_lane(static_cast<int>(std::max(begin - item, int64_t{0}))),
        end_lane(static_cast<int>(std::min(end - item, int64_t{kLanes}))) {}

  bool is_whole() const { return begin_lane == 0 && end_lane == kLanes; }
  // Of lane i, or of the nearest that exists.
  int64_t item(int lane) const { return first + std::clamp(lane, begin_lane, end_lane - 1); }
};

// visit(batch) for the items [begin, end), batches at multiples of kLanes.
template <class Visit>
HWY_INLINE void for_each_batch(int64_t begin, int64_t end, Visit visit) {
  if (begin >= end) return;  // the first batch would have no lane to repeat
  for (int64_t item = begin / kLanes * kLanes; item < end; item += kLanes) {
    visit(Batch(item, begin, end));
  }
}

// The rows behind a batch of [.., end), as far as they exist; row 0 of `rows` is item `base`.
template <class Element>
HWY_INLINE RowPrefetch rows_behind(const Batch& batch, const Rows& rows, int64_t base, int64_t end,
                                   int dim) {
  const int64_t next = batch.first + kLanes;
  return {rows.at(next - base), rows.row_bytes, dim * Element::kBytes,
          std::clamp(end - next, int64_t{0}, int64_t{kLanes}), dim / 8};
}

// The low 16 bits of the lanes that exist, to `target` + stride bytes per lane.
HWY_INLINE void store_halves(const Batch& batch, Bits v, uint8_t* target, int64_t stride) {
  const hn::Rebind<uint16_t, BitsTag> halves;
  HWY_ALIGN uint16_t lanes[kLanes];
  hn::StoreU(hn::TruncateTo(halves, v), halves, lanes);
  if (batch.is_whole() && stride == sizeof lanes[0]) {
    std::memcpy(target, lanes, sizeof lanes);
    return;
  }
  for (int i = batch.begin_lane; i < batch.end_lane; ++i) {
    std::memcpy(target + i * stride, lanes + i, sizeof lanes[0]);
  }
}

// The lowest byte of the lanes that exist, to consecutive bytes.
HWY_INLINE void store_bytes(const Batch& batch, Bits v, uint8_t* target) {
  const hn::Rebind<uint8_t, BitsTag> bytes;
  if (batch.is_whole()) {
    hn::StoreU(hn::U8FromU32(v), bytes, target);
    return;
  }
  HWY_ALIGN uint8_t lanes[kLanes];
  hn::StoreU(hn::U8FromU32(v), bytes, lanes);
  std::memcpy(target + batch.begin_lane, lanes + batch.begin_lane,
              static_cast<size_t>(batch.end_lane - batch.begin_lane));
}

// Where rows of dwords go: lane i to base + i * stride, a lane that does not exist nowhere.
struct Targets {
  uint8_t* row[kLanes];
  HWY_ALIGN uint8_t nowhere[kMaxDwords * 4 + 16];

  Targets(const Batch& batch, uint8_t* base, int64_t stride) {
    for (int i = 0; i < kLanes; ++i) {
      const bool exists = i >= batch.begin_lane && i < batch.end_lane;
      row[i] = exists ? base + i * stride : nowhere;
    }
  }
};

// The bytes of bit kBit of each subspace, four to a dword.
template <int kBit>
HWY_INLINE void pack_bytes(const uint32_t* quads, int dim, int first, uint32_t* dwords) {
  for (int s = 0; s < dim / 8; ++s) {
    const Bits byte = hn::ShiftLeftSame(subspace_byte<kBit>(quads, dim, s), (first + s) % 4 * 8);
    uint32_t* dword = dwords + (first + s) / 4 * kLanes;
    const bool is_new = (first + s) % 4 == 0;
    hn::Store(is_new ? byte : hn::Or(hn::Load(kBits, dword), byte), kBits, dword);
  }
}

// 3.6: record 0, every factor and norm NaN.
void write_bad(const Piece& p, int64_t position) {
  const pkv_geometry& geometry = *p.codec->geometry;
  const Layout& l = p.layout;
  const uint16_t nan = format::kBf16Nan;
  for (int s = 0; s < l.subspaces; ++s) p.row[l.sign_byte(position, s)] = 0;
  std::memset(p.row + l.record(position), 0, static_cast<size_t>(l.record_bytes));
  for (int b = 0; b < l.factors_per_key; ++b) {
    std::memcpy(p.row + l.factor(position) + 2 * b, &nan, sizeof nan);
  }
  if (geometry.vote == PKV_VOTE_GRADED) {
    std::memcpy(p.row + l.vote_factor(position), &nan, sizeof nan);
  } else {
    set_bad(p.row, l, position, true);
  }
  if (geometry.value_norm != 0) std::memcpy(p.row + l.norm(position), &nan, sizeof nan);
  if (has_sketch(geometry, position)) {
    const int64_t entry = position / geometry.sketch_stride;
    std::memset(p.row + l.sketch(entry), 0, static_cast<size_t>(l.sketch_bytes));
    std::memcpy(p.row + l.sketch_factor(entry), &nan, sizeof nan);
  }
}

// What the passes over a piece know of its keys; entry i is position begin + i.
struct PieceState {
  HWY_ALIGN float v2[kPieceKeys + kLanes];  // fold(v * v), 0 without values
  bool is_bad[kPieceKeys];
};

template <class Element>
void square_values(const Piece& p, PieceState& state) {
  const int dv = p.codec->geometry->value_dim;
  HWY_ALIGN float x[kMaxDim * kLanes];
  for_each_batch(0, p.end - p.begin, [&](const Batch& batch) HWY_ATTR {
    const uint8_t* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = p.values.at(batch.item(i));
    load_raw<Element>(rows, dv, x, rows_behind<Element>(batch, p.values, 0, p.end - p.begin, dv));
    hn::Store(fold_squares(x, dv), kFloats, state.v2 + batch.first);
  });
}

// 3.2 to 3.4 of one batch of positions.
HWY_NOINLINE void write_keys(const Piece& p, const Batch& batch, Column n2, Column n1,
                             float inv_sqrt, float* y, RowPrefetch& next) {
  const pkv_geometry& geometry = *p.codec->geometry;
  const Layout& l = p.layout;
  const int d = geometry.head_dim;
  const auto is_zero = hn::RebindMask(kBits, hn::Eq(n2, hn::Zero(kFloats)));
  HWY_ALIGN uint32_t codes[kMaxDwords * kLanes];
  HWY_ALIGN uint32_t signs[kMaxDim / 8 * kLanes];
  const uint32_t* quads = codes;  // that have the sign bits
  int dwords = d / 8;
  if (geometry.codec == PKV_CODEC_POLAR4) {
    HWY_ALIGN uint32_t factors[kMaxDim / 8 * kLanes];
    code_polar(y, d, codes, factors, next);
    for (int b = 0; b < l.subspaces; ++b) {
      store_halves(batch, hn::Load(kBits, factors + b * kLanes),
                   p.row + l.factor(batch.first) + 2 * b, l.factor(1) - l.factor(0));
    }
  } else {
    Bits factor;
    if (geometry.codec == PKV_CODEC_SCALAR5) {
      factor = code_scalar<15>(kScalar5, inv_sqrt, n2, y, d, codes, signs, next);
      quads = signs;
      pack_bytes<3>(signs, d, 0, codes + dwords * kLanes);
      dwords += (l.subspaces + 3) / 4;
    } else {
      factor = code_scalar<7>(kScalar4, inv_sqrt, n2, y, d, codes, signs, next);
    }
    store_halves(batch, factor, p.row + l.factor(batch.first), 2);
  }
  for (int s = 0; s < l.subspaces; ++s) {
    store_bytes(batch, subspace_byte<3>(quads, d, s), p.row + l.sign_byte(batch.first, s));
  }
  Targets targets(batch, p.row + l.record(batch.first), l.record_bytes);
  store_rows(codes, dwords, targets.row);
  if (geometry.vote == PKV_VOTE_GRADED) {
    const Bits f = hn::IfThenZeroElse(is_zero, to_bf16(hn::Div(n2, n1)));
    store_halves(batch, f, p.row + l.vote_factor(batch.first), 2);
  } else {
    for (int i = batch.begin_lane; i < batch.end_lane; ++i) {
      set_bad(p.row, l, batch.first + i, false);
    }
  }
}

// Bit i: lane i of the batch exists and x or y is not finite there.
HWY_INLINE uint32_t not_finite(const Batch& batch, Column x, Column y) {
  const auto good = hn::And(hn::IsFinite(x), hn::IsFinite(y));
  if (hn::AllTrue(kFloats, good)) return 0;
  uint8_t bits[8] = {};
  hn::StoreMaskBits(kFloats, good, bits);
  uint32_t lanes = 0;
  std::memcpy(&lanes, bits, sizeof lanes);
  const uint32_t exist = (1U << batch.end_lane) - (1U << batch.begin_lane);
  return ~lanes & exist;
}

template <class Element>
void encode_keys(const Piece& p, PieceState& state) {
  const pkv_geometry& geometry = *p.codec->geometry;
  const int d = geometry.head_dim;
  float factor[kMaxDim];
  const float* balance = format::codec_row(*p.codec, p.codec->balance, p.entry, p.head, d);
  for (int j = 0; j < d; ++j) factor[j] = p.codec->signs_1[j] * balance[j];
  const RowRotation rotation = {d, format::rotation_plan(d, geometry.rounds),
                                format::codec_row(*p.codec, p.codec->center, p.entry, p.head, d),
                                factor, p.codec->signs_2};
  const float inv_sqrt = format::inv_sqrt(d);
  HWY_ALIGN float y[kMaxDim * kLanes];
  for_each_batch(p.begin, p.end, [&](const Batch& batch) HWY_ATTR {
    const uint8_t* rows[kLanes];
    HWY_ALIGN float v2[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      rows[i] = p.keys.at(batch.item(i) - p.begin);
      v2[i] = state.v2[batch.item(i) - p.begin];
    }
    Column n2, n1;
    rotate_rows<Element>(rotation, rows, y, n2, n1);
    const Column squares = hn::Load(kFloats, v2);
    RowPrefetch next = rows_behind<Element>(batch, p.keys, p.begin, p.end, d);
    write_keys(p, batch, n2, n1, inv_sqrt, y, next);
    if (geometry.value_norm != 0) {
      store_halves(batch, to_bf16(hn::Sqrt(squares)), p.row + p.layout.norm(batch.first), 2);
    }
    for (uint32_t bad = not_finite(batch, n2, squares); bad != 0; bad &= bad - 1) {
      const int64_t position = batch.first + __builtin_ctz(bad);
      state.is_bad[position - p.begin] = true;
      write_bad(p, position);
    }
  });
}

// 3.5. A key whose sketch is bad is bad itself, and the other way round.
template <class Element>
void encode_sketches(const Piece& p, PieceState& state) {
  const pkv_geometry& geometry = *p.codec->geometry;
  const Layout& l = p.layout;
  const int dv = geometry.value_dim;
  const int64_t stride = geometry.sketch_stride;
  const RowRotation rotation = {
      dv, format::rotation_plan(dv, 1),
      format::codec_row(*p.codec, p.codec->value_center, p.entry, p.head, dv),
      p.codec->value_signs_1, p.codec->value_signs_2};
  const float inv_sqrt = format::inv_sqrt(dv);
  const int64_t begin = format::sketch_count(geometry, p.begin);
  const int64_t end = format::sketch_count(geometry, p.end);
  HWY_ALIGN float y[kMaxDim * kLanes];
  for_each_batch(begin, end, [&](const Batch& batch) HWY_ATTR {
    const uint8_t* rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = p.values.at(batch.item(i) * stride - p.begin);
    Column n2, n1;
    rotate_rows<Element>(rotation, rows, y, n2, n1);
    HWY_ALIGN uint32_t codes[kMaxDim / 8 * kLanes];
    HWY_ALIGN uint32_t packed[kMaxDim / 8 * kLanes];
    RowPrefetch none = RowPrefetch::none();
    Targets targets(batch, p.row + l.sketch(batch.first), l.sketch_bytes);
    Bits factor;
    if (geometry.sketch_bits == 2) {
      factor = code_scalar<1>(kSketch2, inv_sqrt, n2, y, dv, codes, nullptr, none);
      pack_bytes<3>(codes, dv, 0, packed);
      pack_bytes<0>(codes, dv, dv / 8, packed);
      store_rows(packed, (2 * (dv / 8) + 3) / 4, targets.row);
    } else {
      factor = code_scalar<7>(kScalar4, inv_sqrt, n2, y, dv, codes, nullptr, none);
      store_rows(codes, dv / 8, targets.row);
    }
    store_halves(batch, factor, p.row + l.sketch_factor(batch.first), 2);
    const uint32_t bad = not_finite(batch, n2, n2);
    for (int i = batch.begin_lane; i < batch.end_lane; ++i) {
      const int64_t position = (batch.first + i) * stride;
      bool& is_bad = state.is_bad[position - p.begin];
      is_bad = is_bad || ((bad >> i) & 1) != 0;
      if (is_bad) write_bad(p, position);
    }
  });
}

void encode_piece_simd(const Piece& p, PieceResult& result) {
  PieceState state;
  const auto count = static_cast<size_t>(p.end - p.begin);
  std::memset(state.is_bad, 0, count);
  std::memset(state.v2, 0, (count + kLanes) * sizeof(float));
  if (p.values.first != nullptr) {
    with_element(p.values.dtype,
                 [&](auto element) HWY_ATTR { square_values<decltype(element)>(p, state); });
  }
  with_element(p.keys.dtype,
               [&](auto element) HWY_ATTR { encode_keys<decltype(element)>(p, state); });
  if (p.codec->geometry->sketch_bits != 0) {
    with_element(p.values.dtype,
                 [&](auto element) HWY_ATTR { encode_sketches<decltype(element)>(p, state); });
  }
  const bool* first_bad = std::find(state.is_bad, state.is_bad + count, true);
  const bool* end = state.is_bad + count;
  result.good = std::count(first_bad, end, false) + (first_bad - state.is_bad);
  result.first_bad = first_bad == end ? -1 : p.begin + (first_bad - state.is_bad);
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(encode_piece_simd);

PieceResult encode_piece(const Isa& isa, const Piece& piece) {
  PieceResult result{};
  PKV_CPU_DISPATCH(isa, encode_piece_simd)(piece, result);
  return result;
}

}  // namespace pkv::cpu
#endif  // HWY_ONCE
