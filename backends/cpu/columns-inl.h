// Keys as lanes: a batch of kLanes vectors of `dim` coordinates lies in memory as dim columns, each
// one SIMD vector with a coordinate of every key. Any dim then runs through the same code, a fold
// is a tree of vector additions, and no lane meets its neighbour. docs/algorithm.md, section 0.
// Here: reading rows of f32, f16, bf16 into columns, folds, and writing columns back as rows.
// Included once per instruction set (hwy/foreach_target.h).
#if defined(PKV_CPU_COLUMNS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_COLUMNS_INL_H
#undef PKV_CPU_COLUMNS_INL_H
#else
#define PKV_CPU_COLUMNS_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "core/format/fold.h"
#include "core/format/records.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "pariskv/pariskv_types.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Batches divide a group of 16 keys.
using ColumnTag = hn::CappedTag<float, 16>;
using BitsTag = hn::RebindToUnsigned<ColumnTag>;
using Column = hn::Vec<ColumnTag>;
using Bits = hn::Vec<BitsTag>;
inline constexpr ColumnTag kFloats{};
inline constexpr BitsTag kBits{};
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(ColumnTag()));
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

// The halves of a vector. (hn::Half is a quarter of SVE's, by Highway 1.0.3's count of its lanes.)
template <class Tag>
using HalfTag = hn::FixedTag<hn::TFromD<Tag>, hn::MaxLanes(Tag()) / 2>;

// Bytes 0..15 behind offset of rows 0, 4, 8, ..: one 128-bit block per row.
template <class Tag>
HWY_INLINE hn::Vec<Tag> load_blocks(Tag tag, const uint8_t* const* rows, int64_t offset) {
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    return hn::BitCast(tag, hn::LoadU(hn::Repartition<uint8_t, Tag>(), rows[0] + offset));
  } else {
    const HalfTag<Tag> half;
    return hn::Combine(tag, load_blocks(half, rows + hn::MaxLanes(half), offset),
                       load_blocks(half, rows, offset));
  }
}

template <class Tag>
HWY_INLINE void store_blocks(Tag /*tag*/, hn::Vec<Tag> v, uint8_t* const* rows, int64_t offset) {
  if constexpr (hn::MaxLanes(Tag()) == 4) {
    const hn::Repartition<uint8_t, Tag> bytes;
    hn::StoreU(hn::BitCast(bytes, v), bytes, rows[0] + offset);
  } else {
    const HalfTag<Tag> half;
    store_blocks(half, hn::LowerHalf(half, v), rows, offset);
    store_blocks(half, hn::UpperHalf(half, v), rows + hn::MaxLanes(half), offset);
  }
}

