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
      for (int e = 0; e < 2; ++e)
        bits[r][e] = reinterpret_cast<const uint32_t*>(row)[v.element(r) + e];
    }
  } else {
#pragma unroll
    for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        bits[r][e] = reinterpret_cast<const uint16_t*>(row)[v.element(r) + e];
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
PKV_DEVICE bool rotate_vector(LaneVector<kLanes>& v, const CodecView& codec, const BlockRow& at,
                              int64_t set) {
  LaneVector<kLanes> inv_balance;
  LaneVector<kLanes> signs;
  load_floats(inv_balance, codec.key_row(codec.params.inv_balance, set, at.head));
  load_floats(signs, codec.params.signs_1);
#pragma unroll 1
  for (int round = 1;; ++round) {
#pragma unroll
    for (int r = 0; r < v.kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (round == 1) v.x[r][e] = fmul_rn(v.x[r][e], inv_balance.x[r][e]);
        v.x[r][e] = fmul_rn(signs.x[r][e], v.x[r][e]);
      }
    }
    v.transform();
    if (round == codec.key_plan.rounds) break;
    load_floats(signs, codec.params.signs_2);
  }
  const float scale = codec.key_plan.block_scale;  // 1 of one round
#pragma unroll
  for (int r = 0; r < v.kPairs; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) v.x[r][e] = fmul_rn(v.x[r][e], scale);
  }
  return is_finite(v.square());
}

// By one warp: heads `first` .. of the row, as many as it has room for (q_g, b_g and q'_g), or with
// `is_sum` Q', for which each run of lanes loads heads and all of them add.
template <int kDim>
PKV_DEVICE void prepare_vectors(const FusedArgs& a, const BlockRow& at, int32_t first, bool is_sum,
                                FusedShared<kDim>& shared) {
  using Group = LaneGroup<32>;
  constexpr int kLanes = kDim / 16;
  constexpr int kAtOnce = 32 / kLanes;
  using Vector = LaneVector<kLanes>;
  const int64_t set = a.codec.set(at.entry);
  const int64_t first_head = int64_t{at.head} * a.group;
  Vector v;
  int32_t g = 0;
#pragma unroll 1
  do {
    g = first + Group::rank() / kLanes;
    Vector q;
    load_vector(q, a.queries.dtype,
                a.queries.row(at.entry, first_head + (g < a.group ? g : first)));
    if (!is_sum) {
      v = q;
      break;
    }
#pragma unroll 1
    for (int i = 0; i < kAtOnce && first + i < a.group; ++i) {
#pragma unroll
      for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = Group::shuffle(q.x[r][e], i * kLanes + Vector::lane());
          v.x[r][e] = first + i == 0 ? x : fadd_rn(v.x[r][e], x);
        }
      }
    }
    first += kAtOnce;
  } while (first < a.group);
  const bool is_there = is_sum ? Group::rank() < kLanes : g < a.group;
  float bias = 0.0F;
  if (!is_sum) {
    if (is_there) store_floats(v, shared.raw[g]);
    Vector mu;
    load_floats(mu, a.codec.key_row(a.codec.params.center, set, at.head));
#pragma unroll
    for (int r = 0; r < Vector::kPairs; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) mu.x[r][e] = fmul_rn(v.x[r][e], mu.x[r][e]);
    }
    bias = mu.fold([](float x) { return x; });
  }
  const bool is_good = rotate_vector(v, a.codec, at, set);
  if (!is_there) return;
  store_floats(v, shared.rotated[is_sum ? kFusedHeads : g]);
  if (Vector::lane() != 0) return;
  if (!is_sum) shared.terms[g].bias = bias;
  if (!is_good) shared.bad = 1;
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
  if (warp <= head_warps) {
    const bool is_sum = warp == head_warps;
    prepare_vectors(a, at, is_sum ? 0 : warp * kAtOnce, is_sum, shared);
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
