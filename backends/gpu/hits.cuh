// The hits of rerank: the best candidates by score, in their order, and adaptive k.
// docs/algorithm.md, sections 6.2 and 6.3. Exact given the scores; adaptive k sums in double.
// best.cuh finds which they are; here tiles of them are sorted, one block each, and each hit finds
// its slot by looking itself up in the other tiles.
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/logit.cuh"

namespace PKV_GPU_NS {

// Which candidates of a row the hits are chosen from.
struct HitBounds {
  const float* scores;  // [rows, stride]
  int64_t stride;
  const int32_t* candidate_counts;
  const int32_t* bad;
  int32_t k;

  PKV_DEVICE BestRow row(int64_t r) const {
    const int64_t n = bad[r] != 0 ? 0 : candidate_counts[r];
    return {scores + r * stride, n, k < n ? k : n};
  }
};

struct HitArgs {
  HitBounds bounds;
  int64_t rows;
  const int32_t* candidates;  // [rows, bounds.stride]
  const int32_t* places;      // [rows, k] the hits among the candidates, ascending
  uint64_t* sorted;           // [rows, k] hit keys, ascending within each tile
  int32_t* positions;         // [rows, k]
  float* scores;              // [rows, k]
  int32_t* counts;            // [rows]
  int32_t k_min;
  double share;  // 0: off
};

// Ascending: score descending, then place ascending.
PKV_DEVICE uint64_t hit_key(float score, int32_t place) {
  return uint64_t{~order_key(score)} << 32 | static_cast<uint32_t>(place);
}

// Sorts `size` keys, a power of two, ascending, in memory of the block. Batcher's bitonic network.
template <int kThreads>
PKV_DEVICE void sort_keys(uint64_t* keys, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step >= 1; step /= 2) {
      sync_block();
      for (int pair = thread_index(); pair < size / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & (step - 1));  // the pair-th i without bit `step`
        const uint64_t a = keys[i];
        const uint64_t b = keys[i + step];
        if ((a > b) != ((i & run) == 0)) continue;
        keys[i] = b;
        keys[i + step] = a;
      }
    }
  }
  sync_block();
}

// The same of `count` different keys, few of them, into `sorted`, apart from them: each key counts
// those below. A barrier stands before and behind.
template <int kThreads>
PKV_DEVICE void rank_keys(const uint64_t* keys, int32_t count, uint64_t* sorted) {
  sync_block();
  for (int32_t i = thread_index(); i < count; i += kThreads) {
    const uint64_t key = keys[i];
    int32_t below = 0;
#pragma unroll 8
    for (int32_t other = 0; other < count; ++other) below += keys[other] < key ? 1 : 0;
    sorted[below] = key;
  }
  sync_block();
}

// How many of `count` ascending keys are below `key`.
PKV_DEVICE int32_t keys_below(const uint64_t* keys, int32_t count, uint64_t key) {
  int32_t begin = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (keys[begin + half] < key) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

PKV_DEVICE void write_hit(const HitArgs& a, int64_t row, int32_t slot, uint64_t key) {
  const int64_t at = row * a.bounds.k + slot;
  a.positions[at] = a.candidates[row * a.bounds.stride + static_cast<uint32_t>(key)];
  a.scores[at] = value_of_order_key(~static_cast<uint32_t>(key >> 32));
}
PKV_DEVICE void write_filler(const HitArgs& a, int64_t row, int32_t slot) {
  a.positions[row * a.bounds.k + slot] = -1;
  a.scores[row * a.bounds.k + slot] = minus_infinity();
}

// Block: a tile of a row's hits. If one tile has them all they are written, otherwise place_hits
// does that.
template <class Traits>
PKV_KERNEL(Traits::kHitThreads)
sort_hits(HitArgs a) {
  constexpr int kThreads = Traits::kHitThreads;
  constexpr int kTile = Traits::kHitTile;
  struct Shared {
    uint64_t keys[kTile];
  };
  PKV_SHARED(Shared, shared);
  const int32_t k = a.bounds.k;
  const auto begin = static_cast<int32_t>(block_x()) * kTile;
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const int32_t left = a.counts[r] - begin;
    const int32_t count = left < kTile ? (left < 0 ? 0 : left) : kTile;
    const int32_t* places = a.places + r * k + begin;
    const float* scores = a.bounds.scores + r * a.bounds.stride;
    int size = 1;
    while (size < count) size *= 2;
    for (int32_t i = thread_index(); i < size; i += kThreads) {
      shared.keys[i] = i < count ? hit_key(scores[places[i]], places[i]) : ~uint64_t{0};
    }
    sort_keys<kThreads>(shared.keys, size);
    const int32_t end = k <= kTile ? k : count;
    for (int32_t i = thread_index(); i < end; i += kThreads) {
      if (k > kTile) {
        a.sorted[r * k + begin + i] = shared.keys[i];
      } else if (i < count) {
        write_hit(a, r, i, shared.keys[i]);
      } else {
        write_filler(a, r, i);
      }
    }
    sync_block();  // the keys are read
  }
}

