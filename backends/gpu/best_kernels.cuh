// The kernels that choose the best of each row, and their launches (best.cuh has what they do).
// Bounds: `BestRow row(int64_t row) const`, a device function.
// Short rows take one block each, long ones some each and five launches.
#pragma once

#include "backends/gpu/best.cuh"
#include "backends/gpu/scratch.h"
#include PKV_GPU_TRAITS

namespace PKV_GPU_NS {

struct BestOutput {
  int32_t* places;  // [rows, stride] ascending
  int64_t stride;
  int32_t* counts;     // [rows]
  int32_t has_filler;  // 1: -1 behind the places
};

template <class Bounds>
struct BestArgs {
  Bounds bounds;
  int64_t rows;
  BestOutput out;
  BestScratch scratch;
};

// Count and fillers, by all threads of the row's blocks.
template <int kThreads>
PKV_DEVICE void write_best_ends(const BestOutput& out, int64_t row, int32_t count) {
  if (block_x() == 0 && thread_index() == 0) out.counts[row] = count;
  if (out.has_filler == 0) return;
  const int64_t step = int64_t{grid_x()} * kThreads;
  for (int64_t slot = count + int64_t{block_x()} * kThreads + thread_index(); slot < out.stride;
       slot += step) {
    out.places[row * out.stride + slot] = -1;
  }
}

// The best of one row, by a block that takes it alone: places and how many there are. A barrier
// stands behind what is in `shared`.
template <int kThreads, int kCopies>
PKV_DEVICE int32_t best_of_row(const BestRow& row, int32_t* places,
                               BestShared<kThreads, kCopies>& shared) {
  using Group = LaneGroup<32>;
  BestState state = first_state(row);
  shared.bins.template clear<kThreads>();
  count_digits<0, kThreads>(row.values, 0, row.n, 0, shared.bins);
  state = find_digit<0>(state, shared.bins, shared);
  shared.bins.template clear<kThreads>();
  count_digits<1, kThreads>(row.values, 0, row.n, state.prefix, shared.bins);
  state = find_digit<1>(state, shared.bins, shared);
  shared.bins.template clear<kThreads>();
  count_digits<2, kThreads>(row.values, 0, row.n, state.prefix, shared.bins);
  state = find_digit<2>(state, shared.bins, shared);
  const int32_t count = state.wanted;
  if (count > 0) {
    const BestRuns runs(row.n, Group::count());
    const int64_t begin = runs.begin(Group::index());
    const int64_t end = runs.begin(Group::index() + 1);
    const uint64_t mine = count_run(row, state, begin, end);
    if (Group::rank() == 0) shared.runs[Group::index()] = mine;
    sync_block();
    uint64_t before = 0;
    for (int i = 0; i < Group::index(); ++i) before += shared.runs[i];
    write_run(row, state, begin, end, before, places);
    sync_block();  // the runs are read
  }
  return count;
}

// Block: a row.
template <class Traits, class Bounds>
PKV_KERNEL(Traits::kBestThreads)
best_of_short_rows(BestArgs<Bounds> a) {
  PKV_SHARED(BestShared<Traits::kBestThreads>, shared);
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const int32_t count = best_of_row(a.bounds.row(r), a.out.places + r * a.out.stride, shared);
    write_best_ends<Traits::kBestThreads>(a.out, r, count);
  }
}

// The state after pass kPass of a row, from the bins that the kernel before has left.
template <int kPass, int kThreads, class Bounds>
PKV_DEVICE BestState state_after(const BestArgs<Bounds>& a, int64_t r, const BestRow& row,
                                 BestShared<kThreads>& shared) {
  const uint32_t* bins = a.scratch.bins + (r * kBestPasses + kPass) * kBestBins;
  const BestState before =
      kPass == 0 ? first_state(row) : a.scratch.states[r * kBestPasses + kPass - 1];
  const BestState state = find_digit<kPass>(
      before, [bins](int digit) { return bins[digit]; }, shared);
  if (block_x() == 0 && thread_index() == 0) a.scratch.states[r * kBestPasses + kPass] = state;
  return state;
}

// Block: its runs of a row. The digits of pass kPass.
template <class Traits, class Bounds, int kPass>
PKV_KERNEL(Traits::kBestThreads)
best_digits(BestArgs<Bounds> a) {
  constexpr int kThreads = Traits::kBestThreads;
  using Group = LaneGroup<32>;
  PKV_SHARED(BestShared<kThreads>, shared);
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const BestRow row = a.bounds.row(r);
    const BestRuns runs(row.n, a.scratch.run_count);
    const int64_t begin = runs.begin(int64_t{block_x()} * Group::count());
    const int64_t end = runs.begin((int64_t{block_x()} + 1) * Group::count());
    if (begin == end && block_x() > 0) continue;
    uint32_t prefix = 0;
    if constexpr (kPass > 0) prefix = state_after<kPass - 1>(a, r, row, shared).prefix;
    shared.bins.template clear<kThreads>();
    count_digits<kPass, kThreads>(row.values, begin, end, prefix, shared.bins);
    shared.bins.template add_to<kThreads>(a.scratch.bins + (r * kBestPasses + kPass) * kBestBins,
                                          1 << best_bits(kPass));
  }
}

