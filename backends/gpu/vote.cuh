// Stage vote: one number per key from its sign plane and factor. docs/algorithm.md, section 4.
// Not here: choosing candidates (select.cuh); the binary tensor-core vote (backends/cuda).
// Both votes are a table per subspace, 256 bytes each, and a sum over the subspaces; the factor of
// the tier vote is 1 (layout.h), so that both end with the same product.
// Traffic per key and KV head, d = 128: 18 B read, 4 B written.
// Bound: shared memory, one byte look-up per subspace and key.
// Exact: integer sums, one fp32 product.
// Differs from cpu_ref: the tables hold bytes, and a block stages one of them at a time.
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/query.cuh"
#include "core/format/tier.h"

namespace PKV_GPU_NS {

inline constexpr int32_t kPatterns = format::kCentroids;
inline constexpr int32_t kMaxSubspaces = format::kMaxHeadDim / format::kSubspace;

// Tables of all rows: [rows, vectors, S, 256] signed bytes. A vector votes: every head with
// vote_group = heads, else the sum alone.
struct VoteTables {
  int8_t* entries;
  int32_t vectors;
};

struct VoteTableArgs {
  PreparedQueries queries;
  VoteTables tables;
  int64_t rows;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t is_heads;          // graded: vote_group = heads
  int32_t rho_of;            // tier
  const int32_t* occupancy;  // [sequences * h, S, 256], tier
  const int32_t* sequences;  // [b]
};

struct VoteArgs {
  StoreView store;
  VoteTables tables;
  const int32_t* bad;  // [rows]
  int64_t rows;
  const int32_t* sequences;  // [b]
  const int64_t* lengths;    // [b]
  float* votes;              // [rows, votes_stride]
  int64_t votes_stride;
  uint32_t* bins;  // kCounts: of the first pass, of row 0; 0 at first
  int64_t bins_stride;
};

// The vectors of a row that vote, [vectors, d].
PKV_DEVICE const float* voting_vectors(const PreparedQueries& queries, int32_t vectors, int32_t d,
                                       int64_t row, bool is_heads) {
  return is_heads ? queries.heads + row * queries.group * d : queries.sum + row * vectors * d;
}

// 4.2: A = max over `count` subspaces of fold(|y_j|, j in b), for every lane of the 32.
PKV_DEVICE float largest_subspace(const float* y, int32_t count) {
  float A = 0.0F;
  for (int32_t b = LaneGroup<32>::rank(); b < count; b += 32) {
    const float sum = fold8([&](int j) { return absolute(y[8 * b + j]); });
    A = A < sum ? sum : A;
  }
  return LaneGroup<32>::max(A);
}

// 4.2: z_j. Of a bad query, whose tables nobody uses, anything may come: such numbers are 0.
PKV_DEVICE int32_t graded_integer(float y, float A) {
  if (A == 0.0F) return 0;
  const float z = frint(fdiv_rn(fmul_rn(123.0F, y), A));
  return absolute(z) <= 127.0F ? static_cast<int32_t>(z) : 0;
}

// 4.2: entry `pattern` of the table of the subspace with the integers z[0 .. 8).
PKV_DEVICE int8_t graded_entry(const int32_t* z, int32_t pattern) {
  int32_t sum = 0;
#pragma unroll
  for (int32_t j = 0; j < 8; ++j) sum += ((pattern >> j) & 1) != 0 ? z[j] : -z[j];
  return static_cast<int8_t>(sum);
}

// 4.3: m_p
PKV_DEVICE float pattern_sum(const float* y, int32_t pattern) {
  return fold8([&](int j) { return ((pattern >> j) & 1) != 0 ? y[j] : -y[j]; });
}

// 4.3: points of a pattern with `before` keys before it, of n.
PKV_DEVICE int8_t tier_points(int64_t before, int64_t n, int64_t good_keys) {
  constexpr int kTau[format::kTiers] = {format::kTau[0], format::kTau[1], format::kTau[2],
                                        format::kTau[3], format::kTau[4], format::kTau[5]};
  const int rho = format::tier_rho_percent(good_keys);
  int8_t points = 0;
#pragma unroll
  for (int tier = 0; tier < format::kTiers; ++tier) {
    if (before < format::tier_boundary(n, rho, kTau[tier])) ++points;
  }
  return points;
}

// Shared memory of graded_table.
struct GradedShared {
  int32_t z[format::kMaxHeadDim];
};

// The integers of vector `vector` of a row that votes; by a group of 32 lanes.
PKV_DEVICE void graded_integers(const VoteTableArgs& a, int64_t row, int32_t vector,
                                GradedShared& shared) {
  const int32_t d = a.head_dim;
  const float* all = voting_vectors(a.queries, a.tables.vectors, d, row, a.is_heads != 0);
  const float A = largest_subspace(all, a.tables.vectors * (d / 8));
  const float* y = all + int64_t{vector} * d;
  for (int32_t j = LaneGroup<32>::rank(); j < d; j += 32) shared.z[j] = graded_integer(y[j], A);
}
// Its table, by a block that has the integers. Thread: four entries, a word.
template <int kThreads>
PKV_DEVICE void graded_table(const VoteTableArgs& a, int64_t row, int32_t vector,
                             const GradedShared& shared) {
  const int32_t words = a.head_dim / 8 * kPatterns / 4;
  auto* table =
      reinterpret_cast<uint32_t*>(a.tables.entries) + (row * a.tables.vectors + vector) * words;
  for (int32_t i = thread_index(); i < words; i += kThreads) {
    const int32_t* z = shared.z + 4 * i / kPatterns * 8;
    uint32_t word = 0;
#pragma unroll
    for (int32_t e = 0; e < 4; ++e) {
      word |= uint32_t{static_cast<uint8_t>(graded_entry(z, 4 * i % kPatterns + e))} << (8 * e);
    }
    table[i] = word;
  }
}

// Block: the tables of one vector of a row.
template <class Traits>
PKV_KERNEL(Traits::kTableThreads)
graded_tables(VoteTableArgs a) {
  PKV_SHARED(GradedShared, shared);
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    for (auto vector = static_cast<int32_t>(block_x()); vector < a.tables.vectors;
         vector += static_cast<int32_t>(grid_x())) {
      if (LaneGroup<32>::index() == 0) graded_integers(a, row, vector, shared);
      sync_block();
      graded_table<Traits::kTableThreads>(a, row, vector, shared);
      sync_block();  // z is read
    }
  }
}

