// Sums over the threads of a block. Every thread calls; a barrier stands before and behind.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"

namespace PKV_GPU_NS {

template <class T>
struct BlockSum {
  T before;  // of the threads of a smaller index
  T total;
};

// `room`: kThreads / 32 values of shared memory, free to use again afterwards. T has 4 or 8 bytes.
template <int kThreads, class T>
PKV_DEVICE BlockSum<T> block_sum(T value, T* room) {
  using Group = LaneGroup<32>;
  T inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int rank = Group::rank();
    const T other = Group::shuffle(inclusive, rank >= step ? rank - step : rank);
    if (rank >= step) inclusive += other;
  }
  const T lower = Group::shuffle(inclusive, Group::rank() > 0 ? Group::rank() - 1 : 0);
  if (Group::rank() == 31) room[Group::index()] = inclusive;
  sync_block();
  BlockSum<T> sum = {T{}, T{}};
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < Group::index()) sum.before += room[i];
    sum.total += room[i];
  }
  if (Group::rank() > 0) sum.before += lower;
  sync_block();
  return sum;
}

}  // namespace PKV_GPU_NS
