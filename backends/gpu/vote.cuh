// Stage vote: one number per key from its sign plane and factor. docs/algorithm.md, section 4.
// Not here: choosing candidates (select.cuh); the binary tensor-core vote (backends/cuda).
// Both votes are a table per subspace, 256 bytes each, and a sum over the subspaces; the factor of
// the tier vote is 1 (layout.h), so that both end with the same product.
// Traffic per key and KV head, d = 128: 18 B read, 4 B written.
// Bound: shared memory, one byte look-up per subspace and key.
// Exact: integer sums, one fp32 product.
// Differs from cpu_ref: the tables hold bytes, and a block stages one of them at a time.
#pragma once

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

// Block: the tables of one vector of a row.
template <class Traits>
PKV_KERNEL(Traits::kTableThreads)
graded_tables(VoteTableArgs a) {
  struct Shared {
    int32_t z[format::kMaxHeadDim];
  };
  PKV_SHARED(Shared, shared);
  const int32_t d = a.head_dim;
  const int32_t vectors = a.tables.vectors;
  const int32_t entries = d / 8 * kPatterns;
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const float* all = voting_vectors(a.queries, vectors, d, row, a.is_heads != 0);
    const float A = largest_subspace(all, vectors * (d / 8));
    for (auto vector = static_cast<int32_t>(block_x()); vector < vectors;
         vector += static_cast<int32_t>(grid_x())) {
      const float* y = all + int64_t{vector} * d;
      for (int32_t j = thread_index(); j < d; j += Traits::kTableThreads) {
        shared.z[j] = graded_integer(y[j], A);
      }
      sync_block();
      int8_t* table = a.tables.entries + (row * vectors + vector) * entries;
      for (int32_t i = thread_index(); i < entries; i += Traits::kTableThreads) {
        table[i] = graded_entry(shared.z + i / kPatterns * 8, i % kPatterns);
      }
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

// The sum of table entries for the sign bytes of a key. Bytes behind the last subspace are not
// looked up.
PKV_DEVICE int32_t look_up(const int8_t* table, const std::byte* signs, int32_t S) {
  int32_t t = 0;
  const auto add = [&](uint32_t word, int32_t b) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (b + i < S) t += table[(b + i) * kPatterns + ((word >> (8 * i)) & 0xffU)];
    }
  };
  if (S > 8) {
    for (int32_t b = 0; b < S; b += 16) {
      const Words<4> words = load_words<4>(signs + b);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) add(words.word[i], b + 4 * i);
    }
    return t;
  }
  for (int32_t b = 0; b < S; b += 4) add(load_words<1>(signs + b).word[0], b);
  return t;
}

// Block: a tile of kVoteKeys keys per thread, of one row. A thread's keys lie kVoteThreads apart.
template <class Traits>
PKV_KERNEL(Traits::kVoteThreads)
vote_keys(VoteArgs a) {
  constexpr int kThreads = Traits::kVoteThreads;
  constexpr int kKeys = Traits::kVoteKeys;
  struct alignas(16) Shared {
    int8_t table[kMaxSubspaces * kPatterns];
  };
  PKV_SHARED(Shared, shared);
  const gpu::Layout& layout = a.store.layout;
  const int32_t S = layout.subspaces;
  const int32_t table_bytes = S * kPatterns;
  const int64_t begin = int64_t{block_x()} * kThreads * kKeys + thread_index();
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    const RowIndex at = row_index(row, a.store.kv_heads);
    const int64_t n = a.lengths[at.entry];
    if (int64_t{block_x()} * kThreads * kKeys >= n) continue;  // the whole block
    const format::StoreRow records = a.store.row(a.sequences[at.entry], at.head);
    float* votes = a.votes + row * a.votes_stride;

    int32_t most[kKeys] = {};
    for (int32_t vector = 0; vector < a.tables.vectors; ++vector) {
      const int8_t* table = a.tables.entries + (row * a.tables.vectors + vector) * table_bytes;
      for (int32_t i = 16 * thread_index(); i < table_bytes; i += 16 * kThreads) {
        store_words(shared.table + i, load_words<4>(table + i));
      }
      sync_block();
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const int64_t position = begin + int64_t{k} * kThreads;
        if (position >= n) continue;
        const std::byte* signs = records.piece(position) + layout.sign(records.local(position));
        const int32_t t = look_up(shared.table, signs, S);
        most[k] = vector == 0 || most[k] < t ? t : most[k];
      }
      sync_block();  // the table is read
    }

    const bool is_bad = a.bad[row] != 0;  // 4.4
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const int64_t position = begin + int64_t{k} * kThreads;
      if (position >= n) continue;
      const uint16_t factor = *reinterpret_cast<const uint16_t*>(
          records.piece(position) + layout.factor(records.local(position)));
      votes[position] = is_bad
                            ? quiet_nan()
                            : fmul_rn(static_cast<float>(most[k]), format::bf16_to_float(factor));
    }
  }
}

}  // namespace PKV_GPU_NS
