// docs/algorithm.md, section 8; docs/numerics.md, section 3.
// Per block of 64 rows and 4 heads: dots (4 rows x 4 heads in registers), softmax against the
// running maximum, weighted values. K and V are read once from memory, again from the first cache
// level for groups of more than 4 heads. Bounded: fp32 with fused products, sums of weights in
// double.
#include "backends/cpu/attend_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/layout.h"
#include "backends/cpu/prefetch.h"
#include "backends/cpu/tensor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attend_block.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kPair = static_cast<int64_t>(2 * kFloats);  // elements unpacked at once

struct Pair {
  Held<VF> first;
  Held<VF> second;
};

// kPair elements of a row.
template <pkv_dtype kType>
HWY_INLINE Pair load_pair(const std::byte* row) {
  const DF df;
  if constexpr (kType == PKV_DTYPE_F32) {
    const auto* x = reinterpret_cast<const float*>(row);
    return {hn::LoadU(df, x), hn::LoadU(df, x + kFloats)};
  } else if constexpr (kType == PKV_DTYPE_BF16) {  // split order: even elements, odd elements
    const D8 d8;
    const DU32 du;
    const VU32 x = hn::BitCast(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row)));
    return {hn::BitCast(df, hn::ShiftLeft<16>(x)),
            hn::BitCast(df, hn::And(x, hn::Set(du, 0xffff0000U)))};
  } else {
    const hn::Rebind<hwy::float16_t, DF> dh;
    const auto* x = reinterpret_cast<const hwy::float16_t*>(row);
    return {hn::PromoteTo(df, hn::LoadU(dh, x)), hn::PromoteTo(df, hn::LoadU(dh, x + kFloats))};
  }
}

template <pkv_dtype kType>
constexpr int64_t kBytes = kType == PKV_DTYPE_F32 ? 4 : 2;

// The last `count` < kPair elements of a row, then zeros.
template <pkv_dtype kType>
HWY_INLINE Pair load_rest(const std::byte* row, int64_t count) {
  HWY_ALIGN std::byte rest[kPair * kBytes<kType>] = {};
  std::memcpy(rest, row, static_cast<size_t>(count * kBytes<kType>));
  return load_pair<kType>(rest);
}

// Logits of four rows with kHeads heads: weights[head * kBlockRows + row].
template <pkv_dtype kType, int kHeads>
HWY_INLINE void dots_of_four(const std::byte* const* rows, const float* HWY_RESTRICT queries,
                             int64_t quota, RowsAhead& ahead, const AttendState& s,
                             float* HWY_RESTRICT weights) {
  const DF df;
  Held<VF> sums[4][kHeads];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(df);
  }
  const auto add = [&](const Pair(&k)[4], int64_t at) HWY_ATTR {
    HWY_UNROLL(4)
    for (int g = 0; g < kHeads; ++g) {
      const float* q = queries + g * s.padded_d + at;
      const VF q_first = hn::Load(df, q);
      const VF q_second = hn::Load(df, q + kFloats);
      HWY_UNROLL(4)
      for (int r = 0; r < 4; ++r) {
        sums[r][g] = hn::MulAdd(k[r].second, q_second, hn::MulAdd(k[r].first, q_first, sums[r][g]));
      }
    }
  };
  int64_t at = 0;
  for (; at + kPair <= s.d; at += kPair) {
    const int64_t offset = at * kBytes<kType>;
    const Pair k[4] = {load_pair<kType>(rows[0] + offset), load_pair<kType>(rows[1] + offset),
                       load_pair<kType>(rows[2] + offset), load_pair<kType>(rows[3] + offset)};
    add(k, at);
    ahead.request(quota);
  }
  if (at < s.d) {
    const int64_t offset = at * kBytes<kType>;
    const int64_t rest = s.d - at;
    const Pair k[4] = {
        load_rest<kType>(rows[0] + offset, rest), load_rest<kType>(rows[1] + offset, rest),
        load_rest<kType>(rows[2] + offset, rest), load_rest<kType>(rows[3] + offset, rest)};
    add(k, at);
  }
  const D4<float> d4;
  HWY_UNROLL(4)
  for (int g = 0; g < kHeads; ++g) {
    const auto dots = sums_of_four<float>(sums[0][g], sums[1][g], sums[2][g], sums[3][g]);
    hn::Store(hn::Mul(dots, hn::Set(d4, s.scale)), d4, weights + g * kBlockRows);
  }
}

