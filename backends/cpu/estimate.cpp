// Stage rerank's inner loop: gathered records, four keys at a time against all heads of a group.
// docs/algorithm.md, section 6.1.
// Traffic per candidate and KV head, d = 128: one line of record, 2 B of factor, read at random;
// asked for kAhead candidates before their turn. Bound: that gather.
// scalar4, scalar5, exact: with u = (sign * v + 255) / 2, a byte, sum sign * v * c =
// 2 * sum u * c - 255 * sum c. All of it is done mod 2^32, where the true dot of up to 256
// coordinates fits. polar4, bounded: fp32 sums with fused products.
#include "backends/cpu/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/prefetch.h"
#include "core/format/fold.h"
#include "core/format/half.h"
#include "core/format/levels.h"
#include "core/format/rotation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/estimate.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kAhead = 128;                                 // candidates
constexpr int64_t kChunk = static_cast<int64_t>(kVectorBytes);  // bytes of a record at a time

using VF4 = hn::Vec<D4<float>>;
using VI4 = hn::Vec<D4<int32_t>>;

// scalar4 and polar4 by nibble: u of sign bit 3 and magnitude bits 0..2.
HWY_ALIGN constexpr uint8_t kScalar4Bytes[16] = {122, 109, 97,  84,  69,  52,  31,  0,
                                                 133, 146, 158, 171, 186, 203, 224, 255};
// scalar5, positive sign; a negative one is 255 less that.
HWY_ALIGN constexpr uint8_t kScalar5Bytes[16] = {130, 135, 140, 145, 150, 156, 161, 167,
                                                 173, 180, 187, 195, 204, 215, 229, 250};

HWY_INLINE void request(const Estimator& e, int32_t position) {
  const Layout& l = *e.layout;
  prefetch_range(e.base + l.record(position), l.record_bytes);
  prefetch_range(e.base + l.factor(position), l.factors_per_key * 2);
}

// ---- scalar codecs -----------------------------------------------------------------------------

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
    const uint8_t signs[8] = {record[e.layout->record_signs + j / 8]};
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

// A record of one line: four vectors of 32 entries, as unpack_scalar4 leaves them.
#if !HWY_HAVE_SCALABLE && HWY_CAP_GE512
constexpr bool kHasLines = true;
#else
constexpr bool kHasLines = false;
#endif

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

// ---- polar4 ------------------------------------------------------------------------------------

// Levels a by nibble, signed.
HWY_ALIGN constexpr std::array<float, 16> kPolarNibbles = [] {
  std::array<float, 16> levels{};
  for (size_t i = 0; i < 8; ++i) {
    levels[i] = -format::kPolarLevels[i];
    levels[i + 8] = format::kPolarLevels[i];
  }
  return levels;
}();

// w of coordinates j .. of one vector.
HWY_INLINE VF polar_factors(const uint16_t* HWY_RESTRICT factors, int32_t j) {
  const DF df;
  if constexpr (kFloats == 16) {
    const hn::Half<DF> half;
    return hn::Combine(df, hn::Set(half, format::bf16_to_float(factors[j / 8 + 1])),
                       hn::Set(half, format::bf16_to_float(factors[j / 8])));
  } else {
    return hn::Set(df, format::bf16_to_float(factors[j / 8]));
  }
}

// Entries are coordinates in order: w * sign * a.
HWY_INLINE void unpack_polar4(const Estimator& e, const uint8_t* HWY_RESTRICT record,
                              const uint16_t* HWY_RESTRICT factors, float* HWY_RESTRICT out) {
  const DF df;
  const DU32 du;
  const hn::Rebind<uint8_t, DU32> d8;
  constexpr auto kStep = static_cast<int32_t>(kFloats);
  const int32_t half = e.d / 2;
  if (half % kStep == 0 && half % 8 == 0) {  // vectors meet whole subspaces
    for (int32_t j = 0; j < half; j += kStep) {
      const VU32 bytes = hn::PromoteTo(du, hn::LoadU(d8, record + j));
      const VF low = nibble_levels(kPolarNibbles.data(), bytes);
      const VF high = nibble_levels(kPolarNibbles.data(), hn::ShiftRight<4>(bytes));
      hn::Store(hn::Mul(low, polar_factors(factors, j)), df, out + j);
      hn::StoreU(hn::Mul(high, polar_factors(factors, half + j)), df, out + half + j);
    }
    return;
  }
  for (int32_t j = 0; j < e.d; ++j) {
    const int32_t code = j < half ? record[j] & 15 : record[j - half] >> 4;
    out[j] = format::bf16_to_float(factors[j / 8]) * kPolarNibbles[static_cast<size_t>(code)];
  }
}

