// Stage select: exact, without sorting. docs/algorithm.md, section 5.
// Bounds are tried, and the entries above each counted, until few lie between the last one that too
// few reach and the last one that enough do; only those are looked at in detail. Since a list is in
// ascending position, equal values at the cut are kept in the order they come.
#include "backends/cpu/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backends/cpu/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/select.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/collect-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kFew = 64;  // values that are sorted out one by one

// Integers that order like the numbers they stand for, and back. No NaN.
int32_t rank_of(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
float float_of(int32_t rank) { return std::bit_cast<float>(rank >= 0 ? rank : rank ^ 0x7fffffff); }

// Of what is not NaN.
struct Range {
  float least;
  float most;
  int64_t count;
};

HWY_INLINE Range range_of(const float* values, int64_t count) {
  const DF df;
  const DI32 di;
  const auto N = static_cast<int64_t>(kFloats);
  const VF infinity = hn::Set(df, kInfinity);
  VF least = infinity;
  VF most = hn::Neg(infinity);
  VI32 missing = hn::Zero(di);
  const auto take = [&](VF v) HWY_ATTR {
    const auto is_nan = hn::IsNaN(v);
    least = hn::Min(least, hn::IfThenElse(is_nan, infinity, v));
    most = hn::Max(most, hn::IfThenElse(is_nan, hn::Neg(infinity), v));
    missing = hn::Add(missing, hn::IfThenElseZero(hn::RebindMask(di, is_nan), hn::Set(di, 1)));
  };
  int64_t i = 0;
  for (; i + N <= count; i += N) take(hn::LoadU(df, values + i));
  if (i < count) {
    HWY_ALIGN float rest[kFloats];
    std::fill(rest, rest + kFloats, std::numeric_limits<float>::quiet_NaN());
    std::copy(values + i, values + count, rest);
    take(hn::Load(df, rest));
    i += N;
  }
  return {hn::GetLane(hn::MinOfLanes(df, least)), hn::GetLane(hn::MaxOfLanes(df, most)),
          i - hn::GetLane(hn::SumOfLanes(di, missing))};
}

// How many values reach the bound.
HWY_INLINE int64_t count_from(const float* values, int64_t count, float bound) {
  const DF df;
  const DI32 di;
  const auto N = static_cast<int64_t>(kFloats);
  const VF least = hn::Set(df, bound);
  const VI32 one = hn::Set(di, 1);
  VI32 even = hn::Zero(di);
  VI32 odd = even;
  const auto reached = [&](int64_t at) HWY_ATTR {
    return hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(hn::LoadU(df, values + at), least)), one);
  };
  int64_t i = 0;
  for (; i + 2 * N <= count; i += 2 * N) {
    even = hn::Add(even, reached(i));
    odd = hn::Add(odd, reached(i + N));
  }
  int64_t result = hn::GetLane(hn::SumOfLanes(di, hn::Add(even, odd)));
  for (; i < count; ++i) result += values[i] >= bound ? 1 : 0;
  return result;
}

// `enough` is reached by at least the wanted number of values, `few` by fewer.
struct Bounds {
  float enough;
  float few;
  int64_t from_enough;  // values that reach it
  int64_t from_few;
};

// Narrows the bounds until at most `between` values lie between them, or no number does. At least
// `wanted` values are numbers.
HWY_INLINE Bounds narrow(const float* values, int64_t count, const Range& range, int64_t wanted,
                         int64_t between) {
  Bounds b{range.least, kInfinity, range.count, 0};
  if (range.most == kInfinity) {
    b.from_few = count_from(values, count, kInfinity);
    if (b.from_few >= wanted) return {kInfinity, kInfinity, b.from_few, 0};
  } else {
    b.few = float_of(rank_of(range.most + 0.0F) + 1);  // behind +0 if that is the most
  }
  constexpr int kByValue = 12;  // numbers lie between bounds more evenly than their bits do
  for (int step = 0; b.from_enough - b.from_few > between; ++step) {
    float middle = 0.5F * b.enough + 0.5F * b.few;
    if (step >= kByValue || !(middle > b.enough && middle < b.few)) {
      const int64_t low = rank_of(b.enough);
      const int64_t high = rank_of(b.few);
      if (high - low < 2) break;
      middle = float_of(static_cast<int32_t>(low + (high - low) / 2));
    }
    const int64_t reached = count_from(values, count, middle);
    if (reached >= wanted) {
      b.enough = middle;
      b.from_enough = reached;
    } else {
      b.few = middle;
      b.from_few = reached;
    }
  }
  return b;
}

// The values between the bounds; returns their number. `out` has room for a vector more.
HWY_INLINE int64_t gather_between(const float* values, int64_t count, const Bounds& b, float* out) {
  const DF df;
  const DI32 di;
  const auto N = static_cast<int64_t>(kFloats);
  const VF enough = hn::Set(df, b.enough);
  const VF few = hn::Set(df, b.few);
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += N) {
    const VF v = hn::LoadU(df, values + i);
    auto mask = hn::And(hn::Ge(v, enough), hn::Lt(v, few));
    if (i + N > count) mask = hn::And(mask, hn::FirstN(df, static_cast<size_t>(count - i)));
    if (hn::AllFalse(df, mask)) continue;
    const Kept kept = keep_lanes(v, hn::Zero(di), mask);
    hn::StoreU(kept.values, df, out + found);
    found += kept.count;
  }
  return found;
}

