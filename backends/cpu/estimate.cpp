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
    std::memcpy(&bits, e.records.factor(positions[k]), sizeof bits);
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
  for (int64_t i = 0; i + kEstimateStep <= count; i += kEstimateStep) {
    for (int64_t ahead = i + kAhead; ahead < std::min(count, i + kAhead + kEstimateStep); ++ahead) {
      request(e, positions[ahead]);
    }
    const int32_t* p = positions + i;
    const VF4 w = four_factors(e, p);
    const Line k0 = load_line(e.records.record(p[0]));
    const Line k1 = load_line(e.records.record(p[1]));
    const Line k2 = load_line(e.records.record(p[2]));
    const Line k3 = load_line(e.records.record(p[3]));
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
    if (e.codec == PKV_CODEC_SCALAR4 && e.records.layout->record_bytes == kLine) {
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
