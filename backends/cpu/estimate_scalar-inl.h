// Records of scalar4 and scalar5, and their integer dots with a query. Per target.
// docs/algorithm.md, section 6.1. Exact.
#if defined(PKV_CPU_ESTIMATE_SCALAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PKV_CPU_ESTIMATE_SCALAR_INL_H
#undef PKV_CPU_ESTIMATE_SCALAR_INL_H
#else
#define PKV_CPU_ESTIMATE_SCALAR_INL_H
#endif

#include <algorithm>

#include "backends/cpu/estimate.h"
#include "backends/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr auto kChunk = static_cast<int64_t>(kVectorBytes);  // bytes of a record at a time

// scalar4 by nibble: u of sign bit 3 and magnitude bits 0..2.
HWY_ALIGN constexpr uint8_t kScalar4Bytes[16] = {122, 109, 97,  84,  69,  52,  31,  0,
                                                 133, 146, 158, 171, 186, 203, 224, 255};
// scalar5, positive sign; a negative one is 255 less that.
HWY_ALIGN constexpr uint8_t kScalar5Bytes[16] = {130, 135, 140, 145, 150, 156, 161, 167,
                                                 173, 180, 187, 195, 204, 215, 229, 250};

// Byte 2i and 2i + 1 of a chunk hold four coordinates: entries of four vectors, one per nibble.
HWY_INLINE void unpack_scalar4(const Estimator& e, const uint8_t* HWY_RESTRICT record,
                               int16_t* HWY_RESTRICT out) {
  const D8 d8;
  const D16 d16;
  const DI16 di;
  const size_t N = hn::Lanes(di);
  const auto table = hn::LoadDup128(d8, kScalar4Bytes);
  const auto nibble = hn::Set(d8, uint8_t{15});
  const auto byte = hn::Set(d16, uint16_t{255});
  for (int64_t at = 0; at < e.d / 2; at += kChunk) {
    const auto x = hn::LoadU(d8, record + at);
    const auto x_high = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x))), nibble);
    const auto low = hn::BitCast(d16, hn::TableLookupBytes(table, hn::And(x, nibble)));
    const auto high = hn::BitCast(d16, hn::TableLookupBytes(table, x_high));
    hn::Store(hn::BitCast(di, hn::And(low, byte)), di, out);
    hn::Store(hn::BitCast(di, hn::And(high, byte)), di, out + N);
    hn::Store(hn::BitCast(di, hn::ShiftRight<8>(low)), di, out + 2 * N);
    hn::Store(hn::BitCast(di, hn::ShiftRight<8>(high)), di, out + 3 * N);
    out += 4 * N;
  }
}

// The coordinate of each entry as unpack_scalar4 leaves them; -1 for padding.
HWY_INLINE void scalar4_order(int32_t d, int32_t padded, int32_t* order) {
  const auto N = static_cast<int32_t>(kVectorBytes / 2);
  for (int32_t entry = 0; entry < padded; ++entry) {
    const int32_t vector = entry / N;
    const int32_t byte =
        vector / 4 * static_cast<int32_t>(kChunk) + 2 * (entry % N) + (vector % 4) / 2;
    order[entry] = byte < d / 2 ? byte + vector % 2 * (d / 2) : -1;
  }
}

// Entries are coordinates in order.
HWY_INLINE void unpack_scalar5(const Estimator& e, const uint8_t* HWY_RESTRICT record,
                               int16_t* HWY_RESTRICT out) {
  const hn::FixedTag<uint8_t, 8> d8;
  const hn::FixedTag<uint8_t, 16> d16x8;
  const hn::FixedTag<int16_t, 8> di;
  const auto table = hn::Load(d16x8, kScalar5Bytes);
  const int32_t half = e.d / 2;
  for (int32_t j = 0; j < e.d; j += 8) {
    uint8_t codes[16];
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t at = j + i;
      codes[i] = at < half ? record[at] & 15 : record[at - half] >> 4;
      codes[i + 8] = 0;
    }
    const auto u = hn::LowerHalf(d8, hn::TableLookupBytes(table, hn::LoadU(d16x8, codes)));
    const uint8_t signs[8] = {record[e.records.layout->record_signs + j / 8]};
    const auto is_positive = hn::LoadMaskBits(d8, signs);
    const auto signed_u = hn::IfThenElse(is_positive, u, hn::Not(u));
    hn::Store(hn::PromoteTo(di, signed_u), di, out + j);
  }
}

// Lane k: the sum of u * c over entries [begin, end) of key k.
HWY_INLINE VI4 sums_of_keys(const int16_t* HWY_RESTRICT levels, int64_t padded,
                            const int16_t* HWY_RESTRICT c, int64_t begin, int64_t end) {
  const DI16 di;
  const DI32 dw;
  const auto N = static_cast<int64_t>(hn::Lanes(di));
  VI32 a0 = hn::Zero(dw);
  VI32 a1 = a0;
  VI32 a2 = a0;
  VI32 a3 = a0;
  VI32 b0 = a0;
  VI32 b1 = a0;
  VI32 b2 = a0;
  VI32 b3 = a0;
  for (int64_t j = begin; j < end; j += N) {
    const auto q = hn::Load(di, c + j);
    const auto add = [&](const int16_t* key, VI32 sum, VI32& other) HWY_ATTR {
      return hn::ReorderWidenMulAccumulate(dw, hn::Load(di, key + j), q, sum, other);
    };
    a0 = add(levels, a0, b0);
    a1 = add(levels + padded, a1, b1);
    a2 = add(levels + 2 * padded, a2, b2);
    a3 = add(levels + 3 * padded, a3, b3);
  }
  return sums_of_four<int32_t>(hn::Add(a0, b0), hn::Add(a1, b1), hn::Add(a2, b2), hn::Add(a3, b3));
}

