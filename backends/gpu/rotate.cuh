// The rotation, by a group of 32 lanes in memory that they share. docs/algorithm.md, section 2.3.
// Exact: butterflies of a stage are independent, so their order does not matter.
#pragma once

#include "backends/gpu/gpu_lanes.cuh"
#include "backends/gpu/gpu_vec.cuh"
#include "core/format/rotation.h"

namespace PKV_GPU_NS {

// A vector x of the group, `dim` floats: lane r owns x[r], x[r + 32], .. between two calls. The
// lanes see each other's elements after a sync.
struct GroupVector {
  using Group = LaneGroup<32>;
  float* x;
  int dim;

  // x[j] = f(j, x[j]); each element by its owner, so no sync is needed before or after.
  template <class F>
  PKV_DEVICE void each(int begin, int end, const F& f) const {
    // The first j >= begin with j % 32 = rank.
    int j = begin + ((Group::rank() - begin) & 31);
    for (; j < end; j += 32) x[j] = f(j, x[j]);
  }
  template <class F>
  PKV_DEVICE void each(const F& f) const {
    each(0, dim, f);
  }
};

// FWHT of 32 kPerLane elements, in registers between.
template <int kPerLane>
PKV_DEVICE void fwht_in_lanes(float* x) {
  using Group = GroupVector::Group;
  float y[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) y[i] = x[Group::rank() + 32 * i];
#pragma unroll
  for (int H = 1; H < 32; H *= 2) {
    const bool is_upper = (Group::rank() & H) != 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float other = Group::shuffle_xor(y[i], H);
      y[i] = is_upper ? fsub_rn(other, y[i]) : fadd_rn(y[i], other);
    }
  }
#pragma unroll
  for (int H = 1; H < kPerLane; H *= 2) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if ((i & H) != 0) continue;
      const float difference = fsub_rn(y[i], y[i + H]);
      y[i] = fadd_rn(y[i], y[i + H]);
      y[i + H] = difference;
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) x[Group::rank() + 32 * i] = y[i];
  Group::sync();
}

// FWHT of x[begin .. begin + size), size a power of two. Syncs before, between and behind.
PKV_DEVICE void fwht(const GroupVector& v, int begin, int size) {
  using Group = GroupVector::Group;
  float* x = v.x + begin;
  Group::sync();
  switch (size) {
    case 64: return fwht_in_lanes<2>(x);
    case 128: return fwht_in_lanes<4>(x);
    case 256: return fwht_in_lanes<8>(x);
    default: break;
  }
  for (int H = 1; H < size; H *= 2) {
    for (int pair = Group::rank(); pair < size / 2; pair += 32) {
      const int i = 2 * pair - (pair & (H - 1));  // the pair-th i without bit H
      const float a = x[i];
      const float b = x[i + H];
      x[i] = fadd_rn(a, b);
      x[i + H] = fsub_rn(a, b);
    }
    Group::sync();
  }
}

// x = rotate(x), in place. `signs_2` is read only where the plan has a second factor. Afterwards
// the owners may go on; other lanes' elements need a sync.
PKV_DEVICE void rotate(const GroupVector& v, const format::RotationPlan& plan, const float* signs_1,
                       const float* signs_2) {
  const int size = 1 << plan.log2_size;
  const float scale = plan.block_scale;
  const auto by_scale = [scale](int, float x) { return fmul_rn(x, scale); };
  v.each([signs_1](int j, float x) { return fmul_rn(signs_1[j], x); });
  fwht(v, 0, size);
  if (plan.is_power_of_two && plan.rounds == 1) return;
  if (!plan.is_power_of_two) v.each(0, size, by_scale);  // c
  v.each([signs_2](int j, float x) { return fmul_rn(signs_2[j], x); });
  fwht(v, v.dim - size, size);
  v.each(v.dim - size, v.dim, by_scale);  // c, or 2^-p
}

// x = transpose(x) / g, in place: undoes rotate up to rounding. Syncs behind, too.
PKV_DEVICE void unrotate(const GroupVector& v, const format::RotationPlan& plan,
                         const float* signs_1, const float* signs_2) {
  const int size = 1 << plan.log2_size;
  const float scale = plan.block_scale;
  const auto by_scale = [scale](int, float x) { return fmul_rn(x, scale); };
  const auto by_gain = [&](int j, float x) { return fdiv_rn(fmul_rn(signs_1[j], x), plan.gain); };
  const bool is_one_step = plan.is_power_of_two && plan.rounds == 1;
  if (!is_one_step) {
    fwht(v, v.dim - size, size);
    v.each(v.dim - size, v.dim, by_scale);
    v.each([signs_2](int j, float x) { return fmul_rn(signs_2[j], x); });
  }
  fwht(v, 0, size);
  if (!plan.is_power_of_two) v.each(0, size, by_scale);
  v.each(by_gain);
  GroupVector::Group::sync();
}

}  // namespace PKV_GPU_NS
