// Stage rerank's inner loop: gathered records, four keys at a time against all heads of a group.
// docs/algorithm.md, section 6.1.
// Traffic per candidate and KV head, d = 128: one line of record, 2 B of factor, read at random;
// asked for kAhead candidates before their turn. Bound: that gather.
// scalar4, scalar5, exact: with u = (sign * v + 255) / 2, a byte, sum sign * v * c =
// 2 * sum u * c - 255 * sum c. All of it is done mod 2^32, where the true dot of up to 256
// coordinates fits. polar4, bounded: fp32 sums with fused products.
#include "backends/cpu/estimate.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/prefetch.h"
#include "core/format/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/estimate.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/estimate_polar-inl.h"
#include "backends/cpu/estimate_scalar-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kAhead = 128;  // candidates

HWY_INLINE void request(const Estimator& e, int32_t position) {
  const Layout& l = *e.records.layout;
  prefetch_range(e.records.record(position), l.record_bytes);
  prefetch_range(e.records.factor(position), l.factors_per_key * 2);
}

// 6.1: e limited to [-1e30, 1e30], a NaN becoming -1e30, or NaN for a bad key if asked for.
template <class D>
HWY_INLINE hn::Vec<D> limited(D d, hn::Vec<D> e, hn::Vec<D> w, BadKeys bad_keys) {
  const auto most = hn::Set(d, kEstimateLimit);
  const auto clamped = hn::Max(hn::Min(e, most), hn::Neg(most));
  const auto result = hn::IfThenElse(hn::IsNaN(e), hn::Neg(most), clamped);
  if (bad_keys == BadKeys::kLowest) return result;
  return hn::IfThenElse(hn::IsNaN(w), w, result);
}

// The records of four keys; w: their factors, of polar4 the first.
HWY_INLINE VF4 unpack(const Estimator& e, const int32_t* positions) {
  const D4<float> df;
  HWY_ALIGN float w[4];
  for (int k = 0; k < 4; ++k) {
    const uint8_t* record = e.records.record(positions[k]);
    const auto* factors = reinterpret_cast<const uint16_t*>(e.records.factor(positions[k]));
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
    return limited(d, hn::Add(hn::Div(polar_dots(e, g), hn::Set(d, e.gain)), bias), w, bad_keys);
  }
  // e = ((fp32(dot) * w) * unit_g) + b_g
  const VF4 product = hn::Mul(hn::Mul(scalar_dots(e, g), w), hn::Set(d, e.unit[g]));
  return limited(d, hn::Add(product, bias), w, bad_keys);
}

// Records of one line each, and a factor; kIsPaged: the row lies in pages.
template <bool kIsPaged>
struct Lines {
  const Estimator& e;
  const uint8_t* records;
  const uint8_t* factors;

  explicit Lines(const Estimator& estimator)
      : e(estimator), records(e.records.record(0)), factors(e.records.factor(0)) {}
  HWY_INLINE const uint8_t* record(int32_t position) const {
    return kIsPaged ? e.records.record(position) : records + int64_t{position} * kLine;
  }
  HWY_INLINE const uint8_t* factor(int32_t position) const {
    return kIsPaged ? e.records.factor(position) : factors + int64_t{position} * 2;
  }
  HWY_INLINE void request(int32_t position) const {
    prefetch(record(position));
    prefetch(factor(position));
  }
  HWY_INLINE VF4 four_factors(const int32_t* positions) const {
    const auto bits = [&](int k) HWY_ATTR {
      uint16_t factor_bits = 0;
      std::memcpy(&factor_bits, factor(positions[k]), sizeof factor_bits);
      return uint64_t{factor_bits} << 16;
    };
    const hn::FixedTag<uint64_t, 2> d64;
    const auto low = hn::Set(d64, bits(0) | bits(1) << 32);
    const auto high = hn::Set(d64, bits(2) | bits(3) << 32);
    return hn::BitCast(D4<float>(), hn::InterleaveLower(low, high));
  }
};

#if PKV_CPU_HAS_LINES

// Four heads and what their estimates need, four lanes for each, in the order of sums_of_heads;
// the last head again where there are fewer.
struct FourHeads {
  const int16_t* c[4];
  HWY_ALIGN float unit[16];
  HWY_ALIGN float bias[16];
  HWY_ALIGN int32_t offset[16];
};

