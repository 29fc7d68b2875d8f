// Stage vote: one number per key from its sign bytes and vote factor. docs/algorithm.md, section 4.
// Traffic per key and KV head, d = 128: 18 B read, in one stream. Bound: memory.
// Graded: the 256-entry table of a subspace is the sum of two of 16 entries, one per nibble, which
// a byte shuffle looks up for all keys of a group at once. With 127 added to the lower one a sum is
// a byte 0..254, and 72 of them fit 16 bits. Exact: integers, then fp32 as written.
#include "backends/cpu/vote.h"

#include <algorithm>
#include <limits>

#include "backends/cpu/blocks_ahead.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/vote.cpp"
#include "hwy/foreach_target.h"
// The order matters: what follows is compiled once per target.
#include "backends/cpu/collect-inl.h"
#include "backends/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pkv::cpu::HWY_NAMESPACE {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Sums of the two halves of x, then of y.
HWY_INLINE V16 fold_halves(V16 x, V16 y) {
  const D16 d;
  return hn::Add(hn::ConcatLowerLower(d, y, x), hn::ConcatUpperUpper(d, y, x));
}

// Running sums of one group: all bytes as 16-bit numbers, mod 2^16, and the odd bytes alone.
struct GroupSums {
  V16 all;
  V16 odd;
};

// Keys 0..7 and 8..15 of the group, as 16-bit sums; each block of 16 bytes has a part of them.
struct KeySums {
  V16 lower;
  V16 upper;
};

HWY_INLINE KeySums key_sums(const GroupSums& s) {
  const D16 d;
  const V16 even = hn::Sub(s.all, hn::ShiftLeft<8>(s.odd));
  return {hn::InterleaveLower(d, even, s.odd), hn::InterleaveUpper(d, even, s.odd)};
}

// Stores the 32 sums of two groups.
HWY_INLINE void store_sums(const KeySums& a, const KeySums& b, uint16_t* HWY_RESTRICT sums) {
  const D16 d;
  if constexpr (kVectorBytes == 64) {
    const V16 even = fold_halves(a.lower, b.lower);
    const V16 odd = fold_halves(a.upper, b.upper);
    hn::Store(hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                                hn::Add(even, hn::SwapAdjacentBlocks(even))),
              d, sums);
  } else if constexpr (kVectorBytes == 32) {
    hn::Store(fold_halves(a.lower, a.upper), d, sums);
    hn::Store(fold_halves(b.lower, b.upper), d, sums + 16);
  } else {
    hn::Store(a.lower, d, sums);
    hn::Store(a.upper, d, sums + 8);
    hn::Store(b.lower, d, sums + 16);
    hn::Store(b.upper, d, sums + 24);
  }
}

// sums[64] of the keys of a block. Beyond S the tables are 0, whatever bytes are read there.
HWY_INLINE void graded_sums(const uint8_t* HWY_RESTRICT block, int64_t group_bytes,
                            const uint8_t* HWY_RESTRICT low, const uint8_t* HWY_RESTRICT high,
                            int64_t table_bytes, BlocksAhead& ahead, uint16_t* HWY_RESTRICT sums) {
  const D8 d8;
  const D16 d16;
  const auto nibble = hn::Set(d8, uint8_t{15});
  const V16 zero = hn::Zero(d16);
  GroupSums g0{zero, zero};
  GroupSums g1{zero, zero};
  GroupSums g2{zero, zero};
  GroupSums g3{zero, zero};
  for (int64_t at = 0; at < table_bytes; at += static_cast<int64_t>(kVectorBytes)) {
    const auto table_low = hn::Load(d8, low + at);
    const auto table_high = hn::Load(d8, high + at);
    ahead.request();
    const auto add = [&](GroupSums& group, const uint8_t* bytes) HWY_ATTR {
      const auto x = hn::LoadU(d8, bytes);
      const auto x_high = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x))), nibble);
      const auto sum = hn::Add(hn::TableLookupBytes(table_low, hn::And(x, nibble)),
                               hn::TableLookupBytes(table_high, x_high));
      const V16 pair = hn::BitCast(d16, sum);
      group.all = hn::Add(group.all, pair);
      group.odd = hn::Add(group.odd, hn::ShiftRight<8>(pair));
    };
    add(g0, block + at);
    add(g1, block + at + group_bytes);
    add(g2, block + at + 2 * group_bytes);
    add(g3, block + at + 3 * group_bytes);
  }
  store_sums(key_sums(g0), key_sums(g1), sums);
  store_sums(key_sums(g2), key_sums(g3), sums + 32);
}