// Keeps entries above `cut`, and of those equal to it the first `equal`.
HWY_INLINE int64_t keep_from(Survivors& s, float cut, int64_t equal) {
  int64_t kept = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    const float value = s.values[i];
    const bool is_kept = value > cut || (value == cut && equal > 0);
    if (value == cut && is_kept) --equal;
    s.values[kept] = value;
    s.positions[kept] = s.positions[i];
    kept += is_kept ? 1 : 0;
  }
  return kept;
}

// The same where all that are equal to the cut are kept.
HWY_INLINE int64_t keep_at_least(Survivors& s, float cut) {
  const DF df;
  const DI32 di;
  const auto N = static_cast<int64_t>(kFloats);
  int64_t count = 0;
  for (int64_t i = 0; i < s.count; i += N) {
    const VF v = hn::LoadU(df, s.values + i);
    auto mask = hn::Ge(v, hn::Set(df, cut));
    if (i + N > s.count) mask = hn::And(mask, hn::FirstN(df, static_cast<size_t>(s.count - i)));
    const Kept kept = keep_lanes(v, hn::LoadU(di, s.positions + i), mask);
    hn::StoreU(kept.values, df, s.values + count);
    hn::StoreU(kept.positions, di, s.positions + count);
    count += kept.count;
  }
  return count;
}

}  // namespace

void keep_best_impl(Survivors& s) {
  if (s.wanted <= 0) s.count = 0;
  if (s.count <= s.wanted) return;
  const Bounds b = narrow(s.values, s.count, range_of(s.values, s.count), s.wanted, kFew);
  float cut = b.enough;
  int64_t above = b.from_few;
  int64_t equal = b.from_enough - b.from_few;
  if (equal <= kFew && b.enough < b.few) {
    float* inside = s.boundary;
    const int64_t count = gather_between(s.values, s.count, b, inside);
    const int64_t rank = s.wanted - above;  // among them, from 1
    std::nth_element(inside, inside + (rank - 1), inside + count,
                     [](float x, float y) { return x > y; });
    cut = inside[rank - 1];
    // What nth_element leaves behind the cut is not above it, what it leaves before not below.
    const auto before = static_cast<int64_t>(std::count(inside, inside + rank, cut));
    above += rank - before;
    equal = before + static_cast<int64_t>(std::count(inside + rank, inside + count, cut));
  }
  const int64_t wanted_equal = s.wanted - above;
  s.count = wanted_equal < equal ? keep_from(s, cut, wanted_equal) : keep_at_least(s, cut);
  // What comes later loses against an equal value.
  s.threshold = std::nextafter(cut, kInfinity);
}

float bound_of_rank_impl(const float* values, int64_t count, int64_t rank) {
  const Range range = range_of(values, count);
  if (range.count < rank) return -kInfinity;
  return narrow(values, count, range, rank, rank / 32).enough;
}

void add_votes_impl(const float* votes, int64_t count, int64_t first, Survivors& survivors) {
  int64_t at = 0;
  for (; at + 64 <= count; at += 64) collect_block(votes + at, 64, first + at, survivors);
  if (at == count) return;
  HWY_ALIGN float rest[64] = {};
  std::copy(votes + at, votes + count, rest);
  collect_block(rest, count - at, first + at, survivors);
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {

HWY_EXPORT(keep_best_impl);
HWY_EXPORT(bound_of_rank_impl);
HWY_EXPORT(add_votes_impl);

Survivors take_survivors(Scratch& scratch, const Isa& isa, int64_t max_length, int64_t max_wanted) {
  const int64_t most = std::max(4 * max_wanted, kSurvivorsAtLeast);
  // A row that fits as a whole needs no more than itself; 64: what one block may add.
  const int64_t capacity = std::min(most, (max_length + 63) / 64 * 64) + 64;
  Survivors result{};
  result.isa = &isa;
  result.capacity = capacity;
  result.values = scratch.take<float>(capacity + 16);
  result.positions = scratch.take<int32_t>(capacity + 16);
  result.boundary = scratch.take<float>(capacity + 16);
  return result;
}

void reset(Survivors& survivors, int64_t wanted, float threshold) {
  survivors.wanted = wanted;
  survivors.count = 0;
  survivors.threshold = threshold;
  survivors.is_full = false;
}

int64_t sample_rank(int64_t wanted, int64_t n, int64_t sampled) {
  const double expected =
      static_cast<double>(wanted) * static_cast<double>(sampled) / static_cast<double>(n);
  return static_cast<int64_t>(expected + 5.0 * std::sqrt(expected) + 4.0);
}

void keep_best(Survivors& survivors) {
  PKV_CPU_DISPATCH(*survivors.isa, keep_best_impl)(survivors);
}

float bound_of_rank(const Isa& isa, const float* values, int64_t count, int64_t rank) {
  return PKV_CPU_DISPATCH(isa, bound_of_rank_impl)(values, count, rank);
}

void add_votes(const float* votes, int64_t count, int64_t first, Survivors& survivors) {
  PKV_CPU_DISPATCH(*survivors.isa, add_votes_impl)(votes, count, first, survivors);
}

}  // namespace pkv::cpu
#endif