// Thread: one of `sorted` of a row.
template <class Traits>
PKV_KERNEL(Traits::kHitThreads)
place_hits(HitArgs a) {
  constexpr int kTile = Traits::kHitTile;
  const int32_t k = a.bounds.k;
  const int32_t i = static_cast<int32_t>(block_x()) * Traits::kHitThreads + thread_index();
  if (i >= k) return;
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const int32_t count = a.counts[r];
    if (i >= count) {
      write_filler(a, r, i);
      continue;
    }
    const uint64_t* sorted = a.sorted + r * k;
    const uint64_t key = sorted[i];
    int32_t slot = i % kTile;
    for (int32_t begin = 0; begin < count; begin += kTile) {
      if (begin == i / kTile * kTile) continue;
      const int32_t left = count - begin;
      slot += keys_below(sorted + begin, left < kTile ? left : kTile, key);
    }
    write_hit(a, r, slot, key);
  }
}

// 6.3. Block: a row; its hits that are not needed become fillers.
template <class Traits>
PKV_KERNEL(Traits::kHitThreads)
adapt_hits(HitArgs a) {
  constexpr int kThreads = Traits::kHitThreads;
  struct Shared {
    double sums[kThreads / 32];
    int32_t counts[kThreads / 32];
  };
  PKV_SHARED(Shared, shared);
  const int32_t k = a.bounds.k;
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const int32_t most = a.counts[r];
    if (most == 0) continue;
    const BestRow row = a.bounds.row(r);
    float* scores = a.scores + r * k;
    const float best = scores[0];
    double total = 0.0;
    for (int64_t c = thread_index(); c < row.n; c += kThreads) {
      total += static_cast<double>(std::exp(row.values[c] - best));
    }
    const double target = a.share * block_sum<kThreads>(total, shared.sums).total;
    // A hit is needed if those before it hold less than the target.
    double held = 0.0;
    int32_t needed = 0;
    for (int32_t begin = 0; begin < most; begin += kThreads) {
      const int32_t slot = begin + thread_index();
      const double weight = slot < most ? static_cast<double>(std::exp(scores[slot] - best)) : 0.0;
      const BlockSum<double> sum = block_sum<kThreads>(weight, shared.sums);
      if (slot < most && held + sum.before < target) ++needed;
      held += sum.total;
    }
    int32_t count = block_sum<kThreads>(needed, shared.counts).total;
    const auto least = static_cast<int32_t>(a.k_min < row.n ? a.k_min : row.n);
    count = count < least ? least : count;
    count = count > most ? most : count;
    for (int32_t slot = count + thread_index(); slot < most; slot += kThreads) {
      write_filler(a, r, slot);
    }
    if (thread_index() == 0) a.counts[r] = count;
    sync_block();  // before the next row's sums
  }
}

}  // namespace PKV_GPU_NS
