// Hits and their order in one launch, where a block takes a row alone: best.cuh and hits.cuh one
// after the other, scores in shared memory. docs/algorithm.md, section 6.2. At the end the row
// cache says where the rows of the hits are.
#pragma once

#include "backends/gpu/best_kernels.cuh"
#include "backends/gpu/hits.cuh"
#include "backends/gpu/row_cache.cuh"

namespace PKV_GPU_NS {

struct ShortHitArgs {
  HitArgs hits;
  RowCacheArgs row_cache;  // its data is NULL: none
};

inline constexpr int32_t kRankedHits = 512;  // up to here each counts those before it

template <class Traits>
struct ShortHitShared {
  BestShared<Traits::kBestThreads, 2> best;  // its bins become the keys that are sorted
  RowCacheShared row_cache;
};

// Block: a row. Dynamic shared memory: a float per candidate, and k places.
template <class Traits>
PKV_KERNEL(Traits::kBestThreads)
choose_short_hits(ShortHitArgs a) {
  constexpr int kThreads = Traits::kBestThreads;
  PKV_SHARED(ShortHitShared<Traits>, shared);
  PKV_DYNAMIC_SHARED(memory);
  static_assert(2 * kRankedHits * sizeof(uint64_t) <= sizeof shared.best.bins);
  static_assert(Traits::kHitTile * sizeof(uint64_t) <= sizeof shared.best.bins);
  auto* scores = reinterpret_cast<float*>(memory);
  auto* keys = reinterpret_cast<uint64_t*>(shared.best.bins.counts);
  const HitBounds& bounds = a.hits.bounds;
  auto* places = reinterpret_cast<int32_t*>(scores + bounds.stride);
  const int32_t k = bounds.k;
  for (int64_t r = block_y(); r < a.hits.rows; r += grid_y()) {
    BestRow row = bounds.row(r);
    for (int64_t c = thread_index(); c < row.n; c += kThreads) scores[c] = row.values[c];
    row.values = scores;
    sync_block();
    const int32_t count = best_of_row(row, places, shared.best);
    if (thread_index() == 0) a.hits.counts[r] = count;
    const bool is_ranked = count <= kRankedHits;
    int32_t size = 1;
    while (size < count) size *= 2;
    for (int32_t i = thread_index(); i < size; i += kThreads) {
      keys[i] = i < count ? hit_key(scores[places[i]], places[i]) : ~uint64_t{0};
    }
    uint64_t* sorted = keys;
    if (is_ranked) {
      sorted = keys + kRankedHits;
      rank_keys<kThreads>(keys, count, sorted);
    } else {
      sort_keys<kThreads>(keys, size);
    }
    for (int32_t i = thread_index(); i < k; i += kThreads) {
      if (i < count) {
        write_hit(a.hits, r, i, sorted[i]);
      } else {
        write_filler(a.hits, r, i);
      }
    }
    sync_block();  // scores and keys are read, positions are there
    if (a.row_cache.cache.data != nullptr) {
      place_rows<kThreads>(a.row_cache, r, shared.row_cache);
    }
  }
}

// Thread: hits of a row, which may be long. Block: a row.
template <class Traits>
PKV_KERNEL(Traits::kBestThreads)
place_fetched_rows(RowCacheArgs a) {
  PKV_SHARED(RowCacheShared, shared);
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    place_rows<Traits::kBestThreads>(a, r, shared);
  }
}

}  // namespace PKV_GPU_NS