// Lane k: the product of key k with head g, before the gain.
HWY_INLINE VF4 polar_dots(const Estimator& e, int32_t g) {
  const DF df;
  const float* q = e.q + int64_t{g} * e.padded;
  const float* keys = e.products;
  VF a0 = hn::Zero(df);
  VF a1 = a0;
  VF a2 = a0;
  VF a3 = a0;
  for (int32_t j = 0; j < e.padded; j += static_cast<int32_t>(kFloats)) {
    const VF y = hn::Load(df, q + j);
    a0 = hn::MulAdd(y, hn::Load(df, keys + j), a0);
    a1 = hn::MulAdd(y, hn::Load(df, keys + e.padded + j), a1);
    a2 = hn::MulAdd(y, hn::Load(df, keys + 2 * e.padded + j), a2);
    a3 = hn::MulAdd(y, hn::Load(df, keys + 3 * e.padded + j), a3);
  }
  return sums_of_four<float>(a0, a1, a2, a3);
}

// ---- both --------------------------------------------------------------------------------------

// 6.1: e limited to [-1e30, 1e30], a NaN becoming -1e30, or NaN for a bad key if asked for.
HWY_INLINE VF4 limited(VF4 e, VF4 w, BadKeys bad_keys) {
  const D4<float> d;
  const auto most = hn::Set(d, kEstimateLimit);
  const auto clamped = hn::Max(hn::Min(e, most), hn::Neg(most));
  const VF4 result = hn::IfThenElse(hn::IsNaN(e), hn::Neg(most), clamped);
  if (bad_keys == BadKeys::kLowest) return result;
  return hn::IfThenElse(hn::IsNaN(w), w, result);
}

// The records of four keys; w: their factors, of polar4 the first.
HWY_INLINE VF4 unpack(const Estimator& e, const int32_t* positions) {
  const D4<float> df;
  HWY_ALIGN float w[4];
  for (int k = 0; k < 4; ++k) {
    const uint8_t* record = e.base + e.layout->record(positions[k]);
    const auto* factors =
        reinterpret_cast<const uint16_t*>(e.base + e.layout->factor(positions[k]));
    w[k] = format::bf16_to_float(factors[0]);
    if (e.codec == PKV_CODEC_POLAR4) {
      unpack_polar4(e, record, factors, e.products + int64_t{k} * e.padded);
    } else if (e.codec == PKV_CODEC_SCALAR4) {
      unpack_scalar4(e, record, e.levels + int64_t{k} * e.padded);
    } else {
      unpack_scalar5(e, record, e.levels + int64_t{k} * e.padded);
    }
  }
  return hn::Load(df, w);
}

HWY_INLINE VF4 estimate_four(const Estimator& e, int32_t g, VF4 w, BadKeys bad_keys) {
  const D4<float> d;
  const VF4 bias = hn::Set(d, e.bias[g]);
  if (e.codec == PKV_CODEC_POLAR4) {
    return limited(hn::Add(hn::Div(polar_dots(e, g), hn::Set(d, e.gain)), bias), w, bad_keys);
  }
  // e = ((fp32(dot) * w) * unit_g) + b_g
  const VF4 product = hn::Mul(hn::Mul(scalar_dots(e, g), w), hn::Set(d, e.unit[g]));
  return limited(hn::Add(product, bias), w, bad_keys);
}

HWY_INLINE VF4 four_factors(const Estimator& e, const int32_t* positions) {
  const D4<uint32_t> du;
  const auto factor = [&](int k) HWY_ATTR {
    uint16_t bits = 0;
    std::memcpy(&bits, e.base + e.layout->factor(positions[k]), sizeof bits);
    return uint64_t{bits} << 16;
  };
  const hn::FixedTag<uint64_t, 2> d64;
  const auto low = hn::Set(d64, factor(0) | factor(1) << 32);
  const auto high = hn::Set(d64, factor(2) | factor(3) << 32);
  return hn::BitCast(D4<float>(), hn::BitCast(du, hn::InterleaveLower(d64, low, high)));
}

