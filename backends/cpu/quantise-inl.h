// Magnitude codes and factors of rotated columns. docs/algorithm.md, sections 3.1, 3.4 and 3.5.
// Exact: a threshold's product is rounded once and decides; the cell that it is taken from is a
// guess, which may be off by one at a cell's edge, where there is no threshold.
#if defined(PKV_CPU_QUANTISE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_QUANTISE_INL_H
#undef PKV_CPU_QUANTISE_INL_H
#else
#define PKV_CPU_QUANTISE_INL_H
#endif

#include "backends/cpu/columns-inl.h"
#include "backends/cpu/quantiser.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

// A dword of codes: byte c belongs to coordinate c of a run of four (a quad). Its low nibble is the
// code, with up to seven thresholds bit 3 is the sign: 1 where y >= 0. The high nibble is the same
// of a second quad.
inline constexpr uint32_t kSignBit = 8;

// Below this unit the products of thresholds lose places, and cells do not fit them.
inline constexpr float kSmallestCellUnit = 0x1p-100F;

// What codes are measured in: u, its cells, and the rounded products of all thresholds.
struct Unit {
  HWY_ALIGN float u[kLanes];
  HWY_ALIGN float cells[kLanes];          // cells_per_unit / u
  HWY_ALIGN float products[15 * kLanes];  // T_i * u
};

// Without lanes for a table of 16, comparisons count.
template <int kCount>
constexpr bool has_cells() {
  return kLanes == kCells && kCount < kLanes / 2;
}

// Whether all lanes may take their codes from cells.
HWY_INLINE bool fits_cells(Column u) {
  return hn::AllTrue(kFloats, hn::Ge(u, hn::Set(kFloats, kSmallestCellUnit)));
}

template <int kCount, bool kByCells>
HWY_INLINE void fill_unit(const Quantiser& q, Column u, Unit& unit) {
  hn::Store(u, kFloats, unit.u);
  if constexpr (kByCells) {
    hn::Store(hn::Div(hn::Set(kFloats, q.cells_per_unit), u), kFloats, unit.cells);
  } else {
    for (int i = 0; i < kCount; ++i) {
      hn::Store(hn::Mul(hn::Set(kFloats, q.thresholds[i]), u), kFloats, unit.products + i * kLanes);
    }
  }
}

// Hardware takes the low four bits of an index; Highway's checked builds want no others.
HWY_INLINE Bits table_index(Bits cell) {
  return HWY_IS_DEBUG_BUILD ? hn::And(cell, hn::Set(kBits, kLanes - 1)) : cell;
}

template <class Tag>
HWY_INLINE hn::Vec<Tag> look_up(Tag tag, hn::Vec<Tag> table, Bits index) {
  return hn::TableLookupLanes(table, hn::IndicesFromVec(tag, table_index(index)));
}

// Code and level of |y|.
template <int kCount, bool kByCells>
HWY_INLINE void code_magnitude(const Quantiser& q, const Unit& unit, Column magnitude, Bits& code,
                               Column& level) {
  if constexpr (kByCells) {
    // To the nearest whole number: adding 2^23 leaves it in the low bits. Any rounding will do.
    const Column shift = hn::Set(kFloats, 0x1p23F);
    const Column guess = hn::MulAdd(magnitude, hn::Load(kFloats, unit.cells), shift);
    const Column last = hn::Set(kFloats, 0x1p23F + (kCells - 1));
    const Bits cell = hn::BitCast(kBits, hn::Min(guess, last));
    const Column threshold = look_up(kFloats, hn::LoadU(kFloats, q.cell_threshold), cell);
    const Bits base = look_up(kBits, hn::LoadU(kBits, q.cell_base), cell);
    const auto is_above =
        hn::RebindMask(kBits, hn::Lt(hn::Mul(threshold, hn::Load(kFloats, unit.u)), magnitude));
    code = hn::IfThenElse(is_above, hn::Add(base, hn::Set(kBits, 1)), base);
  } else {
    code = hn::Zero(kBits);
    for (int i = 0; i < kCount; ++i) {
      const auto is_above = hn::Lt(hn::Load(kFloats, unit.products + i * kLanes), magnitude);
      code = hn::Sub(code, hn::VecFromMask(kBits, hn::RebindMask(kBits, is_above)));
    }
  }
  if constexpr (kCount < kLanes) {
    level = look_up(kFloats, hn::LoadU(kFloats, q.levels), code);
  } else {
    level = hn::Set(kFloats, q.levels[0]);
    for (int i = 0; i < kCount; ++i) {
      const auto is_above = hn::Lt(hn::Load(kFloats, unit.products + i * kLanes), magnitude);
      level = hn::IfThenElse(is_above, hn::Set(kFloats, q.levels[i + 1]), level);
    }
  }
}

