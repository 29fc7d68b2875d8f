// docs/algorithm.md, section 8. Bounded: fp32 with fused products.
// The sketches of a list lie anywhere and have been asked for in advance (tail.cpp). Each run of
// coordinates is summed over many of them, with the sums of four heads in registers.
#include "backends/cpu/sketches.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/prefetch.h"
#include "core/format/half.h"
#include "core/format/levels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/sketches.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlockEntries = 256;  // whose lines stay in the first cache level

// Levels by nibble: sign bit 3, magnitude bits 0..2.
HWY_ALIGN constexpr float kNibbleLevels[16] = {-11.0F,  -37.0F,  -61.0F, -87.0F, -117.0F, -151.0F,
                                               -193.0F, -255.0F, 11.0F,  37.0F,  61.0F,   87.0F,
                                               117.0F,  151.0F,  193.0F, 255.0F};

// Two vectors of levels of one sketch.
struct Levels {
  Held<VF> first;
  Held<VF> second;
};

// 4 bits: coordinates at .. of the lower half and of the upper one.
struct FourBits {
  const uint8_t* at;
  explicit FourBits(const uint8_t* sketch, int32_t /*dv*/, int64_t coordinate)
      : at(sketch + coordinate) {}
  HWY_INLINE Levels load() const {
    const DU32 du;
    const hn::Rebind<uint8_t, DU32> d8;
    const VU32 bytes = hn::PromoteTo(du, hn::LoadU(d8, at));
    return {nibble_levels(kNibbleLevels, bytes),
            nibble_levels(kNibbleLevels, hn::ShiftRight<4>(bytes))};
  }
};

// bits[coordinate ..] of a bit plane as a mask of lanes.
HWY_INLINE hn::Mask<DF> plane_mask(const uint8_t* plane, int64_t coordinate) {
  uint32_t bits = 0;  // 16 from any place in the first byte
  std::memcpy(&bits, plane + coordinate / 8, sizeof bits);
  const auto shifted = static_cast<uint16_t>(bits >> (coordinate % 8));
  const uint8_t bytes[8] = {static_cast<uint8_t>(shifted), static_cast<uint8_t>(shifted >> 8)};
  return hn::LoadMaskBits(DF(), bytes);
}

// 2 bits: coordinates at .. of the lower half and of the upper one, from two bit planes.
struct TwoBits {
  const uint8_t* sketch;
  int32_t dv;
  int64_t coordinate;
  TwoBits(const uint8_t* record, int32_t value_dim, int64_t at)
      : sketch(record), dv(value_dim), coordinate(at) {}
  HWY_INLINE VF run(int64_t begin) const {
    const DF df;
    const VF magnitude =
        hn::IfThenElse(plane_mask(sketch + dv / 8, begin), hn::Set(df, format::kNormal2Levels[1]),
                       hn::Set(df, format::kNormal2Levels[0]));
    return hn::IfThenElse(plane_mask(sketch, begin), magnitude, hn::Neg(magnitude));
  }
  HWY_INLINE Levels load() const { return {run(coordinate), run(coordinate + dv / 2)}; }
};

// Adds entries [begin, end) at coordinates `at` .. of both halves.
template <class Bits>
HWY_INLINE void add_run(const SketchList& list, int64_t begin, int64_t end, int64_t at, float* sums,
                        int64_t stride) {
  const DF df;
  Held<VF> low[kSketchHeads];
  Held<VF> high[kSketchHeads];
  for (int g = 0; g < kSketchHeads; ++g) low[g] = high[g] = hn::Zero(df);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t entry = list.entries[i];
    const Levels levels = Bits(list.records.sketch(entry), list.dv, at).load();
    const float* weights = list.weights + kSketchHeads * i;
    HWY_UNROLL(4)
    for (int g = 0; g < kSketchHeads; ++g) {
      const VF w = hn::Set(df, weights[g]);
      low[g] = hn::MulAdd(w, levels.first, low[g]);
      high[g] = hn::MulAdd(w, levels.second, high[g]);
    }
  }
  const int64_t half = list.dv / 2;
  const int64_t valid = std::min(static_cast<int64_t>(kFloats), half - at);
  for (int g = 0; g < kSketchHeads; ++g) {
    HWY_ALIGN float part[2 * kFloats];
    hn::Store(low[g], df, part);
    hn::Store(high[g], df, part + kFloats);
    float* out = sums + g * stride + at;
    for (int64_t j = 0; j < valid; ++j) {
      out[j] += part[j];
      out[half + j] += part[static_cast<int64_t>(kFloats) + j];
    }
  }
}

}  // namespace

void sum_sketches_impl(const SketchList& list, float* sums, int64_t stride) {
  for (int g = 0; g < kSketchHeads; ++g) std::fill_n(sums + g * stride, list.dv, 0.0F);
  const auto step = static_cast<int64_t>(kFloats);
  for (int64_t begin = 0; begin < list.count; begin += kBlockEntries) {
    const int64_t end = std::min(list.count, begin + kBlockEntries);
    for (int64_t at = 0; at < list.dv / 2; at += step) {
      if (list.bits == 4) {
        add_run<FourBits>(list, begin, end, at, sums, stride);
      } else {
        add_run<TwoBits>(list, begin, end, at, sums, stride);
      }
    }
  }
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(sum_sketches_impl);

void sum_sketches(const Isa& isa, const SketchList& list, float* sums, int64_t stride) {
  PKV_CPU_DISPATCH(isa, sum_sketches_impl)(list, sums, stride);
}

}  // namespace pkv::cpu
#endif
