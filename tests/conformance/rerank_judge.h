// Whether results of rerank are right: estimates of scalar codecs, and all of rank = mean with them
// and without norms, bit for bit; the rest within its tolerance. docs/numerics.md, section 3, Hits.
// Which keys are samples, and what they make of the rest's mass, is worked out here from
// docs/algorithm.md, section 6.4, and asked of the reference too.
#pragma once

#include <vector>

#include "tests/conformance/bench.h"
#include "tests/conformance/rerank_stage.h"

namespace pkv::conformance {

// What hits are held against.
struct ExpectedHits {
  Hits hits;                           // of the call itself
  Hits all;                            // scores and estimates with all candidates as hits
  std::vector<double> rest_tolerance;  // [b * h]; empty if the rest is not wanted
};
// What the reference gives.
ExpectedHits expected_hits(const Bench& bench, const Codec& codec, const Zone& zone,
                           const RerankInput& input);

// `got`: hits that a place gave for `input`.
void judge_hits(const Codec& codec, const Zone& zone, const RerankInput& input,
                const ExpectedHits& expected, const Hits& got);

// Runs the stage on the backend, twice, and judges it against the reference.
void judge_rerank(const Bench& bench, const Codec& codec, const Zone& zone,
                  const RerankInput& input);

}  // namespace pkv::conformance