// fp32(dot) of four keys with head g.
HWY_INLINE VF4 scalar_dots(const Estimator& e, int32_t g) {
  const D4<int32_t> d4;
  const D4<float> df;
  const int16_t* c = e.c + int64_t{g} * e.padded;
  const auto dots = [&](int32_t segment) HWY_ATTR {
    const int64_t begin = int64_t{segment} * kSegment;
    const int64_t end = std::min<int64_t>(e.padded, begin + kSegment);
    const VI4 sums = sums_of_keys(e.levels, e.padded, c, begin, end);
    const uint32_t offset = e.c_sums[g * kSegments + segment];
    return hn::Sub(hn::ShiftLeft<1>(sums), hn::Set(d4, static_cast<int32_t>(offset)));
  };
  if (e.padded <= kSegment) return hn::ConvertTo(df, dots(0));
  int64_t total[4] = {};
  for (int32_t segment = 0; segment * kSegment < e.padded; ++segment) {
    HWY_ALIGN int32_t part[4];
    hn::Store(dots(segment), d4, part);
    for (int k = 0; k < 4; ++k) total[k] += part[k];
  }
  HWY_ALIGN float rounded[4];
  for (int k = 0; k < 4; ++k) rounded[k] = static_cast<float>(total[k]);
  return hn::Load(df, rounded);
}

#undef PKV_CPU_HAS_LINES
#if HWY_CAP_GE512
#define PKV_CPU_HAS_LINES 1

// A record of one line: four vectors of 32 entries, as unpack_scalar4 leaves them.
struct Line {
  VI16 entries[4];
};

HWY_INLINE Line load_line(const uint8_t* HWY_RESTRICT record) {
  const D8 d8;
  const D16 d16;
  const DI16 di;
  const auto table = hn::LoadDup128(d8, kScalar4Bytes);
  const auto nibble = hn::Set(d8, uint8_t{15});
  const auto byte = hn::Set(d16, uint16_t{255});
  const auto x = hn::LoadU(d8, record);
  const auto x_high = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x))), nibble);
  const auto low = hn::BitCast(d16, hn::TableLookupBytes(table, hn::And(x, nibble)));
  const auto high = hn::BitCast(d16, hn::TableLookupBytes(table, x_high));
  return {{hn::BitCast(di, hn::And(low, byte)), hn::BitCast(di, hn::And(high, byte)),
           hn::BitCast(di, hn::ShiftRight<8>(low)), hn::BitCast(di, hn::ShiftRight<8>(high))}};
}

HWY_INLINE VI32 line_dot(const Line& line, const VI16 (&c)[4]) {
  const DI32 dw;
  VI32 other = hn::Zero(dw);
  VI32 sum = hn::ReorderWidenMulAccumulate(dw, line.entries[0], c[0], hn::Zero(dw), other);
  sum = hn::ReorderWidenMulAccumulate(dw, line.entries[1], c[1], sum, other);
  sum = hn::ReorderWidenMulAccumulate(dw, line.entries[2], c[2], sum, other);
  sum = hn::ReorderWidenMulAccumulate(dw, line.entries[3], c[3], sum, other);
  return hn::Add(sum, other);
}

// Lane k of each block of four: a part of the sum of u * c of key k.
HWY_INLINE VI32 parts_of_four(const Line (&keys)[4], const int16_t* HWY_RESTRICT q) {
  const DI16 di;
  const size_t N = hn::Lanes(di);
  const VI16 c[4] = {hn::Load(di, q), hn::Load(di, q + N), hn::Load(di, q + 2 * N),
                     hn::Load(di, q + 3 * N)};
  return parts_of_sums<int32_t>(line_dot(keys[0], c), line_dot(keys[1], c), line_dot(keys[2], c),
                                line_dot(keys[3], c));
}

// The sums of the parts of four heads, four lanes each: heads 0, 2, 1, 3.
HWY_INLINE VI32 sums_of_heads(VI32 x0, VI32 x1, VI32 x2, VI32 x3) {
  const DI32 d;
  const VI32 a = hn::Add(hn::ConcatLowerLower(d, x1, x0), hn::ConcatUpperUpper(d, x1, x0));
  const VI32 b = hn::Add(hn::ConcatLowerLower(d, x3, x2), hn::ConcatUpperUpper(d, x3, x2));
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}

HWY_INLINE VF in_all_blocks(VF4 x) {
  const hn::FixedTag<float, 8> d8;
  const auto half = hn::Combine(d8, x, x);
  return hn::Combine(DF(), half, half);
}

#endif

}  // namespace
}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