// Codes of y[0..4), each in its byte; y becomes level * |y|. The sign bits are among the codes' or,
// where these have four bits, in `signs`.
template <int kCount, bool kByCells>
HWY_INLINE void code_quad(const Quantiser& q, const Unit& unit, float* y, Bits& codes,
                          Bits& signs) {
  codes = hn::Zero(kBits);
  signs = hn::Zero(kBits);
  const auto code_one = [&](float* column, auto shift) HWY_ATTR {
    const Column value = hn::Load(kFloats, column);
    const Column magnitude = hn::Abs(value);
    Bits code;
    Column level;
    code_magnitude<kCount, kByCells>(q, unit, magnitude, code, level);
    hn::Store(hn::Mul(level, magnitude), kFloats, column);
    const auto is_positive = hn::RebindMask(kBits, hn::Ge(value, hn::Zero(kFloats)));
    constexpr int kShift = decltype(shift)::value;
    codes = hn::Or(codes, hn::ShiftLeft<kShift>(code));
    Bits& with_sign = kCount < 8 ? codes : signs;
    with_sign = hn::IfThenElse(is_positive, hn::Or(with_sign, hn::Set(kBits, kSignBit << kShift)),
                               with_sign);
  };
  code_one(y, std::integral_constant<int, 0>());
  code_one(y + kLanes, std::integral_constant<int, 8>());
  code_one(y + 2 * kLanes, std::integral_constant<int, 16>());
  code_one(y + 3 * kLanes, std::integral_constant<int, 24>());
}

// Codes 0 in the lanes of `mask`, sign bits as they are.
template <int kCount>
HWY_INLINE Bits without_codes(hn::Mask<ColumnTag> mask, Bits quad) {
  const Bits kept = hn::Set(kBits, kCount < 8 ? kSignBit * 0x01010101U : 0U);
  return hn::IfThenElse(hn::RebindMask(kBits, mask), hn::And(quad, kept), quad);
}

// Where the codes of a batch go: dim/8 dwords, with the sign bits in them or beside them.
template <int kCount>
HWY_INLINE void store_quads(Bits codes_low, Bits signs_low, Bits codes_high, Bits signs_high,
                            uint32_t* codes, uint32_t* signs) {
  hn::Store(hn::Or(codes_low, hn::ShiftLeft<4>(codes_high)), kBits, codes);
  if constexpr (kCount >= 8) {
    hn::Store(hn::Or(signs_low, hn::ShiftLeft<4>(signs_high)), kBits, signs);
  }
}

// 3.4, 3.5: codes of y[dim] with one unit, and the factor's bf16. y is overwritten.
template <int kCount, bool kByCells>
HWY_INLINE Bits code_columns(const Quantiser& q, Column n2, Column u, float* y, int dim,
                             uint32_t* codes, uint32_t* signs, RowPrefetch& next) {
  Unit unit;
  fill_unit<kCount, kByCells>(q, u, unit);
  const auto is_zero = hn::Eq(n2, hn::Zero(kFloats));
  const int half = dim / 2;
  for (int j = 0; j < half; j += 4) {
    Bits codes_low, signs_low, codes_high, signs_high;
    next.step();
    code_quad<kCount, kByCells>(q, unit, y + j * kLanes, codes_low, signs_low);
    code_quad<kCount, kByCells>(q, unit, y + (half + j) * kLanes, codes_high, signs_high);
    if constexpr (!kByCells) {
      codes_low = without_codes<kCount>(is_zero, codes_low);
      codes_high = without_codes<kCount>(is_zero, codes_high);
    }
    store_quads<kCount>(codes_low, signs_low, codes_high, signs_high, codes + j / 4 * kLanes,
                        kCount >= 8 ? signs + j / 4 * kLanes : nullptr);
  }
  const Column product = fold_each(y, dim, [](Column v) HWY_ATTR { return v; });
  return hn::IfThenZeroElse(hn::RebindMask(kBits, is_zero), to_bf16(hn::Div(n2, product)));
}