// Records of one line, all of whose entries stay in registers.
void estimate_lines(const Estimator& e, const int32_t* HWY_RESTRICT positions, int64_t count,
                    BadKeys bad_keys, float* HWY_RESTRICT out, int64_t stride) {
  const DI16 di;
  const D4<int32_t> d4;
  const D4<float> df;
  const uint8_t* records = e.base + e.layout->records;
  for (int64_t i = 0; i + kEstimateStep <= count; i += kEstimateStep) {
    for (int64_t ahead = i + kAhead; ahead < std::min(count, i + kAhead + kEstimateStep); ++ahead) {
      request(e, positions[ahead]);
    }
    const int32_t* p = positions + i;
    const VF4 w = four_factors(e, p);
    const Line k0 = load_line(records + int64_t{p[0]} * kLine);
    const Line k1 = load_line(records + int64_t{p[1]} * kLine);
    const Line k2 = load_line(records + int64_t{p[2]} * kLine);
    const Line k3 = load_line(records + int64_t{p[3]} * kLine);
    for (int32_t g = 0; g < e.group; ++g) {
      const int16_t* q = e.c + int64_t{g} * e.padded;
      const size_t N = hn::Lanes(di);
      const VI16 c[4] = {hn::Load(di, q), hn::Load(di, q + N), hn::Load(di, q + 2 * N),
                         hn::Load(di, q + 3 * N)};
      const VI4 sums =
          sums_of_four<int32_t>(line_dot(k0, c), line_dot(k1, c), line_dot(k2, c), line_dot(k3, c));
      const auto offset = static_cast<int32_t>(e.c_sums[g * kSegments]);
      const VI4 dots = hn::Sub(hn::ShiftLeft<1>(sums), hn::Set(d4, offset));
      const VF4 product = hn::Mul(hn::Mul(hn::ConvertTo(df, dots), w), hn::Set(df, e.unit[g]));
      hn::StoreU(limited(hn::Add(product, hn::Set(df, e.bias[g])), w, bad_keys), df,
                 out + g * stride + i);
    }
  }
}

}  // namespace

void estimate_impl(const Estimator& e, const int32_t* positions, int64_t count, BadKeys bad_keys,
                   float* out, int64_t stride) {
  const D4<float> d4;
  for (int64_t i = 0; i < std::min(count, kAhead); ++i) request(e, positions[i]);
  int64_t i = 0;
  if constexpr (kHasLines) {
    if (e.codec == PKV_CODEC_SCALAR4 && e.layout->record_bytes == kLine) {
      estimate_lines(e, positions, count, bad_keys, out, stride);
      i = count / kEstimateStep * kEstimateStep;
    }
  }
  for (; i + kEstimateStep <= count; i += kEstimateStep) {
    for (int64_t ahead = i + kAhead; ahead < std::min(count, i + kAhead + kEstimateStep); ++ahead) {
      request(e, positions[ahead]);
    }
    const VF4 w = unpack(e, positions + i);
    for (int32_t g = 0; g < e.group; ++g) {
      hn::StoreU(estimate_four(e, g, w, bad_keys), d4, out + g * stride + i);
    }
  }
  if (i == count) return;
  int32_t rest[kEstimateStep];  // the last one again where there are fewer
  for (int64_t k = 0; k < kEstimateStep; ++k) rest[k] = positions[std::min(i + k, count - 1)];
  const VF4 w = unpack(e, rest);
  for (int32_t g = 0; g < e.group; ++g) {
    HWY_ALIGN float estimates[kEstimateStep];
    hn::Store(estimate_four(e, g, w, bad_keys), d4, estimates);
    std::copy_n(estimates, count - i, out + g * stride + i);
  }
}