void set_heads(const Estimator& e, int32_t first, FourHeads& heads) {
  constexpr int32_t kOrder[4] = {0, 2, 1, 3};
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t g = std::min(first + i, e.group - 1);
    heads.c[i] = e.c + int64_t{g} * e.padded;
    for (int32_t k = 0; k < 4; ++k) {
      const int32_t lane = 4 * kOrder[i] + k;
      heads.unit[lane] = e.unit[g];
      heads.bias[lane] = e.bias[g];
      heads.offset[lane] = static_cast<int32_t>(e.c_sums[g * kSegments]);
    }
  }
}

// The estimates of four keys with four heads: out[head * stride + key].
HWY_INLINE void estimate_four_heads(const Line (&keys)[4], const FourHeads& heads, VF w,
                                    int32_t count, BadKeys bad_keys, float* HWY_RESTRICT out,
                                    int64_t stride) {
  const DF df;
  const DI32 di;
  VI32 parts[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) parts[i] = parts_of_four(keys, heads.c[i]);
  const VI32 sums = sums_of_heads(parts[0], parts[1], parts[2], parts[3]);
  const VI32 dots = hn::Sub(hn::ShiftLeft<1>(sums), hn::Load(di, heads.offset));
  const VF product = hn::Mul(hn::Mul(hn::ConvertTo(df, dots), w), hn::Load(df, heads.unit));
  const VF result = limited(df, hn::Add(product, hn::Load(df, heads.bias)), w, bad_keys);
  const auto store = [&](int32_t head, auto x) HWY_ATTR {
    if (head < count) hn::StoreU(x, D4<float>(), out + head * stride);
  };
  const hn::FixedTag<float, 8> d8;
  const auto lower = hn::LowerHalf(d8, result);
  const auto upper = hn::UpperHalf(d8, result);
  store(0, hn::LowerHalf(D4<float>(), lower));
  store(1, hn::LowerHalf(D4<float>(), upper));
  store(2, hn::UpperHalf(D4<float>(), lower));
  store(3, hn::UpperHalf(D4<float>(), upper));
}

// Records of one line, all of whose entries stay in registers.
template <bool kIsPaged>
void estimate_lines(const Estimator& e, const int32_t* HWY_RESTRICT positions, int64_t count,
                    BadKeys bad_keys, float* HWY_RESTRICT out, int64_t stride) {
  const Lines<kIsPaged> lines(e);
  FourHeads heads[kMaxGroup / 4];
  for (int32_t g = 0; g < e.group; g += 4) set_heads(e, g, heads[g / 4]);
  for (int64_t i = 0; i < std::min(count, kAhead); ++i) lines.request(positions[i]);
  for (int64_t i = 0; i + kEstimateStep <= count; i += kEstimateStep) {
    if (i + kAhead + kEstimateStep <= count) {
      for (int64_t k = 0; k < kEstimateStep; ++k) lines.request(positions[i + kAhead + k]);
    } else {
      for (int64_t k = i + kAhead; k < count; ++k) lines.request(positions[k]);
    }
    const int32_t* p = positions + i;
    const VF w = in_all_blocks(lines.four_factors(p));
    const Line keys[4] = {load_line(lines.record(p[0])), load_line(lines.record(p[1])),
                          load_line(lines.record(p[2])), load_line(lines.record(p[3]))};
    for (int32_t g = 0; g < e.group; g += 4) {
      estimate_four_heads(keys, heads[g / 4], w, e.group - g, bad_keys, out + g * stride + i,
                          stride);
    }
  }
}

#endif

}  // namespace

void estimate_impl(const Estimator& e, const int32_t* positions, int64_t count, BadKeys bad_keys,
                   float* out, int64_t stride) {
  const D4<float> d4;
  int64_t i = 0;
#if PKV_CPU_HAS_LINES
  if (e.codec == PKV_CODEC_SCALAR4 && e.records.layout->record_bytes == kLine) {
    if (e.records.store.pages == nullptr) {
      estimate_lines<false>(e, positions, count, bad_keys, out, stride);
    } else {
      estimate_lines<true>(e, positions, count, bad_keys, out, stride);
    }
    i = count / kEstimateStep * kEstimateStep;
  }
#endif
  for (int64_t k = i; k < std::min(count, i + kAhead); ++k) request(e, positions[k]);
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

HWY_EXPORT(estimate_impl);
HWY_EXPORT(entry_order_impl);

void find_entry_order(const Estimator& estimator, int32_t* order) {
  PKV_CPU_DISPATCH(*estimator.isa, entry_order_impl)(estimator, order);
}

void estimate(const Estimator& estimator, const int32_t* positions, int64_t count, BadKeys bad_keys,
              float* out, int64_t stride) {
  PKV_CPU_DISPATCH(*estimator.isa, estimate_impl)
  (estimator, positions, count, bad_keys, out, stride);
}

}  // namespace pkv::cpu
#endif