template <pkv_dtype kType, int kHeads>
HWY_INLINE void logits(const RowBlock& block, int32_t first, RowsAhead& ahead,
                       const AttendState& s) {
  const float* queries =
      (kType == PKV_DTYPE_BF16 ? s.split_queries : s.plain_queries) + int64_t{first} * s.padded_d;
  // Half of the lines ahead here, half beside the values.
  const int64_t steps = (block.count + 3) / 4 * ((s.d + kPair - 1) / kPair);
  const int64_t quota = (ahead.lines() / 2 + steps - 1) / steps;
  for (int64_t r = 0; r < block.count; r += 4) {
    const std::byte* rows[4];
    for (int64_t i = 0; i < 4; ++i) rows[i] = block.keys[std::min(r + i, block.count - 1)];
    dots_of_four<kType, kHeads>(rows, queries, quota, ahead, s, s.weights + r);
  }
  for (int64_t i = 0; s.soft_cap != 0.0F && i < kHeads * kBlockRows;
       i += static_cast<int64_t>(kFloats)) {
    const DF df;
    hn::Store(capped(hn::Load(df, s.weights + i), s.soft_cap), df, s.weights + i);
  }
  for (int g = 0; g < kHeads; ++g) {
    std::fill(s.weights + g * kBlockRows + block.count, s.weights + (g + 1) * kBlockRows, kNothing);
  }
}

// Logits become weights; what head g has is brought to the new maximum.
HWY_INLINE void softmax(float* HWY_RESTRICT weights, int32_t g, const AttendState& s) {
  const DF df;
  VF largest = hn::Set(df, kNothing);
  auto any_nan = hn::Zero(df);
  for (int64_t i = 0; i < kBlockRows; i += static_cast<int64_t>(kFloats)) {
    const VF x = hn::Load(df, weights + i);
    any_nan = hn::Add(any_nan, hn::IfThenElseZero(hn::IsNaN(x), x));
    largest = hn::Max(largest, without_nan(x));
  }
  const float before = s.maxima[g];
  const float now = std::max(before, hn::GetLane(hn::MaxOfLanes(df, largest)));
  const float nan = hn::GetLane(hn::SumOfLanes(df, any_nan));  // 0, or NaN to pass on
  if (now == kNothing && nan == 0.0F) {
    std::fill(weights, weights + kBlockRows, 0.0F);
    return;
  }
  if (now > before && s.sums[g] != 0.0) {
    const float factor = std::exp(before - now);
    s.sums[g] *= static_cast<double>(factor);
    float* values = s.values + int64_t{g} * s.padded_dv;
    for (int32_t j = 0; j < s.padded_dv; j += static_cast<int32_t>(kFloats)) {
      hn::Store(hn::Mul(hn::Load(df, values + j), hn::Set(df, factor)), df, values + j);
    }
  }
  s.maxima[g] = now;
  const VF max = hn::Set(df, now);
  VF sum = hn::Set(df, nan);
  for (int64_t i = 0; i < kBlockRows; i += static_cast<int64_t>(kFloats)) {
    const VF x = hn::Sub(hn::Load(df, weights + i), max);
    const VF e = hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(df, x));
    sum = hn::Add(sum, e);
    hn::Store(e, df, weights + i);
  }
  s.sums[g] += static_cast<double>(hn::GetLane(hn::SumOfLanes(df, sum)));
}

