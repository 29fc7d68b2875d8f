// Scores of the candidates and the rest's mass, from the estimates and the sums of their
// exponentials. docs/algorithm.md, sections 6.2 and 6.4.
// Traffic per candidate: 4 B per head read, 4 B written.
// Exact: rank = mean of scalar codecs without norms. Bounded: the rest, in fp32.
#pragma once

#include "backends/gpu/rerank.cuh"

namespace PKV_GPU_NS {

// For every lane of the 32: the sum over blocks [begin, end) of head g of a row.
PKV_DEVICE LogSum sum_of_blocks(const RerankArgs& a, int64_t row, int32_t g, int32_t begin,
                                int32_t end) {
  const int64_t first = row * (a.candidate_blocks + a.sample_blocks);
  LogSum sum = LogSum::nothing();
  for (int32_t block = begin + LaneGroup<32>::rank(); block < end; block += 32) {
    sum = both(sum, a.sums[(first + block) * a.prepared.group + g]);
  }
  return sum_of_lanes<32>(sum);
}

// 6.2: the mean of the heads' estimates of candidate c.
PKV_DEVICE float mean_score(const float* estimates, int64_t stride, int32_t G, int64_t c) {
  float sum = estimates[c];
  for (int32_t g = 1; g < G; ++g) sum = fadd_rn(sum, estimates[g * stride + c]);
  return fdiv_rn(sum, static_cast<float>(G));
}

// 6.2: ln sum_g exp(L(est_g) - lse_g)
template <class LogitOf>
PKV_DEVICE float group_score(const float* estimates, int64_t stride, int32_t G, int64_t c,
                             const LogitOf& logit, const float* lse) {
  LogSum shares = LogSum::nothing();
  for (int32_t g = 0; g < G; ++g) shares.add(logit(estimates[g * stride + c]) - lse[g]);
  return shares.value();
}

// 6.2: + ln nv
PKV_DEVICE float weighed(float score, uint16_t value_norm) {
  const float nv = format::bf16_to_float(value_norm);
  return nv == 0.0F ? -kEstimateLimit : score + std::log(nv);
}

// 6.4, by a group of 32 lanes.
PKV_DEVICE void write_rest(const RerankArgs& a, int64_t row, int32_t g) {
  using Group = LaneGroup<32>;
  const int32_t blocks = a.candidate_blocks;
  const float sum = sum_of_blocks(a, row, g, blocks, blocks + a.sample_blocks).value();
  int32_t seen = 0;
  for (int32_t i = Group::rank(); i < a.sample_blocks; i += 32) {
    seen += a.seen[row * a.sample_blocks + i];
  }
  seen = Group::sum(seen);
  if (Group::rank() != 0) return;
  float rest = minus_infinity();
  if (sum != minus_infinity()) {
    const int64_t entry = row_index(row, a.geometry.kv_heads).entry;
    const int64_t R = a.lengths[entry] - candidates_of(a, row);
    rest = sum + std::log(static_cast<float>(R) / static_cast<float>(seen));
  }
  a.rest_lse[row * a.prepared.group + g] = rest;
}

// 6.2: the score of candidate c of a row; `lse` [G] of rank = group.
PKV_DEVICE float score_of(const RerankArgs& a, const RerankRow& row, int64_t c, const float* lse) {
  const float* estimates = row.keys.estimates;
  const int64_t stride = row.keys.stride;
  const float score = a.rank == PKV_RANK_GROUP
                          ? group_score(estimates, stride, a.prepared.group, c, a.logit, lse)
                          : mean_score(estimates, stride, a.prepared.group, c);
  if (a.weigh_norms == 0) return score;
  return weighed(score, *key_slot(a.store, row.records, row.candidates[c]).norm());
}

// 6.2: lse_g of all heads of a row, by the groups of a block.
PKV_DEVICE void write_head_sums(const RerankArgs& a, int64_t row, float* lse) {
  using Group = LaneGroup<32>;
  for (int32_t g = Group::index(); g < a.prepared.group; g += Group::count()) {
    const float sum = sum_of_blocks(a, row, g, 0, a.candidate_blocks).value();
    if (Group::rank() == 0) lse[g] = sum;
  }
}

// Thread: scores of candidates of a row, grid_x() blocks apart. Block 0 has the rest's mass.
template <class Traits>
PKV_KERNEL(Traits::kScoreThreads)
score_candidates(RerankArgs a) {
  constexpr int kThreads = Traits::kScoreThreads;
  using Group = LaneGroup<32>;
  struct Shared {
    float lse[kMaxGroup];
  };
  PKV_SHARED(Shared, shared);
  const int32_t G = a.prepared.group;
  for (int64_t r = block_y(); r < a.rows; r += grid_y()) {
    const RerankRow row = rerank_row(a, r, false);
    if (a.rest_lse != nullptr && block_x() == 0) {
      for (int32_t g = Group::index(); g < G; g += Group::count()) write_rest(a, r, g);
    }
    if (int64_t{block_x()} * kThreads >= row.keys.count) continue;
    if (a.rank == PKV_RANK_GROUP) write_head_sums(a, r, shared.lse);
    sync_block();
    for (int64_t c = int64_t{block_x()} * kThreads + thread_index(); c < row.keys.count;
         c += int64_t{grid_x()} * kThreads) {
      a.scores[r * a.candidates_stride + c] = score_of(a, row, c, shared.lse);
    }
    sync_block();  // the sums are read
  }
}

}  // namespace PKV_GPU_NS