// Group of 32 lanes: the counts of a run.
template <class Traits, class Bounds>
PKV_KERNEL(Traits::kBestThreads)
best_counts(BestArgs<Bounds> a) {
  constexpr int kThreads = Traits::kBestThreads;
  using Group = LaneGroup<32>;
  PKV_SHARED(BestShared<kThreads>, shared);
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const BestRow row = a.bounds.row(r);
    const BestRuns runs(row.n, a.scratch.run_count);
    const int64_t first = int64_t{block_x()} * Group::count();
    if (runs.begin(first) == row.n && block_x() > 0) continue;
    const BestState cut = state_after<kBestPasses - 1>(a, r, row, shared);
    const int64_t run = first + Group::index();
    const uint64_t count = count_run(row, cut, runs.begin(run), runs.begin(run + 1));
    if (Group::rank() == 0) a.scratch.runs[r * a.scratch.run_count + run] = count;
  }
}

// Group of 32 lanes: a run.
template <class Traits, class Bounds>
PKV_KERNEL(Traits::kBestThreads)
best_places(BestArgs<Bounds> a) {
  constexpr int kThreads = Traits::kBestThreads;
  using Group = LaneGroup<32>;
  struct Shared {
    uint64_t sums[kThreads / 32];
  };
  PKV_SHARED(Shared, shared);
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const BestRow row = a.bounds.row(r);
    const BestState cut = a.scratch.states[r * kBestPasses + kBestPasses - 1];
    write_best_ends<kThreads>(a.out, r, cut.wanted);
    const BestRuns runs(row.n, a.scratch.run_count);
    const int64_t first = int64_t{block_x()} * Group::count();
    if (runs.begin(first) == row.n || cut.wanted == 0) continue;
    const uint64_t* counts = a.scratch.runs + r * a.scratch.run_count;
    uint64_t before = 0;
    for (int64_t run = thread_index(); run < first; run += kThreads) before += counts[run];
    before = block_sum<kThreads>(before, shared.sums).total;
#pragma unroll 1
    for (int i = 0; i < Group::index(); ++i) before += counts[first + i];
    const int64_t run = first + Group::index();
    write_run(row, cut, runs.begin(run), runs.begin(run + 1), before,
              a.out.places + r * a.out.stride);
  }
}

// Blocks of each of `rows` rows of up to `max_length` values; 1: a short one.
inline unsigned best_blocks(int64_t rows, int64_t max_length) {
  if (max_length <= Traits::kBestShort) return 1;
  const int64_t most = rows > 0 ? Traits::kBestBlocks / rows : 0;
  return grid_tiles(max_length, Traits::kBestTile, most > 1 ? most : 1);
}

// max_length: the largest n that a row may have.
inline BestScratch take_best_scratch(Scratch& scratch, int64_t rows, int64_t max_length) {
  BestScratch out{};
  if (max_length <= Traits::kBestShort) return out;
  out.run_count = static_cast<int32_t>(best_blocks(rows, max_length)) * (Traits::kBestThreads / 32);
  out.bins = scratch.take<uint32_t>(rows * kBestPasses * kBestBins);
  out.states = scratch.take<BestState>(rows * kBestPasses);
  out.runs = scratch.take<uint64_t>(rows * out.run_count);
  return out;
}

// is_counted: the bins of the first pass are there, those of the others 0. Else all are cleared.
template <class Bounds>
gpuError_t launch_best(const Bounds& bounds, int64_t rows, int64_t max_length,
                       const BestOutput& out, const BestScratch& scratch, gpuStream_t stream,
                       bool is_counted = false) {
  const BestArgs<Bounds> args = {bounds, rows, out, scratch};
  LaunchShape shape;
  shape.grid_x = best_blocks(rows, max_length);
  shape.grid_y = grid_rows(rows);
  shape.threads = Traits::kBestThreads;
  if (max_length <= Traits::kBestShort) {
    return launch("best_of_short_rows", best_of_short_rows<Traits, Bounds>, shape, stream, args);
  }
  gpuError_t error = gpuSuccess;
  const auto then = [&](const char* name, void (*kernel)(BestArgs<Bounds>)) {
    if (error == gpuSuccess) error = launch(name, kernel, shape, stream, args);
  };
  if (!is_counted) {
    const int64_t bytes = rows * kBestPasses * kBestBins * int64_t{sizeof(uint32_t)};
    error = gpuMemsetAsync(scratch.bins, 0, static_cast<std::size_t>(bytes), stream);
    then("best_digits_0", best_digits<Traits, Bounds, 0>);
  }
  then("best_digits_1", best_digits<Traits, Bounds, 1>);
  then("best_digits_2", best_digits<Traits, Bounds, 2>);
  then("best_counts", best_counts<Traits, Bounds>);
  then("best_places", best_places<Traits, Bounds>);
  return error;
}

}  // namespace PKV_GPU_NS