// Adds kPairs pairs of elements of all rows, at element `at`.
template <pkv_dtype kType, int kHeads, int kPairs>
HWY_INLINE void add_values(const RowBlock& block, int32_t first, int64_t at, int64_t rest,
                           int64_t quota, RowsAhead& ahead, const AttendState& s) {
  const DF df;
  float* out = s.values + int64_t{first} * s.padded_dv + at;
  Held<VF> sums[kHeads][2 * kPairs];
  for (int g = 0; g < kHeads; ++g) {
    for (int i = 0; i < 2 * kPairs; ++i) {
      sums[g][i] = hn::Load(df, out + g * s.padded_dv + i * static_cast<int64_t>(kFloats));
    }
  }
  for (int64_t r = 0; r < block.count; ++r) {
    const std::byte* row = block.values[r] + at * kBytes<kType>;
    Held<VF> v[2 * kPairs];
    ahead.request(quota);
    HWY_UNROLL(4)
    for (int i = 0; i < kPairs; ++i) {
      const Pair pair = rest != 0 ? load_rest<kType>(row, rest)
                                  : load_pair<kType>(row + i * kPair * kBytes<kType>);
      v[2 * i] = pair.first;
      v[2 * i + 1] = pair.second;
    }
    HWY_UNROLL(4)
    for (int g = 0; g < kHeads; ++g) {
      const VF w = hn::Set(df, s.weights[g * kBlockRows + r]);
      HWY_UNROLL(4)
      for (int i = 0; i < 2 * kPairs; ++i) sums[g][i] = hn::MulAdd(w, v[i], sums[g][i]);
    }
  }
  for (int g = 0; g < kHeads; ++g) {
    for (int i = 0; i < 2 * kPairs; ++i) {
      hn::Store(sums[g][i], df, out + g * s.padded_dv + i * static_cast<int64_t>(kFloats));
    }
  }
}

template <pkv_dtype kType, int kHeads>
HWY_INLINE void all_values(const RowBlock& block, int32_t first, RowsAhead& ahead,
                           const AttendState& s) {
  constexpr int kPairs = kHeads == 4 && kFloats < 16 ? 1 : 2;  // what the registers hold
  const int64_t steps = block.count * ((s.dv + kPairs * kPair - 1) / (kPairs * kPair));
  const int64_t quota = (ahead.lines() + steps - 1) / steps;
  int64_t at = 0;
  for (; at + kPairs * kPair <= s.dv; at += kPairs * kPair) {
    add_values<kType, kHeads, kPairs>(block, first, at, 0, quota, ahead, s);
  }
  for (; at + kPair <= s.dv; at += kPair)
    add_values<kType, kHeads, 1>(block, first, at, 0, quota, ahead, s);
  if (at < s.dv) add_values<kType, kHeads, 1>(block, first, at, s.dv - at, quota, ahead, s);
}

template <int kHeads>
HWY_NOINLINE void attend_heads(const RowBlock& block, int32_t first, RowsAhead& ahead,
                               const AttendState& s) {
  switch (block.key_dtype) {
    case PKV_DTYPE_F32: logits<PKV_DTYPE_F32, kHeads>(block, first, ahead, s); break;
    case PKV_DTYPE_BF16: logits<PKV_DTYPE_BF16, kHeads>(block, first, ahead, s); break;
    default: logits<PKV_DTYPE_F16, kHeads>(block, first, ahead, s);
  }
  for (int32_t g = 0; g < kHeads; ++g) softmax(s.weights + g * kBlockRows, first + g, s);
  switch (block.value_dtype) {
    case PKV_DTYPE_F32: all_values<PKV_DTYPE_F32, kHeads>(block, first, ahead, s); break;
    case PKV_DTYPE_BF16: all_values<PKV_DTYPE_BF16, kHeads>(block, first, ahead, s); break;
    default: all_values<PKV_DTYPE_F16, kHeads>(block, first, ahead, s);
  }
}

}  // namespace

void attend_block_impl(const RowBlock& block, RowsAhead& ahead, const AttendState& s) {
  int32_t first = 0;
  for (; s.group - first >= 3; first += 4) attend_heads<4>(block, first, ahead, s);
  if (s.group - first == 2) attend_heads<2>(block, first, ahead, s);
  if (s.group - first == 1) attend_heads<1>(block, first, ahead, s);
}

