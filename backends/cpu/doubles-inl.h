// Neighbouring elements of a row as a vector of doubles, exactly. For sums in double.
#if defined(PKV_CPU_DOUBLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_DOUBLES_INL_H_
#undef PKV_CPU_DOUBLES_INL_H_
#else
#define PKV_CPU_DOUBLES_INL_H_
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

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PKV_CPU_DOUBLES_INL_H_
