// Stage fit: sums about a pivot, per KV head. docs/algorithm.md, section 2.2.
// Not here: the parameters, which core makes of the sums.
// A block walks every count-th tile of a head's vectors: groups judge the tile's vectors, then each
// thread adds up columns of its own, in double. The parts of all blocks are added in order.
// Traffic: keys and values twice, once from device memory.
// Bound: device memory.
// Bounded; a head's tiles are dealt out alike on every device, so two runs give equal bits.
// Differs from cpu_ref: the order of the sums.
#pragma once

#include "backends/gpu/ahead.cuh"
#include "backends/gpu/fold.cuh"
#include "backends/gpu/views.h"
#include "core/format/records.h"

namespace PKV_GPU_NS {

// What the blocks of a head leave: of keys the sums about the pivot, their squares, the values'
// sums; of queries their squares.
struct FitParts {
  double* sums;      // [h, count, width]
  int64_t* counts;   // [h, count] vectors used
  int64_t* weights;  // [h, count] the sum of their weights
  int32_t count;
  int32_t tile;  // vectors that a block walks at a time, kFitTokens at most
  int32_t width;
};

struct FitKeyArgs {
  TensorView keys;         // [h, t, d]
  TensorView values;       // [h, t, dv]
  const int32_t* weights;  // [h, t]; NULL: all 1
  const float* pivot;      // [h, d]
  int64_t tokens;          // t
  int32_t heads;           // h
  int32_t d;
  int32_t dv;      // 0: no values
  FitParts parts;  // width 2 d + dv
};

struct FitQueryArgs {
  TensorView queries;  // [hq, m, d]
  int64_t tokens;      // m
  int32_t heads;       // h
  int32_t group;       // G
  int32_t is_sum;      // the sum of the heads of a position is one query
  int32_t d;
  FitParts parts;  // width d
};

struct FitFinishArgs {
  FitParts keys;
  FitParts queries;
  int32_t d;
  int32_t dv;
  int64_t* key_counts;    // [h]
  int64_t* key_weights;   // [h]
  double* key_sums;       // [h, d]
  double* key_squares;    // [h, d]
  int64_t* query_counts;  // [h]
  double* query_squares;  // [h, d]
  double* value_sums;     // [h, dv]; NULL: not wanted
};

// Whether the sum of a vector's squares is finite, for all lanes of the group.
template <class F>
PKV_DEVICE bool is_usable(int32_t dim, const F& element) {
  return is_finite(fold_group(dim, [&](int j) {
    const float x = element(j);
    return fmul_rn(x, x);
  }));
}

// 4.1: element j of the sum of the heads of a group at one position.
PKV_DEVICE float group_element(const TensorView& queries, int32_t first_head, int32_t group,
                               int64_t m, int32_t j) {
  float sum = 0.0F;
  for (int32_t g = 0; g < group; ++g) {
    const float q = load_element(queries.dtype, queries.row(first_head + g, m), j);
    sum = g == 0 ? q : fadd_rn(sum, q);
  }
  return sum;
}

// Of each vector of a tile: 0 for one that is not used, else its weight and one.
template <class Traits>
struct FitTile {
  int64_t weight[Traits::kFitTokens];
};

// What a part counts, by thread 0.
PKV_DEVICE void count_tile(const int64_t* weight, int32_t count, int64_t* used, int64_t* total) {
  for (int32_t t = 0; t < count; ++t) {
    *used += weight[t] != 0 ? 1 : 0;
    *total += weight[t] != 0 ? weight[t] - 1 : 0;
  }
}

// Block: part block_x of a head's keys. Dynamic shared memory: `width` doubles.
template <class Traits>
PKV_KERNEL(Traits::kFitThreads)
fit_keys(FitKeyArgs a) {
  using Group = LaneGroup<32>;
  using Shared = FitTile<Traits>;
  PKV_SHARED(Shared, shared);
  PKV_DYNAMIC_SHARED(memory);
  auto* sums = reinterpret_cast<double*>(memory);
  const int32_t width = a.parts.width;
  const int32_t tile = a.parts.tile;
  const int64_t step = int64_t{a.parts.count} * tile;
  for (int64_t head = block_y(); head < a.heads; head += grid_y()) {
    int64_t used = 0;
    int64_t total = 0;
    for (int32_t i = thread_index(); i < width; i += Traits::kFitThreads) sums[i] = 0.0;
    for (int64_t first = int64_t{block_x()} * tile; first < a.tokens; first += step) {
      const int64_t left = a.tokens - first;
      const int32_t count = left < tile ? static_cast<int32_t>(left) : tile;
      for (int32_t t = Group::index(); t < count; t += Group::count()) {
        const std::byte* key = a.keys.row(head, first + t);
        bool is_used = is_usable(a.d, [&](int j) { return load_element(a.keys.dtype, key, j); });
        if (a.dv != 0 && is_used) {
          const std::byte* value = a.values.row(head, first + t);
          is_used = is_usable(a.dv, [&](int j) { return load_element(a.values.dtype, value, j); });
        }
        if (Group::rank() != 0) continue;
        const int64_t o = a.weights == nullptr ? 1 : a.weights[head * a.tokens + first + t];
        shared.weight[t] = is_used ? o + 1 : 0;
      }
      sync_block();
      for (int32_t j = thread_index(); j < a.d; j += Traits::kFitThreads) {
        const auto c = static_cast<double>(a.pivot[head * a.d + j]);
        double A = sums[j];
        double B = sums[a.d + j];
        const auto load = [&](int64_t t) {
          return load_bits(a.keys.dtype, a.keys.row(head, first + t), j);
        };
        load_ahead(0, count, load, [&](int64_t t, uint32_t bits) {
          if (shared.weight[t] <= 1) return;
          const auto o = static_cast<double>(shared.weight[t] - 1);
          const double x = static_cast<double>(value_of(a.keys.dtype, bits)) - c;
          A += o * x;
          B += o * (x * x);
        });
        sums[j] = A;
        sums[a.d + j] = B;
      }
      for (int32_t j = thread_index(); j < a.dv; j += Traits::kFitThreads) {
        double V = sums[2 * a.d + j];
        const auto load = [&](int64_t t) {
          return load_bits(a.values.dtype, a.values.row(head, first + t), j);
        };
        load_ahead(0, count, load, [&](int64_t t, uint32_t bits) {
          if (shared.weight[t] != 0) V += static_cast<double>(value_of(a.values.dtype, bits));
        });
        sums[2 * a.d + j] = V;
      }
      if (thread_index() == 0) count_tile(shared.weight, count, &used, &total);
      sync_block();  // shared is read
    }
    sync_block();  // sums of a part without tokens are there
    const int64_t part = head * a.parts.count + block_x();
    for (int32_t i = thread_index(); i < width; i += Traits::kFitThreads) {
      a.parts.sums[part * width + i] = sums[i];
    }
    if (thread_index() == 0) {
      a.parts.counts[part] = used;
      a.parts.weights[part] = total;
    }
    sync_block();  // sums are read
  }
}

// Block: part block_x of the queries of a group. Dynamic shared memory: d doubles.
template <class Traits>
PKV_KERNEL(Traits::kFitThreads)
fit_queries(FitQueryArgs a) {
  using Group = LaneGroup<32>;
  using Shared = FitTile<Traits>;
  PKV_SHARED(Shared, shared);
  PKV_DYNAMIC_SHARED(memory);
  auto* sums = reinterpret_cast<double*>(memory);
  const bool is_sum = a.is_sum != 0;
  const int64_t vectors = is_sum ? a.tokens : a.tokens * a.group;
  const int32_t tile = a.parts.tile;
  const int64_t step = int64_t{a.parts.count} * tile;
  for (int64_t head = block_y(); head < a.heads; head += grid_y()) {
    const auto first_head = static_cast<int32_t>(head) * a.group;
    const auto element = [&](int64_t i, int32_t j) {
      const int64_t g = is_sum ? 0 : i / a.tokens;
      return group_element(a.queries, first_head + static_cast<int32_t>(g), is_sum ? a.group : 1,
                           i - g * a.tokens, j);
    };
    int64_t used = 0;
    int64_t total = 0;
    for (int32_t i = thread_index(); i < a.d; i += Traits::kFitThreads) sums[i] = 0.0;
    for (int64_t first = int64_t{block_x()} * tile; first < vectors; first += step) {
      const int64_t left = vectors - first;
      const int32_t count = left < tile ? static_cast<int32_t>(left) : tile;
      for (int32_t t = Group::index(); t < count; t += Group::count()) {
        const bool is_used = is_usable(a.d, [&](int j) { return element(first + t, j); });
        if (Group::rank() == 0) shared.weight[t] = is_used ? 2 : 0;
      }
      sync_block();
      for (int32_t j = thread_index(); j < a.d; j += Traits::kFitThreads) {
        double Q = sums[j];
        for (int32_t t = 0; t < count; ++t) {
          if (shared.weight[t] == 0) continue;
          const auto q = static_cast<double>(element(first + t, j));
          Q += q * q;
        }
        sums[j] = Q;
      }
      if (thread_index() == 0) count_tile(shared.weight, count, &used, &total);
      sync_block();  // shared is read
    }
    sync_block();
    const int64_t part = head * a.parts.count + block_x();
    for (int32_t i = thread_index(); i < a.d; i += Traits::kFitThreads) {
      a.parts.sums[part * a.d + i] = sums[i];
    }
    if (thread_index() == 0) {
      a.parts.counts[part] = used;
      a.parts.weights[part] = total;
    }
    sync_block();  // sums are read
  }
}

// Column `at` of a head, its parts in order.
PKV_DEVICE double sum_parts(const FitParts& parts, int64_t head, int32_t at) {
  double sum = 0.0;
  load_ahead(
      head * parts.count, (head + 1) * parts.count,
      [&](int64_t part) { return parts.sums[part * parts.width + at]; },
      [&sum](int64_t, double of_part) { sum += of_part; });
  return sum;
}

PKV_DEVICE int64_t sum_counts(const int64_t* counts, const FitParts& parts, int64_t head) {
  int64_t sum = 0;
  load_ahead(
      head * parts.count, (head + 1) * parts.count, [counts](int64_t part) { return counts[part]; },
      [&sum](int64_t, int64_t of_part) { sum += of_part; });
  return sum;
}

// Block: a head.
template <class Traits>
PKV_KERNEL(Traits::kFitThreads)
fit_finish(FitFinishArgs a) {
  const int64_t head = block_x();
  for (int32_t j = thread_index(); j < a.d; j += Traits::kFitThreads) {
    a.key_sums[head * a.d + j] = sum_parts(a.keys, head, j);
    a.key_squares[head * a.d + j] = sum_parts(a.keys, head, a.d + j);
    a.query_squares[head * a.d + j] = sum_parts(a.queries, head, j);
  }
  for (int32_t j = thread_index(); a.value_sums != nullptr && j < a.dv; j += Traits::kFitThreads) {
    a.value_sums[head * a.dv + j] = sum_parts(a.keys, head, 2 * a.d + j);
  }
  if (thread_index() != 0) return;
  a.key_counts[head] = sum_counts(a.keys.counts, a.keys, head);
  a.key_weights[head] = sum_counts(a.keys.weights, a.keys, head);
  a.query_counts[head] = sum_counts(a.queries.counts, a.queries, head);
}

}  // namespace PKV_GPU_NS
