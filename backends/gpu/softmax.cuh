// A softmax-weighted sum of vectors, made in parts: each lane group passes over its tokens once,
// the groups of a block join, and blocks leave partial results that merge.cuh joins. Sums have one
// order, so that runs are equal bit for bit. docs/algorithm.md, section 8. Bounded.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/logit.cuh"

namespace PKV_GPU_NS {

// exp(logit - max): 0 for a logit of -inf, also where the maximum is.
PKV_DEVICE float exp_below(float logit, float max) {
  return logit == minus_infinity() ? 0.0F : fexp(logit - max);
}

PKV_DEVICE float larger(float a, float b) { return a < b ? b : a; }

// How a kernel divides vectors of up to 8 * kGroupLanes * kRuns elements: run c of the lane of rank
// r is elements 8 * (c * kGroupLanes + r) .. + 7. Each token is seen by kQueryHeads heads.
template <int kGroupLanes, int kRuns, int kQueryHeads>
struct AttendShape {
  using Group = LaneGroup<kGroupLanes>;
  static constexpr int kLanes = kGroupLanes;
  static constexpr int kChunks = kRuns;
  static constexpr int kHeads = kQueryHeads;
  static constexpr int kElements = 8 * kRuns;  // of a lane
  static constexpr int kWidth = kGroupLanes * kElements;

  // First element of a lane's run.
  PKV_DEVICE static int begin(int chunk) { return 8 * (chunk * kGroupLanes + Group::rank()); }
};

// What blocks leave, per query head [rows * G] and slot.
struct PartialStats {
  float max;      // -inf: nothing
  float sum;      // of exp(logit - max)
  float squares;  // of exp(logit - max)^2, where they are wanted
  float reserved;
};
struct Partials {
  PartialStats* stats;  // [heads, slots]
  float* values;        // [heads, slots, dv], in units of exp(max); not of slots without values
  int32_t slots;
};

// The state of a lane group; `max`, `sum` and `squares` are alike in its lanes.
template <class Shape>
struct Softmax {
  static constexpr int kHeads = Shape::kHeads;

  float max[kHeads];
  float sum[kHeads];
  float squares[kHeads];
  float out[kHeads][Shape::kElements];

  PKV_DEVICE void clear() {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      max[h] = minus_infinity();
      sum[h] = 0.0F;
      squares[h] = 0.0F;
#pragma unroll
      for (int j = 0; j < Shape::kElements; ++j) out[h][j] = 0.0F;
    }
  }

  // Head h may see this logit: what was summed is rescaled where it is the largest, or NaN, which
  // is kept in the sum.
  PKV_DEVICE void raise(int h, float logit) {
    if (logit <= max[h]) return;
    const float factor = fexp(max[h] - logit);
    max[h] = logit;
    sum[h] *= factor;
    squares[h] *= factor * factor;
#pragma unroll
    for (int j = 0; j < Shape::kElements; ++j) out[h][j] *= factor;
  }

  // The weight of a logit that `raise` has seen, and its share of the sums.
  PKV_DEVICE float weigh(int h, float logit) {
    const float weight = exp_below(logit, max[h]);
    sum[h] += weight;
    squares[h] = fmadd(weight, weight, squares[h]);
    return weight;
  }

  PKV_DEVICE void add8(int h, int chunk, float weight, const float* x) {
#pragma unroll
    for (int j = 0; j < 8; ++j) out[h][8 * chunk + j] = fmadd(weight, x[j], out[h][8 * chunk + j]);
  }
};

// Shared memory of `write_partial`.
template <class Shape, int kThreads>
struct SoftmaxRoom {
  static constexpr int kGroups = kThreads / Shape::kLanes;
  PartialStats stats[kGroups][Shape::kHeads];
  float values[kGroups][Shape::kWidth];
};

// Joins the groups of the block, in the order of the groups, and leaves heads `first` .. of `heads`
// in the slot. All threads call it; the room is free for the next call behind it.
template <int kThreads, class Shape>
PKV_DEVICE void write_partial(const Softmax<Shape>& state, SoftmaxRoom<Shape, kThreads>& room,
                              const Partials& partials, int64_t first, int32_t heads, int32_t slot,
                              int32_t dv, bool has_values) {
  using Group = typename Shape::Group;
  constexpr int kGroups = kThreads / Shape::kLanes;
  if (Group::rank() == 0) {
#pragma unroll
    for (int h = 0; h < Shape::kHeads; ++h) {
      room.stats[Group::index()][h] = {state.max[h], state.sum[h], state.squares[h], 0.0F};
    }
  }
  sync_block();
#pragma unroll
  for (int h = 0; h < Shape::kHeads; ++h) {
    if (h >= heads) break;
    const int64_t at = (first + h) * partials.slots + slot;
    float max = minus_infinity();
    for (int group = 0; group < kGroups; ++group) max = larger(max, room.stats[group][h].max);
    if (thread_index() == 0) {
      PartialStats all = {max, 0.0F, 0.0F, 0.0F};
      for (int group = 0; group < kGroups; ++group) {
        const PartialStats& one = room.stats[group][h];
        const float factor = exp_below(one.max, max);
        all.sum = fmadd(one.sum, factor, all.sum);
        all.squares = fmadd(one.squares, factor * factor, all.squares);
      }
      partials.stats[at] = all;
    }
    if (!has_values) continue;
    const float factor = exp_below(state.max[h], max);
#pragma unroll
    for (int c = 0; c < Shape::kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        room.values[Group::index()][Shape::begin(c) + j] = state.out[h][8 * c + j] * factor;
      }
    }
    sync_block();
    for (int32_t j = thread_index(); j < dv; j += kThreads) {
      float sum = 0.0F;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) sum += room.values[group][j];
      partials.values[at * dv + j] = sum;
    }
    sync_block();  // values are read
  }
  sync_block();  // stats are read
}

}  // namespace PKV_GPU_NS