// votes[64] = fp32(sum - bias) * factor
HWY_INLINE void graded_products(const uint16_t* HWY_RESTRICT sums, int32_t bias,
                                const uint8_t* HWY_RESTRICT factors, float* HWY_RESTRICT votes) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint16_t, decltype(df)> dh;
  const auto offset = hn::Set(di, bias);
  const auto* f = reinterpret_cast<const uint16_t*>(factors);
  for (size_t i = 0; i < 64; i += hn::Lanes(df)) {
    const auto t = hn::Sub(hn::PromoteTo(di, hn::Load(dh, sums + i)), offset);
    const auto w = hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, f + i))));
    hn::StoreU(hn::Mul(hn::ConvertTo(df, t), w), df, votes + i);
  }
}

HWY_INLINE void graded_block(const VoteRow& row, const uint8_t* HWY_RESTRICT block,
                             BlocksAhead& ahead, float* HWY_RESTRICT votes) {
  const VoteTables& t = row.tables;
  const int64_t group_bytes = int64_t{t.subspaces} * kGroupKeys;
  const int64_t table_bytes = int64_t{t.padded} * kGroupKeys;
  HWY_ALIGN uint16_t sums[64];
  graded_sums(block, group_bytes, t.low, t.high, table_bytes, ahead, sums);
  BlocksAhead none;
  for (int32_t v = 1; v < t.vectors; ++v) {
    HWY_ALIGN uint16_t other[64];
    graded_sums(block, group_bytes, t.low + v * table_bytes, t.high + v * table_bytes, table_bytes,
                none, other);
    for (int i = 0; i < 64; ++i) sums[i] = std::max(sums[i], other[i]);
  }
  graded_products(sums, 127 * t.subspaces, block + row.records.layout->block_tail, votes);
}

void tier_block(const VoteRow& row, const uint8_t* block, float* votes) {
  const int64_t group_bytes = int64_t{row.tables.subspaces} * kGroupKeys;
  uint16_t sums[64];
  for (int64_t group = 0; group < kGroups; ++group) {
    tier_group(row.tables, block + group * group_bytes, sums + group * kGroupKeys);
  }
  const uint8_t* bad = block + row.records.layout->block_tail;
  for (int i = 0; i < 64; ++i) {
    const bool is_bad = ((bad[i / 8] >> (i % 8)) & 1) != 0;
    votes[i] = is_bad ? kNan : static_cast<float>(sums[i]);
  }
}

// Of the block that begins with this position.
HWY_INLINE void block_votes(const VoteRow& row, int64_t position, BlocksAhead& ahead,
                            float* HWY_RESTRICT votes) {
  const uint8_t* block = row.records.block(position);
  ahead.start_block();
  if (row.tables.points == nullptr) {
    graded_block(row, block, ahead, votes);
  } else {
    ahead.request();
    tier_block(row, block, votes);
  }
}

// Times that a block asks for what comes.
int64_t requests_of(const VoteRow& row) {
  if (row.tables.points != nullptr) return 1;
  return int64_t{row.tables.padded} * kGroupKeys / static_cast<int64_t>(kVectorBytes);
}

}  // namespace

