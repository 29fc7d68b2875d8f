// Stage select: exact, without sorting. docs/algorithm.md, section 5.
// A linear histogram over the values finds the bin of the last entry kept; only that bin is looked
// at in detail. Values outside +-1e38 share the outermost bins. Since a list is in ascending
// position, equal values at the cut are kept in the order they come.
#include "backends/cpu/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

constexpr int64_t kBins = 2048;
constexpr int64_t kFewBins = 512;
constexpr int64_t kCopies = 4;  // of the histogram: neighbours rarely wait for each other
constexpr float kLargest = 1e38F;

// bin = trunc((clamp(x) - lo) * scale), not decreasing in x.
struct Binning {
  float lo;
  float hi;
  float scale;
};

// Over the finite values; lo > hi if there are none.
HWY_INLINE Binning binning_of(const float* values, int64_t count, int64_t bins) {
  const hn::CappedTag<float, 16> df;
  const auto N = static_cast<int64_t>(hn::Lanes(df));
  const auto largest = hn::Set(df, kLargest);
  auto lo = largest;
  auto hi = hn::Neg(largest);
  const auto take = [&](hn::Vec<decltype(df)> v) HWY_ATTR {
    const auto is_finite = hn::Lt(hn::Abs(v), hn::Set(df, std::numeric_limits<float>::infinity()));
    lo = hn::Min(lo, hn::IfThenElse(is_finite, v, largest));
    hi = hn::Max(hi, hn::IfThenElse(is_finite, v, hn::Neg(largest)));
  };
  int64_t i = 0;
  for (; i + N <= count; i += N) take(hn::LoadU(df, values + i));
  for (; i < count; ++i) take(hn::Set(df, values[i]));
  Binning result{};
  result.lo = std::max(-kLargest, hn::GetLane(hn::MinOfLanes(df, lo)));
  result.hi = std::min(kLargest, hn::GetLane(hn::MaxOfLanes(df, hi)));
  const float width = result.hi - result.lo;
  result.scale = width > 0.0F ? std::min(static_cast<float>(bins - 1) / width, kLargest) : 0.0F;
  return result;
}

template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> bin_of(D df, V v, const Binning& b) {
  const hn::RebindToSigned<D> di;
  const auto x = hn::Min(hn::Max(v, hn::Set(df, b.lo)), hn::Set(df, b.hi));
  return hn::ConvertTo(di, hn::Mul(hn::Sub(x, hn::Set(df, b.lo)), hn::Set(df, b.scale)));
}

// counts[copies, bins]
HWY_INLINE void count_bins(const float* values, int64_t count, const Binning& b, int64_t bins,
                           uint32_t* counts) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto N = static_cast<int64_t>(hn::Lanes(df));
  std::memset(counts, 0, static_cast<size_t>(bins * kCopies) * sizeof(uint32_t));
  HWY_ALIGN int32_t bin[16] = {};
  // The mask is for NaN, which no comparison has put into a bin.
  const auto count_lane = [&](int64_t lane) HWY_ATTR {
    ++counts[(lane % kCopies) * bins + (bin[lane] & (bins - 1))];
  };
  int64_t i = 0;
  for (; i + N <= count; i += N) {
    hn::Store(bin_of(df, hn::LoadU(df, values + i), b), di, bin);
    for (int64_t lane = 0; lane < N; lane += kCopies) {
      count_lane(lane);
      count_lane(lane + 1);
      count_lane(lane + 2);
      count_lane(lane + 3);
    }
  }
  if (i == count) return;
  hn::Store(bin_of(df, hn::LoadU(df, values + i), b), di, bin);  // room for whole vectors
  for (int64_t lane = 0; lane < count - i; ++lane) count_lane(lane);
}

// The highest bin at or above which `rank` values lie; `above` of them in higher bins.
HWY_INLINE int64_t bin_of_rank(const uint32_t* counts, int64_t bins, int64_t rank, int64_t* above) {
  int64_t seen = 0;
  for (int64_t bin = bins - 1; bin > 0; --bin) {
    int64_t here = 0;
    for (int64_t copy = 0; copy < kCopies; ++copy) here += counts[copy * bins + bin];
    if (seen + here >= rank) {
      *above = seen;
      return bin;
    }
    seen += here;
  }
  *above = seen;
  return 0;
}

// The values of one bin; returns their number.
HWY_INLINE int64_t gather_bin(const float* values, int64_t count, const Binning& b, int64_t bin,
                              float* out) {
  const DF df;
  const DI32 di;
  const auto N = static_cast<int64_t>(kFloats);
  const VI32 wanted = hn::Set(di, static_cast<int32_t>(bin));
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += N) {
    const VF v = hn::LoadU(df, values + i);
    auto mask = hn::RebindMask(df, hn::Eq(bin_of(df, v, b), wanted));
    if (i + N > count) mask = hn::And(mask, hn::FirstN(df, static_cast<size_t>(count - i)));
    if (hn::AllFalse(df, mask)) continue;
    const Kept kept = keep_lanes(v, wanted, mask);
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
  const int64_t bins = s.count < 16384 ? kFewBins : kBins;  // clearing them costs time, too
  const Binning b = binning_of(s.values, s.count, bins);
  count_bins(s.values, s.count, b, bins, s.bins);
  int64_t above = 0;
  const int64_t bin = bin_of_rank(s.bins, bins, s.wanted, &above);
  const int64_t inside = gather_bin(s.values, s.count, b, bin, s.boundary);
  const int64_t rank = s.wanted - above;  // within the bin, from 1
  std::nth_element(s.boundary, s.boundary + (rank - 1), s.boundary + inside,
                   [](float x, float y) { return x > y; });
  const float cut = s.boundary[rank - 1];
  // What nth_element leaves behind the cut is not above it, what it leaves before not below.
  const auto equal = static_cast<int64_t>(std::count(s.boundary, s.boundary + rank, cut));
  const bool is_shared =
      std::find(s.boundary + rank, s.boundary + inside, cut) != s.boundary + inside;
  s.count = is_shared ? keep_from(s, cut, equal) : keep_at_least(s, cut);
  // What comes later loses against an equal value.
  s.threshold = std::nextafter(cut, std::numeric_limits<float>::infinity());
}

float bound_of_rank_impl(const float* values, int64_t count, int64_t rank, uint32_t* counts) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const Binning b = binning_of(values, count, kFewBins);
  if (!(b.lo < b.hi)) return kNothing;
  count_bins(values, count, b, kFewBins, counts);
  int64_t above = 0;
  const int64_t bin = bin_of_rank(counts, kFewBins, rank, &above);
  // A little below the bin's edge: rounding must not leave out values that lie on it.
  return bin == 0 ? kNothing : b.lo + (static_cast<float>(bin) - 0.25F) / b.scale;
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
  result.bins = scratch.take<uint32_t>(2048 * 4);
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

float bound_of_rank(const Isa& isa, const float* values, int64_t count, int64_t rank,
                    uint32_t* bins) {
  return PKV_CPU_DISPATCH(isa, bound_of_rank_impl)(values, count, rank, bins);
}

void add_votes(const float* votes, int64_t count, int64_t first, Survivors& survivors) {
  PKV_CPU_DISPATCH(*survivors.isa, add_votes_impl)(votes, count, first, survivors);
}

}  // namespace pkv::cpu
#endif