// order [padded]: the coordinate of each entry of a record, -1 for none.
void entry_order_impl(const Estimator& e, int32_t* order) {
  if (e.codec == PKV_CODEC_SCALAR4) {
    scalar4_order(e.d, e.padded, order);
    return;
  }
  for (int32_t entry = 0; entry < e.padded; ++entry) order[entry] = entry < e.d ? entry : -1;
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {
namespace {

HWY_EXPORT(estimate_impl);
HWY_EXPORT(entry_order_impl);

constexpr int32_t kPaddedMost = 640;

// rint for |x| < 2^22: the addition rounds to a whole number, ties to even.
float rint_small(float x) {
  constexpr float kShift = 0x1.8p23F;
  return (x + kShift) - kShift;
}

// M_g, c_g,j and unit_g
void prepare_scalar(const float* y, int32_t g, const int32_t* order, Estimator& e) {
  float M = 0.0F;
  for (int32_t j = 0; j < e.d; ++j) M = std::max(M, std::fabs(y[j]));
  int16_t rounded[kPaddedMost];
  for (int32_t j = 0; j < e.d; ++j) {
    rounded[j] = M == 0.0F ? int16_t{0} : static_cast<int16_t>(rint_small((32512.0F * y[j]) / M));
  }
  int16_t* c = e.c + int64_t{g} * e.padded;
  uint32_t* sums = e.c_sums + int64_t{g} * kSegments;
  std::fill_n(sums, kSegments, 0U);
  for (int32_t entry = 0; entry < e.padded; ++entry) {
    c[entry] = order[entry] < 0 ? int16_t{0} : rounded[order[entry]];
    sums[entry / kSegment] += static_cast<uint32_t>(int32_t{255} * c[entry]);
  }
  e.unit[g] = (M / 32512.0F) / e.gain;
}

}  // namespace

Estimator take_estimator(Scratch& scratch, const Isa& isa, const pkv_geometry& geometry,
                         int32_t query_heads) {
  Estimator e{};
  e.isa = &isa;
  e.codec = geometry.codec;
  e.d = geometry.head_dim;
  e.group = query_heads / geometry.kv_heads;
  e.padded = static_cast<int32_t>(round_up(e.d, 128));
  e.gain = format::rotation_plan(e.d, geometry.rounds).gain;
  const int64_t entries = int64_t{e.group} * e.padded;
  if (e.codec == PKV_CODEC_POLAR4) {
    e.q = scratch.take<float>(entries);
    e.products = scratch.take<float>(int64_t{kEstimateStep} * e.padded);
  } else {
    e.c = scratch.take<int16_t>(entries);
    e.c_sums = scratch.take<uint32_t>(int64_t{e.group} * kSegments);
    e.levels = scratch.take<int16_t>(int64_t{kEstimateStep} * e.padded);
  }
  e.unit = scratch.take<float>(e.group);
  e.bias = scratch.take<float>(e.group);
  return e;
}

void prepare_estimator(const pkv_codec_params& codec, const RowQuery& query, int32_t kv_head,
                       const uint8_t* base, const Layout& layout, Estimator& e) {
  e.base = base;
  e.layout = &layout;
  const float* mu = codec.center + int64_t{kv_head} * e.d;
  int32_t order[kPaddedMost];
  PKV_CPU_DISPATCH(*e.isa, entry_order_impl)(e, order);
  const bool is_polar = e.codec == PKV_CODEC_POLAR4;
  if (is_polar) {
    std::fill_n(e.products, int64_t{kEstimateStep} * e.padded, 0.0F);
  } else {
    std::fill_n(e.levels, int64_t{kEstimateStep} * e.padded, int16_t{0});
  }
  for (int32_t g = 0; g < e.group; ++g) {
    const float* raw = query.raw + int64_t{g} * e.d;
    const float* y = query.heads + int64_t{g} * e.d;
    // b_g = fold(q_g,j * mu_j), of the raw query
    e.bias[g] = format::fold_each(e.d, [&](int j) { return raw[j] * mu[j]; });
    if (is_polar) {
      float* q = e.q + int64_t{g} * e.padded;
      std::copy_n(y, e.d, q);
      std::fill(q + e.d, q + e.padded, 0.0F);
    } else {
      prepare_scalar(y, g, order, e);
    }
  }
}

void estimate(const Estimator& estimator, const int32_t* positions, int64_t count, BadKeys bad_keys,
              float* out, int64_t stride) {
  PKV_CPU_DISPATCH(*estimator.isa, estimate_impl)
  (estimator, positions, count, bad_keys, out, stride);
}

}  // namespace pkv::cpu
#endif