// Block: the table of one subspace of a row. The rank of a pattern is counted, not sorted for.
template <class Traits>
PKV_KERNEL(Traits::kTableThreads)
tier_tables(VoteTableArgs a) {
  struct Shared {
    float sum[kPatterns];
    int32_t occupancy[kPatterns];
  };
  PKV_SHARED(Shared, shared);
  const int32_t S = a.head_dim / 8;
  const auto b = static_cast<int32_t>(block_x());
  const bool of_keys = a.rho_of == PKV_RHO_OF_KEYS;
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const RowIndex at = row_index(row, a.kv_heads);
    const int64_t store_row = int64_t{a.sequences[at.entry]} * a.kv_heads + at.head;
    const float* y = a.queries.sum + row * a.head_dim + 8 * b;
    const int32_t* occupancy = a.occupancy + (store_row * S + b) * kPatterns;
    for (int32_t p = thread_index(); p < kPatterns; p += Traits::kTableThreads) {
      shared.sum[p] = pattern_sum(y, p);
      shared.occupancy[p] = occupancy[p];
    }
    sync_block();
    for (int32_t p = thread_index(); p < kPatterns; p += Traits::kTableThreads) {
      const float m = shared.sum[p];
      int64_t before = 0;
      int64_t good_keys = 0;
      for (int32_t other = 0; other < kPatterns; ++other) {
        const int32_t count = shared.occupancy[other];
        good_keys += count;
        const float sum = shared.sum[other];
        if (sum > m || (sum == m && other < p)) before += of_keys ? count : 1;
      }
      const int64_t n = of_keys ? good_keys : kPatterns;
      a.tables.entries[(row * S + b) * kPatterns + p] = tier_points(before, n, good_keys);
    }
    sync_block();  // shared is read
  }
}

// Sign bytes that one access moves, at most 16 subspaces of a key. Bytes behind the last subspace
// are 0, and not looked up.
PKV_DEVICE Words<4> load_signs(const std::byte* signs, int32_t S, int32_t first) {
  if (S > 8) return load_words<4>(signs + first);
  if (S > 4) {
    const Words<2> two = load_words<2>(signs);
    return {{two.word[0], two.word[1], 0, 0}};
  }
  return {{load_words<1>(signs).word[0], 0, 0, 0}};
}
// The sum of their table entries; `count` of them exist.
PKV_DEVICE int32_t look_up(const int8_t* table, const Words<4>& signs, int32_t count) {
  int32_t t = 0;
#pragma unroll
  for (int32_t b = 0; b < 16; ++b) {
    if (b < count) t += table[b * kPatterns + ((signs.word[b / 4] >> (8 * (b % 4))) & 0xffU)];
  }
  return t;
}

