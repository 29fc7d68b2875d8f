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
HWY_MAYBE_UNUSED HWY_INLINE V16 fold_halves(V16 x, V16 y) {
  const D16 d;
  return hn::Add(hn::ConcatLowerLower(d, y, x), hn::ConcatUpperUpper(d, y, x));
}

// Running sums of each group: all bytes as 16-bit numbers, mod 2^16, and the odd bytes alone.
using GroupSums = Held<V16>[kGroups];

// Keys 0..7 and 8..15 of the group, as 16-bit sums; each block of 16 bytes has a part of them.
struct KeySums {
  Held<V16> lower;
  Held<V16> upper;
};

HWY_INLINE KeySums key_sums(V16 all, V16 odd) {
  const D16 d;
  const V16 even = hn::Sub(all, hn::ShiftLeft<8>(odd));
  return {hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd)};
}

// Of four vectors x0 .. x3, the sums of their blocks of 16 bytes, in the order x0, x2, x1, x3.
HWY_MAYBE_UNUSED HWY_INLINE V16 sums_of_blocks(V16 x0, V16 x1, V16 x2, V16 x3) {
  const V16 a = fold_halves(x0, x1);
  const V16 b = fold_halves(x2, x3);
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}

// Stores the 64 sums of a block's groups, less the bias.
HWY_INLINE void store_sums(const GroupSums& all, const GroupSums& odd, int32_t bias,
                           int16_t* HWY_RESTRICT sums) {
  const D16 d;
  const V16 offset = hn::Set(d, static_cast<uint16_t>(bias));
  auto* out = reinterpret_cast<uint16_t*>(sums);
  const auto store = [&](V16 x, size_t at) HWY_ATTR { hn::Store(hn::Sub(x, offset), d, out + at); };
  if constexpr (kVectorBytes == 64) {
    // By blocks of 16 bytes: groups 0, 2, 1, 3.
    const KeySums keys = key_sums(sums_of_blocks(all[0], all[1], all[2], all[3]),
                                  sums_of_blocks(odd[0], odd[1], odd[2], odd[3]));
    store(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(keys.upper), keys.lower), 0);
    store(hn::OddEvenBlocks(keys.upper, hn::SwapAdjacentBlocks(keys.lower)), 32);
  } else {
    for (size_t i = 0; i < size_t{kGroups}; ++i) {
      const KeySums keys = key_sums(all[i], odd[i]);
      if constexpr (kVectorBytes == 32) {
        store(fold_halves(keys.lower, keys.upper), i * 16);
      } else {
        store(keys.lower, i * 16);
        store(keys.upper, i * 16 + 8);
      }
    }
  }
}

// Tables of one vector that votes.
struct TablePair {
  const uint8_t* low;
  const uint8_t* high;
};

HWY_INLINE TablePair table_pair(const VoteTables& t, int32_t v) {
  const int64_t bytes = int64_t{t.padded} * kGroupKeys;
  return {t.low + v * bytes, t.high + v * bytes};
}

// sums[64] of the keys of a block for each pair of tables, less the bias. Beyond S the tables are
// 0, whatever bytes are read there. kTableBytes: of a table, where they are known; else 0.
template <int64_t kTableBytes, int kPairs>
HWY_INLINE void graded_sums(const uint8_t* HWY_RESTRICT block, const VoteTables& t,
                            const TablePair (&pairs)[kPairs], BlocksAhead& ahead,
                            int16_t (*HWY_RESTRICT sums)[64]) {
  const D8 d8;
  const D16 d16;
  const auto nibble = hn::Set(d8, uint8_t{15});
  const int64_t table_bytes = kTableBytes != 0 ? kTableBytes : int64_t{t.padded} * kGroupKeys;
  const int64_t group_bytes = kTableBytes != 0 ? kTableBytes : int64_t{t.subspaces} * kGroupKeys;
  GroupSums all[kPairs];
  GroupSums odd[kPairs];
  for (int p = 0; p < kPairs; ++p) {
    for (int64_t i = 0; i < kGroups; ++i) all[p][i] = odd[p][i] = hn::Zero(d16);
  }
  HWY_UNROLL(4)
  for (int64_t at = 0; at < table_bytes; at += static_cast<int64_t>(kVectorBytes)) {
    Held<V8> low[kPairs];
    Held<V8> high[kPairs];
    for (int p = 0; p < kPairs; ++p) {
      low[p] = hn::Load(d8, pairs[p].low + at);
      high[p] = hn::Load(d8, pairs[p].high + at);
    }
    ahead.request();
    HWY_UNROLL(4)
    for (int64_t i = 0; i < kGroups; ++i) {
      const auto x = hn::LoadU(d8, block + at + i * group_bytes);
      const auto x_high = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x))), nibble);
      const auto x_low = hn::And(x, nibble);
      HWY_UNROLL(2)
      for (int p = 0; p < kPairs; ++p) {
        const auto sum =
            hn::Add(hn::TableLookupBytes(low[p], x_low), hn::TableLookupBytes(high[p], x_high));
        const V16 pair = hn::BitCast(d16, sum);
        all[p][i] = hn::Add(all[p][i], pair);
        odd[p][i] = hn::Add(odd[p][i], hn::ShiftRight<8>(pair));
      }
    }
  }
  for (int p = 0; p < kPairs; ++p) store_sums(all[p], odd[p], 127 * t.subspaces, sums[p]);
}