void vote_range_impl(const VoteRow& row, int64_t begin, int64_t end, float* votes) {
  BlocksAhead ahead(row.records, begin, end, requests_of(row));
  int64_t at = begin;
  for (; at + kBlockKeys <= end; at += kBlockKeys) {
    block_votes(row, at, ahead, votes + (at - begin));
  }
  if (at == end) return;
  HWY_ALIGN float rest[kBlockKeys];
  block_votes(row, at, ahead, rest);
  std::copy(rest, rest + (end - at), votes + (at - begin));
}

void scan_range_impl(const Search* searches, int32_t count, int64_t begin, int64_t end) {
  BlocksAhead ahead(searches->row.records, begin, end, requests_of(searches->row));
  BlocksAhead none;
  HWY_ALIGN float votes[kBlockKeys];
  for (int64_t at = begin; at < end; at += kBlockKeys) {
    for (int32_t s = 0; s < count; ++s) {
      block_votes(searches[s].row, at, s == 0 ? ahead : none, votes);
      collect_block(votes, std::min(kBlockKeys, end - at), at, *searches[s].survivors);
    }
  }
}

// Blocks spread evenly; all are asked for before the first is used.
void sample_votes_impl(const VoteRow& row, int64_t samples, float* votes) {
  const int64_t blocks = row.n / kBlockKeys;
  const auto position = [blocks, samples](int64_t i) { return i * blocks / samples * kBlockKeys; };
  for (int64_t i = 0; i < samples; ++i) {
    prefetch_range(row.records.block(position(i)), row.records.layout->block_bytes);
  }
  BlocksAhead none;
  for (int64_t i = 0; i < samples; ++i) {
    block_votes(row, position(i), none, votes + i * kBlockKeys);
  }
}

}  // namespace pkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pkv::cpu {
namespace {

HWY_EXPORT(vote_range_impl);
HWY_EXPORT(scan_range_impl);
HWY_EXPORT(sample_votes_impl);

}  // namespace

void vote_range(const VoteRow& row, int64_t begin, int64_t end, float* votes) {
  PKV_CPU_DISPATCH(*row.isa, vote_range_impl)(row, begin, end, votes);
}

void scan_range(const Search* searches, int32_t count, int64_t begin, int64_t end) {
  PKV_CPU_DISPATCH(*searches->row.isa, scan_range_impl)(searches, count, begin, end);
}

float guess_threshold(const VoteRow& row, int64_t wanted, const Survivors& survivors) {
  constexpr float kNoGuess = -std::numeric_limits<float>::infinity();
  const int64_t blocks = row.n / kBlockKeys;
  if (row.n <= kSurvivorsAtLeast || wanted <= 0 || 4 * wanted > row.n) return kNoGuess;
  // Enough of them for about kSampledHits of the wanted ones.
  const int64_t enough = kSampledHits * row.n / wanted / kBlockKeys;
  const int64_t samples =
      std::clamp(enough, kSampleBlocksLeast, std::min(blocks / 8, kSampleBlocks));
  PKV_CPU_DISPATCH(*row.isa, sample_votes_impl)(row, samples, survivors.values);
  const int64_t keys = samples * kBlockKeys;
  return bound_of_rank(*row.isa, survivors.values, keys, sample_rank(wanted, row.n, keys),
                       survivors.bins);
}

void select_rows(const Search* searches, int32_t count) {
  constexpr float kNoGuess = -std::numeric_limits<float>::infinity();
  float guesses[kTeam];
  for (int32_t s = 0; s < count; ++s) {
    const Search& search = searches[s];
    guesses[s] = guess_threshold(search.row, search.wanted, *search.survivors);
    reset(*search.survivors, search.wanted, guesses[s]);
  }
  if (searches->wanted > 0) scan_range(searches, count, 0, searches->row.n);
  for (int32_t s = 0; s < count; ++s) {
    Survivors& survivors = *searches[s].survivors;
    if (survivors.count < searches[s].wanted && guesses[s] > kNoGuess) {
      reset(survivors, searches[s].wanted, kNoGuess);
      scan_range(searches + s, 1, 0, searches[s].row.n);
    }
    keep_best(survivors);
  }
}

}  // namespace pkv::cpu
#endif