// Block b of v_r: row 4b + r, dwords 0..3  <->  v_c: dword c of row 4b + r at lane 4b + r.
HWY_INLINE void transpose_blocks(Bits& v0, Bits& v1, Bits& v2, Bits& v3) {
  const hn::Repartition<uint64_t, BitsTag> wide;
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(kBits, v0, v1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(kBits, v2, v3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(kBits, v0, v1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(kBits, v2, v3));
  v0 = hn::BitCast(kBits, hn::InterleaveLower(wide, low01, low23));
  v1 = hn::BitCast(kBits, hn::InterleaveUpper(wide, low01, low23));
  v2 = hn::BitCast(kBits, hn::InterleaveLower(wide, high01, high23));
  v3 = hn::BitCast(kBits, hn::InterleaveUpper(wide, high01, high23));
}

// Dwords 0..3 behind offset of each row.
HWY_INLINE void load_dwords(const uint8_t* const* rows, int64_t offset, Bits& v0, Bits& v1,
                            Bits& v2, Bits& v3) {
  v0 = load_blocks(kBits, rows, offset);
  v1 = load_blocks(kBits, rows + 1, offset);
  v2 = load_blocks(kBits, rows + 2, offset);
  v3 = load_blocks(kBits, rows + 3, offset);
  transpose_blocks(v0, v1, v2, v3);
}

// Element types. Two 16-bit elements share a dword; to fp32 is exact.
struct F32 {
  static constexpr int64_t kBytes = 4;
};
struct Bf16 {
  static constexpr int64_t kBytes = 2;
  static HWY_INLINE Column low(Bits v) { return expand(kFloats, v); }
  static HWY_INLINE Column high(Bits v) {
    return hn::BitCast(kFloats, hn::And(v, hn::Set(kBits, 0xffff0000U)));
  }
  // The low half of each dword.
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> expand(Tag floats, hn::Vec<hn::RebindToUnsigned<Tag>> v) {
    return hn::BitCast(floats, hn::ShiftLeft<16>(v));
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static HWY_INLINE Column low(Bits v) {
    return expand(kFloats, hn::And(v, hn::Set(kBits, 0xffffU)));
  }
  static HWY_INLINE Column high(Bits v) { return expand(kFloats, hn::ShiftRight<16>(v)); }
  // Dwords below 2^16.
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> expand(Tag floats, hn::Vec<hn::RebindToUnsigned<Tag>> v) {
    const hn::RebindToUnsigned<Tag> bits;
    const hn::RebindToSigned<Tag> ints;
    const auto magnitude = hn::And(v, hn::Set(bits, 0x7fffU));
    const auto rebias = hn::Set(bits, 112U << 23);
    const auto rebased = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
    // Infinity and NaN: the exponent of all ones again.
    const auto normal = hn::IfThenElse(hn::Gt(magnitude, hn::Set(bits, 0x7bffU)),
                                       hn::Add(rebased, rebias), rebased);
    const auto subnormal =
        hn::Mul(hn::ConvertTo(floats, hn::BitCast(ints, magnitude)), hn::Set(floats, 0x1p-24F));
    const auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(bits, 0x400U)),
                                      hn::BitCast(bits, subnormal), normal);
    return hn::BitCast(floats, hn::Or(value, hn::ShiftLeft<16>(hn::Xor(v, magnitude))));
  }
};

// function(F32()), (F16()) or (Bf16()).
template <class Function>
HWY_INLINE void with_element(pkv_dtype dtype, Function function) {
  switch (dtype) {
    case PKV_DTYPE_F32: return function(F32());
    case PKV_DTYPE_F16: return function(F16());
    default: return function(Bf16());
  }
}

// Coordinates j .. j+7 of each row, which has elements of type Element.
template <class Element>
HWY_INLINE void load_columns(const uint8_t* const* rows, int64_t j, Column& x0, Column& x1,
                             Column& x2, Column& x3, Column& x4, Column& x5, Column& x6,
                             Column& x7) {
  Bits v0, v1, v2, v3;
  load_dwords(rows, j * Element::kBytes, v0, v1, v2, v3);
  if constexpr (Element::kBytes == 4) {
    x0 = hn::BitCast(kFloats, v0);
    x1 = hn::BitCast(kFloats, v1);
    x2 = hn::BitCast(kFloats, v2);
    x3 = hn::BitCast(kFloats, v3);
    load_dwords(rows, (j + 4) * Element::kBytes, v0, v1, v2, v3);
    x4 = hn::BitCast(kFloats, v0);
    x5 = hn::BitCast(kFloats, v1);
    x6 = hn::BitCast(kFloats, v2);
    x7 = hn::BitCast(kFloats, v3);
  } else {
    x0 = Element::low(v0);
    x1 = Element::high(v0);
    x2 = Element::low(v1);
    x3 = Element::high(v1);
    x4 = Element::low(v2);
    x5 = Element::high(v2);
    x6 = Element::low(v3);
    x7 = Element::high(v3);
  }
}

// Asks for the rows of a coming batch, some with each step of the work on this one: they are read
// across, a few bytes of each at a time, which no hardware foresees, and all at once they would
// fill the queue for missing lines.
class RowPrefetch {
 public:
  // The first used_bytes of `count` rows, in `steps` steps.
  RowPrefetch(const uint8_t* first, int64_t row_bytes, int64_t used_bytes, int64_t count,
              int64_t steps)
      : row_(first), row_bytes_(row_bytes), used_bytes_(used_bytes) {
    lines_ = (used_bytes + kLineBytes - 1) / kLineBytes * count;
    per_step_ = (lines_ + steps - 1) / steps;
  }
  static RowPrefetch none() { return {nullptr, 0, 0, 0, 1}; }

  HWY_INLINE void step() {
    for (int64_t i = std::min(per_step_, lines_); i > 0; --i) {
      hwy::Prefetch(row_ + at_);
      --lines_;
      at_ += kLineBytes;
      if (at_ >= used_bytes_) {
        at_ = 0;
        row_ += row_bytes_;
      }
    }
  }

 private:
  static constexpr int64_t kLineBytes = 64;
  const uint8_t* row_;
  int64_t row_bytes_;
  int64_t used_bytes_;
  int64_t at_ = 0;  // in the row
  int64_t lines_;   // left
  int64_t per_step_;
};

// Columns of `count` dwords to rows, 16 bytes at a time: what pads the last is 0. A row has room
// for whole 16 bytes.
HWY_MAYBE_UNUSED HWY_NOINLINE void store_rows(const uint32_t* dwords, int count,
                                              uint8_t* const* rows) {
  const auto column = [dwords, count](int w) HWY_ATTR {
    return w < count ? hn::Load(kBits, dwords + w * kLanes) : hn::Zero(kBits);
  };
  for (int w = 0; w < count; w += 4) {
    Bits v0 = column(w);
    Bits v1 = column(w + 1);
    Bits v2 = column(w + 2);
    Bits v3 = column(w + 3);
    transpose_blocks(v0, v1, v2, v3);
    store_blocks(kBits, v0, rows, 4 * w);
    store_blocks(kBits, v1, rows + 1, 4 * w);
    store_blocks(kBits, v2, rows + 2, 4 * w);
    store_blocks(kBits, v3, rows + 3, 4 * w);
  }
}

HWY_INLINE Column fold8(Column x0, Column x1, Column x2, Column x3, Column x4, Column x5, Column x6,
                        Column x7) {
  return hn::Add(hn::Add(hn::Add(x0, x4), hn::Add(x2, x6)),
                 hn::Add(hn::Add(x1, x5), hn::Add(x3, x7)));
}

// Of `size` columns, a power of two, which it overwrites.
HWY_INLINE Column fold_columns(float* x, int size) {
  const auto at = [x](int i) HWY_ATTR { return hn::Load(kFloats, x + i * kLanes); };
  while (size >= 8) {
    const int m = size / 8;
    for (int i = 0; i < m; ++i) {
      hn::Store(fold8(at(i), at(i + m), at(i + 2 * m), at(i + 3 * m), at(i + 4 * m), at(i + 5 * m),
                      at(i + 6 * m), at(i + 7 * m)),
                kFloats, x + i * kLanes);
    }
    size = m;
  }
  if (size == 4) return hn::Add(hn::Add(at(0), at(2)), hn::Add(at(1), at(3)));
  return size == 2 ? hn::Add(at(0), at(1)) : at(0);
}

// fold(f(x_j)) over `dim` columns, a multiple of 8.
template <class Function>
HWY_INLINE Column fold_each(const float* x, int dim, Function f) {
  const int m = format::fold_size(dim) / 8;
  HWY_ALIGN float part[128 * kLanes];
  const auto at = [x, dim, f](int j) HWY_ATTR {
    return j < dim ? f(hn::Load(kFloats, x + j * kLanes)) : hn::Zero(kFloats);
  };
  for (int i = 0; i < m; ++i) {
    hn::Store(fold8(at(i), at(i + m), at(i + 2 * m), at(i + 3 * m), at(i + 4 * m), at(i + 5 * m),
                    at(i + 6 * m), at(i + 7 * m)),
              kFloats, part + i * kLanes);
  }
  return fold_columns(part, m);
}

HWY_MAYBE_UNUSED HWY_NOINLINE Column fold_squares(const float* x, int dim) {
  return fold_each(x, dim, [](Column v) HWY_ATTR { return hn::Mul(v, v); });
}

// The rows' elements as they are.
template <class Element>
HWY_NOINLINE void load_raw(const uint8_t* const* rows, int dim, float* x, RowPrefetch next) {
  for (int j = 0; j < dim; j += 8) {
    next.step();
    Column x0, x1, x2, x3, x4, x5, x6, x7;
    load_columns<Element>(rows, j, x0, x1, x2, x3, x4, x5, x6, x7);
    float* out = x + j * kLanes;
    hn::Store(x0, kFloats, out);
    hn::Store(x1, kFloats, out + kLanes);
    hn::Store(x2, kFloats, out + 2 * kLanes);
    hn::Store(x3, kFloats, out + 3 * kLanes);
    hn::Store(x4, kFloats, out + 4 * kLanes);
    hn::Store(x5, kFloats, out + 5 * kLanes);
    hn::Store(x6, kFloats, out + 6 * kLanes);
    hn::Store(x7, kFloats, out + 7 * kLanes);
  }
}

// bf16 of each lane in its low 16 bits; every NaN is 0x7fc0. core/format/half.h.
HWY_INLINE Bits to_bf16(Column v) {
  const Bits bits = hn::BitCast(kBits, v);
  const Bits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBits, 1));
  const Bits rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(kBits, 0x7fff)), odd));
  return hn::IfThenElse(hn::RebindMask(kBits, hn::IsNaN(v)), hn::Set(kBits, 0x7fc0), rounded);
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PKV_CPU_COLUMNS_INL_H
