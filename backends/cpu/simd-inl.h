// Vectors of at most 64 bytes, and sums across their blocks of 16 bytes. Per target.
#if defined(PKV_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_SIMD_INL_H
#undef PKV_CPU_SIMD_INL_H
#else
#define PKV_CPU_SIMD_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "backends/cpu/compress_table.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kVectorBytes = HWY_MIN(HWY_MAX_BYTES, 64);
using D8 = hn::CappedTag<uint8_t, kVectorBytes>;
using D16 = hn::CappedTag<uint16_t, kVectorBytes / 2>;
using DI16 = hn::CappedTag<int16_t, kVectorBytes / 2>;
using DI32 = hn::CappedTag<int32_t, kVectorBytes / 4>;
using DU32 = hn::CappedTag<uint32_t, kVectorBytes / 4>;
using DF = hn::CappedTag<float, kVectorBytes / 4>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
using VI16 = hn::Vec<DI16>;
using VI32 = hn::Vec<DI32>;
using VU32 = hn::Vec<DU32>;
using VF = hn::Vec<DF>;
constexpr size_t kFloats = kVectorBytes / 4;

// A vector as a member or an element, which those of SVE cannot be: they have no size.
#if HWY_TARGET == HWY_SVE_256
template <class V>
struct HeldOf;
template <>
struct HeldOf<svuint8_t> {
  typedef svuint8_t type __attribute__((arm_sve_vector_bits(256)));
};
template <>
struct HeldOf<svuint16_t> {
  typedef svuint16_t type __attribute__((arm_sve_vector_bits(256)));
};
template <>
struct HeldOf<svint32_t> {
  typedef svint32_t type __attribute__((arm_sve_vector_bits(256)));
};
template <>
struct HeldOf<svfloat32_t> {
  typedef svfloat32_t type __attribute__((arm_sve_vector_bits(256)));
};
template <class V>
using Held = typename HeldOf<V>::type;
#else
template <class V>
using Held = V;
#endif

// Values and positions of the lanes that a mask keeps, in front; `count` of them. Highway's own
// Compress, on sets without the instruction, copies its table to the stack each time (GCC 12).
constexpr bool kHasCompress = HWY_CAP_GE512 || HWY_HAVE_SCALABLE;
struct Kept {
  Held<VF> values;
  Held<VI32> positions;
  int64_t count;
};

HWY_INLINE Kept keep_lanes(VF values, VI32 positions, hn::Mask<DF> mask) {
  const DF df;
  const DI32 di;
  const auto count = static_cast<int64_t>(hn::CountTrue(df, mask));
  if constexpr (kHasCompress) {
    return {hn::Compress(values, mask), hn::Compress(positions, hn::RebindMask(di, mask)), count};
  } else {
    const DU32 du;
    const hn::Rebind<uint8_t, DU32> d8;
    uint8_t bits[8] = {};
    hn::StoreMaskBits(df, mask, bits);
    const VU32 lanes = hn::PromoteTo(du, hn::LoadU(d8, kKept[bits[0]].data()));
    const auto indices = hn::IndicesFromVec(di, lanes);
    return {hn::BitCast(df, hn::TableLookupLanes(hn::BitCast(di, values), indices)),
            hn::TableLookupLanes(positions, indices), count};
  }
}

// levels[nibble & 15] of 16 levels, the lower 8 of which are the upper 8 with the sign changed.
HWY_INLINE VF nibble_levels(const float* HWY_RESTRICT levels, VU32 nibbles) {
  const DF df;
  const DI32 di;
  const DU32 du;
  if constexpr (kFloats == 16) {
    const auto index = hn::IndicesFromVec(df, hn::And(nibbles, hn::Set(du, 15U)));
    return hn::TableLookupLanes(hn::LoadU(df, levels), index);
  } else if constexpr (kFloats == 8) {
    const auto index = hn::IndicesFromVec(df, hn::And(nibbles, hn::Set(du, 7U)));
    const VF magnitude = hn::TableLookupLanes(hn::LoadU(df, levels + 8), index);
    const VU32 sign = hn::AndNot(nibbles, hn::Set(du, 8U));  // 8 where negative
    return hn::Xor(magnitude, hn::BitCast(df, hn::ShiftLeft<28>(sign)));
  } else {
    return hn::GatherIndex(df, levels, hn::BitCast(di, hn::And(nibbles, hn::Set(du, 15U))));
  }
}

// One block of 4 numbers.
template <typename T>
using D4 = hn::FixedTag<T, 4>;
using VF4 = hn::Vec<D4<float>>;
using VI4 = hn::Vec<D4<int32_t>>;

// The sum of a vector's blocks of 4 numbers.
template <typename T>
HWY_INLINE hn::Vec<D4<T>> sum_blocks(hn::Vec<hn::CappedTag<T, kFloats>> x) {
  if constexpr (kFloats == 4) {
    return x;
  } else if constexpr (kFloats == 8) {
    const D4<T> d4;
    return hn::Add(hn::LowerHalf(d4, x), hn::UpperHalf(d4, x));
  } else {
    const D4<T> d4;
    const hn::FixedTag<T, 8> d8;
    const auto half = hn::Add(hn::LowerHalf(d8, x), hn::UpperHalf(d8, x));
    return hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
  }
}

// Lane i of each block of four: a part of the sum of all lanes of x_i.
template <typename T>
HWY_INLINE hn::Vec<hn::CappedTag<T, kFloats>> parts_of_sums(hn::Vec<hn::CappedTag<T, kFloats>> x0,
                                                            hn::Vec<hn::CappedTag<T, kFloats>> x1,
                                                            hn::Vec<hn::CappedTag<T, kFloats>> x2,
                                                            hn::Vec<hn::CappedTag<T, kFloats>> x3) {
  const hn::CappedTag<T, kFloats> d;
  const hn::CappedTag<uint64_t, kFloats / 2> d64;
  const auto s01 = hn::Add(hn::InterleaveLower(d, x0, x1), hn::InterleaveUpper(d, x0, x1));
  const auto s23 = hn::Add(hn::InterleaveLower(d, x2, x3), hn::InterleaveUpper(d, x2, x3));
  const auto lower = hn::InterleaveLower(d64, hn::BitCast(d64, s01), hn::BitCast(d64, s23));
  const auto upper = hn::InterleaveUpper(d64, hn::BitCast(d64, s01), hn::BitCast(d64, s23));
  return hn::Add(hn::BitCast(d, lower), hn::BitCast(d, upper));
}

// Lane i: the sum of all lanes of x_i.
template <typename T>
HWY_INLINE hn::Vec<D4<T>> sums_of_four(hn::Vec<hn::CappedTag<T, kFloats>> x0,
                                       hn::Vec<hn::CappedTag<T, kFloats>> x1,
                                       hn::Vec<hn::CappedTag<T, kFloats>> x2,
                                       hn::Vec<hn::CappedTag<T, kFloats>> x3) {
  return sum_blocks<T>(parts_of_sums<T>(x0, x1, x2, x3));
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
