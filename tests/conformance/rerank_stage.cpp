#include "tests/conformance/rerank_stage.h"

#include <algorithm>
#include <cmath>

namespace pkv::conformance {

RerankInput rerank_input(const World& world) {
  RerankInput input;
  input.queries = world.query_tensor();
  input.batch = world.batch();
  input.query_heads = world.setup().hq();
  input.scale = 1.0F / std::sqrt(static_cast<float>(world.setup().d));
  return input;
}

std::vector<int64_t> candidate_counts(const Rows<int32_t>& candidates, int32_t heads) {
  std::vector<int64_t> counts;
  for (const std::vector<int32_t>& row : candidates) {
    counts.insert(counts.end(), static_cast<size_t>(heads), static_cast<int64_t>(row.size()));
  }
  return counts;
}

Hits run_rerank(const Place& place, uint8_t fill, const Codec& codec, const Zone& zone,
                const RerankInput& input) {
  Session session(place, fill);
  const int64_t rows = input.batch.size() * codec.heads();
  const int64_t heads = input.batch.size() * input.query_heads;
  std::vector<int32_t> candidates(static_cast<size_t>(rows * input.candidates_stride), -1);
  std::vector<int32_t> counts;
  for (size_t r = 0; r < input.candidates.size(); ++r) {
    std::copy(input.candidates[r].begin(), input.candidates[r].end(),
              candidates.begin() + static_cast<int64_t>(r) * input.candidates_stride);
    counts.push_back(static_cast<int32_t>(input.candidates[r].size()));
  }

  pkv_rerank_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = input.query_heads;
  args.rank = input.rank;
  args.k = input.k;
  args.k_min = input.k_min;
  args.tail_samples = input.tail_samples;
  args.weigh_norms = input.weigh_norms;
  args.scale = input.scale;
  args.soft_cap = input.soft_cap;
  args.share = input.share;
  args.codec = put_codec(session, codec, input.batch.sequences);
  args.batch = put_batch(session, input.batch);
  args.queries = session.in("queries", input.queries);
  args.store = put_store(session, codec, zone, /*may_change=*/false);
  args.candidates = session.in("candidates", candidates);
  args.candidates_stride = input.candidates_stride;
  args.candidate_counts = session.in("candidate_counts", counts);
  args.positions = session.out<int32_t>("positions", rows * input.k);
  args.scores = session.out<float>("scores", rows * input.k);
  args.counts = session.out<int32_t>("counts", rows);
  if (input.wants_estimates) {
    args.estimates = session.out<float>("estimates", heads * input.candidates_stride);
  }
  if (input.wants_rest) args.rest_lse = session.out<float>("rest_lse", heads);
  if (input.wants_samples) {
    args.sample_estimates = session.out<float>("sample_estimates", heads * input.tail_samples);
  }
  session.finish("pkv_stage_rerank_sync",
                 pkv_stage_rerank_sync(place.device(), place.stream(), &args));

  const std::vector<int64_t> whole(static_cast<size_t>(rows), input.k);
  Hits hits;
  hits.positions = session.read_rows("positions", args.positions, input.k, whole);
  hits.scores = session.read_rows("scores", args.scores, input.k, whole);
  hits.counts = session.read(args.counts, rows);
  if (input.wants_estimates) {
    hits.estimates =
        session.read_rows("estimates", args.estimates, input.candidates_stride,
                          candidate_counts(input.candidates, input.query_heads / codec.heads()));
  }
  if (input.wants_rest) hits.rest_lse = session.read(args.rest_lse, heads);
  if (input.wants_samples) {
    const std::vector<int64_t> all(static_cast<size_t>(heads), input.tail_samples);
    hits.sample_estimates =
        session.read_rows("sample_estimates", args.sample_estimates, input.tail_samples, all);
  }
  return hits;
}

}  // namespace pkv::conformance