// votes[64] = fp32(sum) * factor
HWY_INLINE void graded_products(const int16_t* HWY_RESTRICT sums,
                                const uint8_t* HWY_RESTRICT factors, float* HWY_RESTRICT votes) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint16_t, decltype(df)> dh;
  const hn::Rebind<int16_t, decltype(df)> ds;
  const auto* f = reinterpret_cast<const uint16_t*>(factors);
  for (size_t i = 0; i < 64; i += hn::Lanes(df)) {
    const auto t = hn::PromoteTo(di, hn::Load(ds, sums + i));
    const auto w = hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, f + i))));
    hn::StoreU(hn::Mul(hn::ConvertTo(df, t), w), df, votes + i);
  }
}

template <int64_t kTableBytes>
HWY_INLINE void graded_block(const VoteRow& row, const uint8_t* HWY_RESTRICT block,
                             BlocksAhead& ahead, float* HWY_RESTRICT votes) {
  const VoteTables& t = row.tables;
  HWY_ALIGN int16_t sums[1][64];
  graded_sums<kTableBytes, 1>(block, t, {table_pair(t, 0)}, ahead, sums);
  BlocksAhead none;
  for (int32_t v = 1; v < t.vectors; ++v) {
    HWY_ALIGN int16_t other[1][64];
    graded_sums<kTableBytes, 1>(block, t, {table_pair(t, v)}, none, other);
    for (int i = 0; i < 64; ++i) sums[0][i] = std::max(sums[0][i], other[0][i]);
  }
  graded_products(sums[0], block + row.records.layout->block_tail, votes);
}

constexpr int64_t kTableBytes128 = 16 * kGroupKeys;  // d = 128

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
    if (row.tables.subspaces * kGroupKeys == kTableBytes128) {
      graded_block<kTableBytes128>(row, block, ahead, votes);
    } else {
      graded_block<0>(row, block, ahead, votes);
    }
  } else {
    for (int64_t i = BlocksAhead::requests_of(*row.records.layout); i > 0; --i) ahead.request();
    tier_block(row, block, votes);
  }
}

// Two searches whose sign bytes are unpacked once, where there are registers for the sums of both.
HWY_INLINE bool can_share(const Search* searches, int32_t count) {
  const VoteTables& t = searches->row.tables;
  return kVectorBytes == 64 && count > 1 && t.points == nullptr && t.vectors == 1 &&
         t.subspaces * kGroupKeys == kTableBytes128;
}

HWY_INLINE void scan_two(const Search* searches, int64_t at, int64_t valid, BlocksAhead& ahead) {
  const VoteRow& row = searches->row;
  const uint8_t* block = row.records.block(at);
  HWY_ALIGN int16_t sums[2][64];
  ahead.start_block();
  graded_sums<kTableBytes128, 2>(block, row.tables,
                                 {table_pair(row.tables, 0), table_pair(searches[1].row.tables, 0)},
                                 ahead, sums);
  HWY_ALIGN float votes[kBlockKeys];
  for (int s = 0; s < 2; ++s) {
    graded_products(sums[s], block + row.records.layout->block_tail, votes);
    collect_block(votes, valid, at, *searches[s].survivors);
  }
}

}  // namespace

void vote_range_impl(const VoteRow& row, int64_t begin, int64_t end, float* votes) {
  BlocksAhead ahead(row.records, begin, end);
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
  BlocksAhead ahead(searches->row.records, begin, end);
  BlocksAhead none;
  HWY_ALIGN float votes[kBlockKeys];
  const int32_t shared = can_share(searches, count) ? count / 2 * 2 : 0;
  for (int64_t at = begin; at < end; at += kBlockKeys) {
    const int64_t valid = std::min(kBlockKeys, end - at);
    for (int32_t s = 0; s < shared; s += 2) {
      scan_two(searches + s, at, valid, s == 0 ? ahead : none);
    }
    for (int32_t s = shared; s < count; ++s) {
      block_votes(searches[s].row, at, s == 0 ? ahead : none, votes);
      collect_block(votes, valid, at, *searches[s].survivors);
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
  return bound_of_rank(*row.isa, survivors.values, keys, sample_rank(wanted, row.n, keys));
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