// inv_sqrt: fp32(1/sqrt(dim)).
template <int kCount>
HWY_NOINLINE Bits code_scalar(const Quantiser& q, float inv_sqrt, Column n2, float* y, int dim,
                              uint32_t* codes, uint32_t* signs, RowPrefetch& next) {
  const Column u = hn::Mul(hn::Sqrt(n2), hn::Set(kFloats, inv_sqrt));
  if constexpr (has_cells<kCount>()) {
    if (fits_cells(u)) return code_columns<kCount, true>(q, n2, u, y, dim, codes, signs, next);
  }
  return code_columns<kCount, false>(q, n2, u, y, dim, codes, signs, next);
}

// 3.4, polar4: a unit and a factor for each subspace. factors: [dim/8] columns of bf16.
template <bool kByCells>
HWY_INLINE void code_subspaces(const float* rho, float* y, int dim, uint32_t* codes,
                               uint32_t* factors, RowPrefetch& next) {
  const int half = dim / 2;
  const auto code_at = [rho, y](int j, Bits& quad, Bits& signs) HWY_ATTR {
    const Column unit_length = hn::Load(kFloats, rho + j / 8 * kLanes);
    Unit unit;
    fill_unit<7, kByCells>(kPolar, unit_length, unit);
    code_quad<7, kByCells>(kPolar, unit, y + j * kLanes, quad, signs);
    if constexpr (!kByCells) {
      quad = without_codes<7>(hn::Eq(unit_length, hn::Zero(kFloats)), quad);
    }
  };
  for (int j = 0; j < half; j += 4) {
    Bits codes_low, signs_low, codes_high, signs_high;
    next.step();
    code_at(j, codes_low, signs_low);
    code_at(half + j, codes_high, signs_high);
    store_quads<7>(codes_low, signs_low, codes_high, signs_high, codes + j / 4 * kLanes, nullptr);
  }
  for (int b = 0; b < dim / 8; ++b) {
    const Column length = hn::Load(kFloats, rho + b * kLanes);
    const Column product = fold_columns(y + 8 * b * kLanes, 8);
    const Column alpha = hn::Div(product, length);
    const auto is_zero = hn::RebindMask(kBits, hn::Eq(length, hn::Zero(kFloats)));
    hn::Store(hn::IfThenZeroElse(is_zero, to_bf16(hn::Div(length, alpha))), kBits,
              factors + b * kLanes);
  }
}

HWY_NOINLINE void code_polar(float* y, int dim, uint32_t* codes, uint32_t* factors,
                             RowPrefetch& next) {
  HWY_ALIGN float rho[format::kMaxHeadDim / 8 * kLanes];
  bool is_normal = true;
  for (int b = 0; b < dim / 8; ++b) {
    const Column length = hn::Sqrt(fold_squares(y + 8 * b * kLanes, 8));
    hn::Store(length, kFloats, rho + b * kLanes);
    is_normal = is_normal && fits_cells(length);
  }
  if constexpr (has_cells<7>()) {
    if (is_normal) return code_subspaces<true>(rho, y, dim, codes, factors, next);
  }
  code_subspaces<false>(rho, y, dim, codes, factors, next);
}

// Bit kBit of the nibbles of subspace s: a byte per lane, bit j for coordinate 8s + j. `quads`:
// dim/8 dwords as written above.
template <int kBit>
HWY_INLINE Bits subspace_byte(const uint32_t* quads, int dim, int s) {
  const int half = dim / 8;  // quads in the low nibbles
  const auto quad_bits = [quads, half](int quad) HWY_ATTR {
    const Bits v = quad < half
                       ? hn::ShiftRight<kBit>(hn::Load(kBits, quads + quad * kLanes))
                       : hn::ShiftRight<kBit + 4>(hn::Load(kBits, quads + (quad - half) * kLanes));
    return hn::And(v, hn::Set(kBits, 0x01010101U));
  };
  // Bits at 8c and 8c + 4, c < 4; the product moves them to 24 + c and 28 + c, and no two others to
  // one place.
  const Bits spread = hn::Or(quad_bits(2 * s), hn::ShiftLeft<4>(quad_bits(2 * s + 1)));
  return hn::ShiftRight<24>(hn::Mul(spread, hn::Set(kBits, 0x01020408U)));
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PKV_CPU_QUANTISE_INL_H
