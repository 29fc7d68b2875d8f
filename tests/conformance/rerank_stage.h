// Stage rerank on a place. docs/algorithm.md, section 6.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

struct RerankInput {
  Tensor queries;  // [b, hq, d]
  Batch batch;
  int32_t query_heads = 1;
  Rows<int32_t> candidates;  // [b * h][count] ascending
  int64_t candidates_stride = 0;
  int32_t rank = PKV_RANK_GROUP;
  int32_t k = 16;
  int32_t k_min = 0;
  int32_t tail_samples = 512;
  int32_t weigh_norms = 0;
  float scale = 0.1F;
  float soft_cap = 0.0F;
  double share = 0.0;
  bool wants_estimates = true;
  bool wants_rest = true;
  bool wants_samples = true;
};

struct Hits {
  Rows<int32_t> positions;       // [b * h][k], fillers included
  Rows<float> scores;            // [b * h][k]
  std::vector<int32_t> counts;   // [b * h]
  Rows<float> estimates;         // [b * hq][candidates]; empty if not wanted
  std::vector<float> rest_lse;   // [b * hq]; empty if not wanted
  Rows<float> sample_estimates;  // [b * hq][T], fillers included; empty if not wanted

  template <class F>
  static void each(F f, const Hits& a, const Hits& b) {
    f("positions", a.positions, b.positions);
    f("scores", a.scores, b.scores);
    f("counts", a.counts, b.counts);
    f("estimates", a.estimates, b.estimates);
    f("rest_lse", a.rest_lse, b.rest_lse);
    f("sample_estimates", a.sample_estimates, b.sample_estimates);
  }
};

// Scale 1/sqrt(d), no candidates yet.
RerankInput rerank_input(const World& world);

Hits run_rerank(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
                const RerankInput& input);

// Counts of candidates, one per head of `heads` that share a row.
std::vector<int64_t> candidate_counts(const Rows<int32_t>& candidates, int32_t heads);

}  // namespace pkv::conformance