// The digits of the first pass of best.cuh, or nothing.
template <bool kCounts>
struct VoteBins {
  BestBins<2> bins;

  template <int kThreads>
  PKV_DEVICE void clear() {
    bins.template clear<kThreads>();
  }
  PKV_DEVICE void add(float vote) {
    const uint32_t key = order_key(vote);
    if (key != 0) bins.add(best_digit(key, 0));
  }
  template <int kThreads>
  PKV_DEVICE void add_to(uint32_t* row) const {
    bins.template add_to<kThreads>(row, 1 << best_bits(0));
  }
};
template <>
struct VoteBins<false> {
  template <int kThreads>
  PKV_DEVICE void clear() {}
  PKV_DEVICE void add(float) {}
  template <int kThreads>
  PKV_DEVICE void add_to(uint32_t*) const {}
};

// Block: a tile of kVoteKeys keys per thread, of one row. A thread's keys lie kVoteThreads apart.
// With bins (of the step) the digits of the first pass of best.cuh are counted on the way, and what
// a thread reads of its keys is under way at once: few keys are bound by latency, many by the
// look-ups, which want registers for as many threads as there can be.
template <class Traits, bool kCounts>
PKV_KERNEL(Traits::kVoteThreads)
vote_keys(VoteArgs a) {
  constexpr int kThreads = Traits::kVoteThreads;
  constexpr int kKeys = Traits::kVoteKeys;
  constexpr int kTogether = kCounts ? kKeys : 1;
  struct alignas(16) Shared {
    int8_t table[kMaxSubspaces * kPatterns];
  };
  PKV_SHARED(Shared, shared);
  PKV_SHARED(VoteBins<kCounts>, bins);
  const gpu::Layout& layout = a.store.layout;
  const int32_t S = layout.subspaces;
  const int32_t table_bytes = S * kPatterns;
  const int64_t tile = int64_t{block_x()} * kThreads * kKeys;
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const RowIndex at = row_index(row, a.store.kv_heads);
    const int64_t n = a.lengths[at.entry];
    if (tile >= n) continue;  // the whole block
    const format::StoreRow records = a.store.row(a.sequences[at.entry], at.head);

    bins.template clear<kThreads>();

    // Positions behind the end read the tile's first key.
    const auto position_of = [&](int k) {
      const int64_t position = tile + int64_t{k} * kThreads + thread_index();
      return position < n ? position : tile;
    };
    int32_t most[kKeys] = {};
    for (int32_t vector = 0; vector < a.tables.vectors; ++vector) {
      const int8_t* table = a.tables.entries + (row * a.tables.vectors + vector) * table_bytes;
      for (int32_t i = 16 * thread_index(); i < table_bytes; i += 16 * kThreads) {
        store_words(shared.table + i, load_words<4>(table + i));
      }
      sync_block();
#pragma unroll
      for (int k0 = 0; k0 < kKeys; k0 += kTogether) {
        int32_t t[kTogether] = {};
        for (int32_t first = 0; first < S; first += 16) {
          Words<4> words[kTogether];
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            const int64_t position = position_of(k0 + i);
            words[i] = load_signs(records.piece(position) + layout.sign(records.local(position)), S,
                                  first);
          }
          const int32_t count = S - first < 16 ? S - first : 16;
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            t[i] += look_up(shared.table + first * kPatterns, words[i], count);
          }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          most[k0 + i] = vector == 0 || most[k0 + i] < t[i] ? t[i] : most[k0 + i];
        }
      }
      sync_block();  // the table is read
    }

    const bool is_bad = a.bad[row] != 0;  // 4.4
    float* votes = a.votes + row * a.votes_stride;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const int64_t position = tile + int64_t{k} * kThreads + thread_index();
      if (position >= n) continue;
      const uint16_t factor = *reinterpret_cast<const uint16_t*>(
          records.piece(position) + layout.factor(records.local(position)));
      const float vote = is_bad
                             ? quiet_nan()
                             : fmul_rn(static_cast<float>(most[k]), format::bf16_to_float(factor));
      votes[position] = vote;
      bins.add(vote);
    }
    bins.template add_to<kThreads>(a.bins + row * a.bins_stride);
  }
}

}  // namespace PKV_GPU_NS
