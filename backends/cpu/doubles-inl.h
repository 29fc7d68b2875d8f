// Neighbouring elements of a row as a vector of doubles, exactly. For sums in double.
#if defined(PKV_CPU_DOUBLES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_DOUBLES_INL_H
#undef PKV_CPU_DOUBLES_INL_H
#else
#define PKV_CPU_DOUBLES_INL_H
#endif

#include "backends/cpu/columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

using DoubleTag = hn::CappedTag<double, 8>;  // its lanes divide 8, as all dimensions are divided
using Doubles = hn::Vec<DoubleTag>;
using HalfColumnTag = hn::Rebind<float, DoubleTag>;
inline constexpr DoubleTag kDoubles{};
inline constexpr HalfColumnTag kHalfFloats{};

// Elements j .. of a row.
template <class Element>
HWY_INLINE Doubles load_doubles(const uint8_t* row, int64_t j) {
  const uint8_t* from = row + j * Element::kBytes;
  const hn::Repartition<uint8_t, HalfColumnTag> float_bytes;
  if constexpr (Element::kBytes == 4) {
    return hn::PromoteTo(kDoubles, hn::BitCast(kHalfFloats, hn::LoadU(float_bytes, from)));
  } else {
    const hn::Rebind<uint32_t, DoubleTag> dwords;
    const hn::Rebind<uint16_t, DoubleTag> halves;
    const auto bits =
        hn::BitCast(halves, hn::LoadU(hn::Repartition<uint8_t, decltype(halves)>(), from));
    return hn::PromoteTo(kDoubles, Element::expand(kHalfFloats, hn::PromoteTo(dwords, bits)));
  }
}

// sums[j] += element j of each row, one row after another. A step of `next` per row and 4 vectors.
template <class Element>
HWY_INLINE void add_rows(const uint8_t* const* rows, int count, int32_t columns, double* sums,
                         RowPrefetch next) {
  const auto step = static_cast<int32_t>(hn::Lanes(kDoubles));
  int32_t j = 0;
  // Four sums at a time hide the additions' latency.
  for (; j + 4 * step <= columns; j += 4 * step) {
    Doubles s0 = hn::LoadU(kDoubles, sums + j);
    Doubles s1 = hn::LoadU(kDoubles, sums + j + step);
    Doubles s2 = hn::LoadU(kDoubles, sums + j + 2 * step);
    Doubles s3 = hn::LoadU(kDoubles, sums + j + 3 * step);
    for (int i = 0; i < count; ++i) {
      next.step();
      s0 = hn::Add(s0, load_doubles<Element>(rows[i], j));
      s1 = hn::Add(s1, load_doubles<Element>(rows[i], j + step));
      s2 = hn::Add(s2, load_doubles<Element>(rows[i], j + 2 * step));
      s3 = hn::Add(s3, load_doubles<Element>(rows[i], j + 3 * step));
    }
    hn::StoreU(s0, kDoubles, sums + j);
    hn::StoreU(s1, kDoubles, sums + j + step);
    hn::StoreU(s2, kDoubles, sums + j + 2 * step);
    hn::StoreU(s3, kDoubles, sums + j + 3 * step);
  }
  for (; j < columns; j += step) {
    Doubles sum = hn::LoadU(kDoubles, sums + j);
    for (int i = 0; i < count; ++i) sum = hn::Add(sum, load_doubles<Element>(rows[i], j));
    hn::StoreU(sum, kDoubles, sums + j);
  }
}

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PKV_CPU_DOUBLES_INL_H
