// Query preparation inside the fused step: every block makes what it needs of its row.
// docs/algorithm.md, sections 4.1, 4.2, 4.4 and 6.1. Exact.
// A vector lies over kDim / 16 lanes, so that one warp rotates all heads of most groups at once
// and another one their sum.
#pragma once

#include "backends/cuda/fused_shared.cuh"
#include "backends/gpu/lane_vector.cuh"
#include "backends/gpu/vote.cuh"

namespace pkv::cuda {

// A vector of any element type, all loads under way at once.
template <int kLanes>
PKV_DEVICE void load_vector(LaneVector<kLanes>& v, pkv_dtype dtype, const std::byte* row) {
  using Vector = LaneVector<kLanes>;
  uint32_t bits[Vector::kPairs][2];
  if (dtype == PKV_DTYPE_F32) {
#pragma unroll
    for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) bits[r][e] = reinterpret_cast<const uint32_t*>(row)[v.element(r) + e];
    }
  } else {
#pragma unroll
    for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) bits[r][e] = reinterpret_cast<const uint16_t*>(row)[v.element(r) + e];
    }
  }
#pragma unroll
  for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) v.x[r][e] = value_of(dtype, bits[r][e]);
  }
}

template <int kLanes>
PKV_DEVICE void load_floats(LaneVector<kLanes>& v, const float* row) {
#pragma unroll
  for (int r = 0; r < LaneVector<kLanes>::kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) v.x[r][e] = row[v.element(r) + e];
  }
}

template <int kLanes>
PKV_DEVICE void store_floats(const LaneVector<kLanes>& v, float* row) {
#pragma unroll
  for (int r = 0; r < LaneVector<kLanes>::kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) row[v.element(r) + e] = v.x[r][e];
  }
}

// y = rotate(q * r), a power of two; whether its square is finite.
template <int kLanes>
PKV_DEVICE bool rotate_vector(LaneVector<kLanes>& v, const CodecView& codec,
                              const LaneVector<kLanes>& inv_balance,
                              const LaneVector<kLanes>& signs) {
#pragma unroll
  for (int r = 0; r < v.kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      v.x[r][e] = fmul_rn(signs.x[r][e], fmul_rn(v.x[r][e], inv_balance.x[r][e]));
    }
  }
  v.transform();
  if (codec.key_plan.rounds == 2) {
    const float* signs_2 = codec.params.signs_2;
    v.each([signs_2](int j, float x) { return fmul_rn(signs_2[j], x); });
    v.transform();
    const float scale = codec.key_plan.block_scale;
    v.each([scale](int, float x) { return fmul_rn(x, scale); });
  }
  return is_finite(v.square());
}

// Heads of the row: q_g, b_g and q'_g into shared memory. By one warp, kAtOnce heads from `first`.
template <int kDim>
PKV_DEVICE void prepare_heads(const FusedArgs& a, const BlockRow& at, int32_t first,
                              FusedShared<kDim>& shared) {
  constexpr int kLanes = kDim / 16;
  using Vector = LaneVector<kLanes>;
  const int32_t g = first + LaneGroup<32>::rank() / kLanes;
  const bool is_there = g < a.group;
  const int64_t set = a.codec.set(at.entry);
  Vector q;
  Vector mu;
  Vector inv_balance;
  Vector signs;
  const std::byte* row =
      a.queries.row(at.entry, int64_t{at.head} * a.group + (is_there ? g : 0));
  load_vector(q, a.queries.dtype, row);
  load_floats(mu, a.codec.key_row(a.codec.params.center, set, at.head));
  load_floats(inv_balance, a.codec.key_row(a.codec.params.inv_balance, set, at.head));
  load_floats(signs, a.codec.params.signs_1);
#pragma unroll
  for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) mu.x[r][e] = fmul_rn(q.x[r][e], mu.x[r][e]);
  }
  const float bias = mu.fold([](float x) { return x; });
  if (is_there) store_floats(q, shared.raw[g]);
  const bool is_good = rotate_vector(q, a.codec, inv_balance, signs);
  if (!is_there) return;
  store_floats(q, shared.rotated[g]);
  if (Vector::lane() == 0) {
    shared.terms[g].bias = bias;
    if (!is_good) shared.bad = 1;
  }
}

// Q' into shared memory, by one warp: each run of lanes loads a head, and all of them add.
template <int kDim>
PKV_DEVICE void prepare_sum(const FusedArgs& a, const BlockRow& at, FusedShared<kDim>& shared) {
  constexpr int kLanes = kDim / 16;
  constexpr int kAtOnce = 32 / kLanes;
  using Vector = LaneVector<kLanes>;
  using Group = LaneGroup<32>;
  const int64_t set = a.codec.set(at.entry);
  Vector sum;
  Vector inv_balance;
  Vector signs;
  load_floats(inv_balance, a.codec.key_row(a.codec.params.inv_balance, set, at.head));
  load_floats(signs, a.codec.params.signs_1);
#pragma unroll 1
  for (int32_t first = 0; first < a.group; first += kAtOnce) {
    const int32_t g = first + Group::rank() / kLanes;
    Vector q;
    load_vector(q, a.queries.dtype,
                a.queries.row(at.entry, int64_t{at.head} * a.group + (g < a.group ? g : first)));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= a.group) break;
#pragma unroll
      for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = Group::shuffle(q.x[r][e], i * kLanes + Vector::lane());
          sum.x[r][e] = first + i == 0 ? x : fadd_rn(sum.x[r][e], x);
        }
      }
    }
  }
  const bool is_good = rotate_vector(sum, a.codec, inv_balance, signs);
  if (Group::rank() < kLanes) store_floats(sum, shared.rotated[kFusedHeads]);
  if (Group::rank() == 0 && !is_good) shared.bad = 1;
}

// 4.2, by one warp: z, its bit planes, and where the window of votes may begin.
template <int kDim>
PKV_DEVICE void prepare_vote(const FusedArgs& a, const BlockRow& at, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  const float* y = shared.rotated[kFusedHeads];
  const float A = largest_subspace(y, kDim / 8);
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const int32_t z = graded_integer(y[32 * i + Group::rank()], A);
    sum += z;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const uint32_t plane = Group::ballot(((static_cast<uint32_t>(z) >> p) & 1U) != 0);
      if (Group::rank() == p) shared.planes[p][i] = plane;
    }
  }
  sum = Group::sum(sum);
  if (Group::rank() == 0) shared.z_sum = sum;
}

// All threads; shared.bad is 0 and seen by all. Behind it everything is there.
template <int kDim>
PKV_DEVICE void prepare_query(const FusedArgs& a, const BlockRow& at, FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  constexpr int kAtOnce = 512 / kDim;
  const int warp = Group::index();
  const int32_t head_warps = (a.group + kAtOnce - 1) / kAtOnce;
  if (warp < head_warps) {
    prepare_heads(a, at, warp * kAtOnce, shared);
  } else if (warp == head_warps) {
    prepare_sum(a, at, shared);
  }
  sync_block();
  if (warp < a.group) {
    prepare_scalar_head(kDim, kDim / 32, a.codec.key_plan.gain, shared.rotated[warp],
                        shared.words[warp], &shared.terms[warp]);
  } else if (warp == kFusedWarps - 1) {
    prepare_vote(a, at, shared);
  }
  sync_block();
}

}  // namespace pkv::cuda
