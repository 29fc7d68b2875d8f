// Query preparation inside the fused step: every block makes what it needs of its row.
// docs/algorithm.md, sections 4.1, 4.2, 4.4 and 6.1. Exact.
// A warp takes a head, one more their sum.
#pragma once

#include "backends/cuda/fused_shared.cuh"
#include "backends/gpu/vote.cuh"

namespace pkv::cuda {

// A vector of a warp: lane r has elements r, r + 32, ..
template <int kDim>
struct WarpVector {
  using Group = LaneGroup<32>;
  static constexpr int kPerLane = kDim / 32;
  float x[kPerLane];

  // x[k] = f(k, element)
  template <class F>
  PKV_DEVICE void set(const F& f) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) x[k] = f(k, 32 * k + Group::rank());
  }
  // Of any element type, all loads under way at once.
  PKV_DEVICE void load(pkv_dtype dtype, const std::byte* row) {
    uint32_t bits[kPerLane];
    if (dtype == PKV_DTYPE_F32) {
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        bits[k] = reinterpret_cast<const uint32_t*>(row)[32 * k + Group::rank()];
      }
    } else {
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        bits[k] = reinterpret_cast<const uint16_t*>(row)[32 * k + Group::rank()];
      }
    }
    set([&](int k, int) { return value_of(dtype, bits[k]); });
  }
  // FWHT: stages within the lanes, then of a lane.
  PKV_DEVICE void transform() {
#pragma unroll
    for (int bits = 1; bits < 32; bits *= 2) {
      const float sign = (Group::rank() & bits) != 0 ? -1.0F : 1.0F;
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        // The product is exact, so this is the sum or the difference.
        x[k] = ffma_rn(x[k], sign, Group::shuffle_xor(x[k], bits));
      }
    }
#pragma unroll
    for (int H = 1; H < kPerLane; H *= 2) {
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) {
        if ((k & H) != 0) continue;
        const float difference = fsub_rn(x[k], x[k + H]);
        x[k] = fadd_rn(x[k], x[k + H]);
        x[k + H] = difference;
      }
    }
  }
  // Section 0, of f(k).
  template <class F>
  PKV_DEVICE static float fold(const F& f) {
    float sum = fold_terms<kPerLane>(f);
#pragma unroll
    for (int bits = 16; bits >= 1; bits /= 2) sum = fadd_rn(sum, Group::shuffle_xor(sum, bits));
    return sum;
  }
};

// Between the warps of the heads, which go on, and that of their sum, which waits for their q_g.
// compute-sanitizer's racecheck loses count of the block's barriers behind a barrier of some warps
// alone: a build for it (-DPKV_FUSED_WHOLE_BARRIERS) has one of all, which join_raw adds for the
// other warps.
inline constexpr int kRawBarrier = 1;
#if defined(PKV_FUSED_WHOLE_BARRIERS)
PKV_DEVICE void arrive_raw(int32_t) { sync_block(); }
PKV_DEVICE void await_raw(int32_t) { sync_block(); }
PKV_DEVICE void join_raw() { sync_block(); }
#else
PKV_DEVICE void join_raw() {}
PKV_DEVICE void arrive_raw(int32_t group) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"n"(kRawBarrier), "r"(32 * (group + 1)) : "memory");
}
PKV_DEVICE void await_raw(int32_t group) {
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(kRawBarrier), "r"(32 * (group + 1)) : "memory");
}
#endif

// By one warp: q_g, b_g and q'_g of a head of the row; with g = G Q', of all heads' sum.
template <int kDim>
PKV_DEVICE void prepare_vector(const FusedArgs& a, const RowIndex& at, int32_t g,
                               FusedShared<kDim>& shared) {
  using Vector = WarpVector<kDim>;
  const int64_t set = a.codec.set(at.entry);
  const int64_t first = int64_t{at.head} * a.group;
  const bool is_sum = g == a.group;
  const float* inv_balance = a.codec.key_row(a.codec.params.inv_balance, set, at.head);
  const float* center = a.codec.key_row(a.codec.params.center, set, at.head);
  Vector r;
  Vector mu;
  Vector v;
  r.set([&](int, int j) { return inv_balance[j]; });
  mu.set([&](int, int j) { return center[j]; });
  if (!is_sum) {
    v.load(a.queries.dtype, a.queries.row(at.entry, first + g));
    v.set([&](int k, int j) { return shared.raw[g][j] = v.x[k]; });
    arrive_raw(a.group);
  } else {
    await_raw(a.group);
    v.set([&](int, int j) { return shared.raw[0][j]; });
#pragma unroll 1
    for (int32_t i = 1; i < a.group; ++i) {
      v.set([&](int k, int j) { return fadd_rn(v.x[k], shared.raw[i][j]); });
    }
  }
  const float bias = Vector::fold([&](int k) { return fmul_rn(v.x[k], mu.x[k]); });
  v.set([&](int k, int) { return fmul_rn(v.x[k], r.x[k]); });
  const float* signs = a.codec.params.signs_1;
#pragma unroll 1
  for (int round = 0; round < a.codec.key_plan.rounds; ++round) {
    v.set([&](int k, int j) { return fmul_rn(signs[j], v.x[k]); });
    v.transform();
    signs = a.codec.params.signs_2;
  }
  if (a.codec.key_plan.rounds == 2) {
    v.set([&](int k, int) { return fmul_rn(v.x[k], a.codec.key_plan.block_scale); });
  }
  const bool is_good = is_finite(Vector::fold([&](int k) { return fmul_rn(v.x[k], v.x[k]); }));
  float* rotated = shared.rotated[is_sum ? kFusedHeads : g];
  v.set([&](int k, int j) { return rotated[j] = v.x[k]; });
  if (LaneGroup<32>::rank() != 0) return;
  if (!is_sum) shared.terms[g].bias = bias;
  shared.bad_vectors[g] = is_good ? 0 : 1;
}

// 4.2, by warp `part` of kVoteWarps: its elements of z, their bit planes; 4.4.
template <int kDim>
PKV_DEVICE void prepare_vote(const FusedArgs& a, int part, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const float* y = shared.rotated[kFusedHeads];
  const float A = largest_subspace(y, kDim / 8);
  int32_t sum = 0;
#pragma unroll 1
  for (int i = part; i < kDim / 32; i += kVoteWarps) {
    const int32_t z = graded_integer(y[32 * i + Group::rank()], A);
    sum += z;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const uint32_t plane = Group::ballot(((static_cast<uint32_t>(z) >> p) & 1U) != 0);
      if (Group::rank() == p) shared.planes[p][i] = plane;
    }
  }
  sum = Group::sum(sum);
  if (Group::rank() == 0) shared.z_sums[part] = sum;
  if (part != 0) return;
  const bool is_bad = Group::rank() <= a.group && shared.bad_vectors[Group::rank()] != 0;
  const bool any_bad = Group::any(is_bad);
  if (Group::rank() == 0) shared.bad = any_bad ? 1 : 0;
}

}  // namespace pkv::cuda
