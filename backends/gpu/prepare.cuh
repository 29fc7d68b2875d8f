// All that a step makes of its queries, in one launch: rotations (query.cuh), the tables of the
// graded vote (vote.cuh), what estimates take from a head (estimate.cuh), and room for the select
// to count in. docs/algorithm.md, sections 4.1, 4.2 and 6.1. Exact.
#pragma once

#include "backends/gpu/estimate.cuh"
#include "backends/gpu/vote.cuh"

namespace PKV_GPU_NS {

struct PrepareArgs {
  QueryArgs query;
  VoteTableArgs tables;
  int32_t has_tables;  // 0: those of the tier vote have a launch of their own
  EstimateQueryArgs estimate;
  uint32_t* bins;  // [rows, bins_stride] to be cleared; NULL: none
  int64_t bins_stride;
};

// Block: a row. Dynamic shared memory: d floats per group of 32 lanes.
template <class Traits>
PKV_KERNEL(Traits::kPrepareThreads)
prepare_step(PrepareArgs a) {
  constexpr int kThreads = Traits::kPrepareThreads;
  using Group = LaneGroup<32>;
  PKV_SHARED(QueryShared<kThreads>, query_shared);
  PKV_SHARED(GradedShared, graded_shared);
  PKV_DYNAMIC_SHARED(memory);
  for (int64_t row = block_y(); row < a.query.rows; row += grid_y()) {
    if (a.bins != nullptr) {
      uint32_t* bins = a.bins + row * a.bins_stride;
      for (int64_t i = 4 * thread_index(); i < a.bins_stride; i += 4 * kThreads) {
        store_words(bins + i, Words<4>{});
      }
    }
    const bool is_bad =
        prepare_row<kThreads>(a.query, row, reinterpret_cast<float*>(memory), query_shared);
    // Group 0 begins with the tables, so heads begin with the last one.
    for (int32_t g = Group::count() - 1 - Group::index(); !is_bad && g < a.query.out.group;
         g += Group::count()) {
      prepare_estimate_head(a.estimate, row, g);
    }
    for (int32_t vector = 0; a.has_tables != 0 && vector < a.tables.tables.vectors; ++vector) {
      if (Group::index() == 0) graded_integers(a.tables, row, vector, graded_shared);
      sync_block();
      graded_table<kThreads>(a.tables, row, vector, graded_shared);
      sync_block();  // the integers are read
    }
  }
}

}  // namespace PKV_GPU_NS