// Floats of one vector: the unit of the split order.
int64_t vector_floats_impl() { return static_cast<int64_t>(kFloats); }

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {
namespace {

HWY_EXPORT(attend_block_impl);
HWY_EXPORT(vector_floats_impl);

constexpr int64_t kPadding = 32;  // two vectors of the widest set

// x [count, padded], from split order into plain one or the other way round.
enum class Order { kPlain, kSplit };
void reorder(float* x, int64_t count, int64_t padded, int64_t floats, Order to) {
  float run[kPadding];
  for (int64_t begin = 0; begin < count * padded; begin += 2 * floats) {
    float* part = x + begin;
    for (int64_t i = 0; i < floats; ++i) {
      if (to == Order::kPlain) {
        run[2 * i] = part[i];
        run[2 * i + 1] = part[i + floats];
      } else {
        run[i] = part[2 * i];
        run[i + floats] = part[2 * i + 1];
      }
    }
    std::copy_n(run, 2 * floats, part);
  }
}

}  // namespace

AttendState take_attend_state(Scratch& scratch, const Isa& isa, const pkv_attend_args& args) {
  const pkv_geometry& geometry = *args.codec.geometry;
  AttendState s{};
  s.isa = &isa;
  s.group = args.query_heads / geometry.kv_heads;
  s.heads = static_cast<int32_t>(round_up(s.group, 4));
  s.d = geometry.head_dim;
  s.dv = geometry.value_dim;
  s.padded_d = static_cast<int32_t>(round_up(s.d, kPadding));
  s.padded_dv = static_cast<int32_t>(round_up(s.dv, kPadding));
  s.scale = args.scale;
  s.soft_cap = args.soft_cap;
  s.plain_queries = scratch.take<float>(int64_t{s.heads} * s.padded_d);
  s.split_queries = scratch.take<float>(int64_t{s.heads} * s.padded_d);
  s.values = scratch.take<float>(int64_t{s.heads} * s.padded_dv);
  s.sums = scratch.take<double>(s.heads);
  s.maxima = scratch.take<float>(s.heads);
  s.weights = scratch.take<float>(4 * kBlockRows);
  return s;
}

void start_attend(const RowQuery& query, AttendState& s) {
  const int64_t size = int64_t{s.heads} * s.padded_d;
  std::fill_n(s.plain_queries, size, 0.0F);
  for (int32_t g = 0; g < s.group; ++g) {
    std::copy_n(query.raw + int64_t{g} * s.d, s.d, s.plain_queries + int64_t{g} * s.padded_d);
  }
  std::copy_n(s.plain_queries, size, s.split_queries);
  const int64_t floats = PKV_CPU_DISPATCH(*s.isa, vector_floats_impl)();
  reorder(s.split_queries, s.heads, s.padded_d, floats, Order::kSplit);
  std::fill_n(s.values, int64_t{s.heads} * s.padded_dv, 0.0F);
  std::fill_n(s.sums, s.heads, 0.0);
  std::fill_n(s.maxima, s.heads, -std::numeric_limits<float>::infinity());
  s.is_split = false;
}

void to_plain_order(AttendState& s) {
  if (!s.is_split) return;
  const int64_t floats = PKV_CPU_DISPATCH(*s.isa, vector_floats_impl)();
  reorder(s.values, s.heads, s.padded_dv, floats, Order::kPlain);
  s.is_split = false;
}

void attend_block(const RowBlock& block, RowsAhead& ahead, AttendState& s) {
  if (block.count == 0) return;
  const bool is_split = block.value_dtype == PKV_DTYPE_BF16;
  if (is_split != s.is_split) {
    const int64_t floats = PKV_CPU_DISPATCH(*s.isa, vector_floats_impl)();
    reorder(s.values, s.heads, s.padded_dv, floats, is_split ? Order::kSplit : Order::kPlain);
    s.is_split = is_split;
  }
  PKV_CPU_DISPATCH(*s.isa, attend_block_impl)(block, ahead, s);
}

void raise_maximum(float logit, int32_t g, AttendState& s) {
  if (!(logit > s.maxima[g])) return;
  if (s.sums[g] != 0.0) {
    const float factor = std::exp(s.maxima[g] - logit);
    s.sums[g] *= static_cast<double>(factor);
    float* values = s.values + int64_t{g} * s.padded_dv;
    for (int32_t j = 0; j < s.padded_dv; ++j) values[j] *= factor;
  }
  s.maxima[g] = logit;
}

float add_token(float logit, int32_t g, AttendState& s) {
  raise_maximum(logit, g, s);
  const float weight = std::exp(logit - s.maxima[g]);
  s.sums[g] += static_cast<double>(weight);
  return weight;
}

}  // namespace pkv::cpu
#endif
