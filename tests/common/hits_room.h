// Memory for all that a retrieve writes.
#pragma once

#include <cstdint>
#include <vector>

#include "pariskv/pariskv.h"

namespace pkv::test {

struct HitsSizes {
  int64_t rows;        // b * h
  int64_t query_rows;  // b * hq
  int64_t k, candidates, samples;
};

class HitsRoom {
 public:
  explicit HitsRoom(const HitsSizes& n)
      : positions(count(n.rows * n.k)),
        counts(count(n.rows)),
        candidates(count(n.rows * n.candidates)),
        candidate_counts(count(n.rows)),
        scores(count(n.rows * n.k)),
        estimates(count(n.query_rows * n.candidates)),
        rest_lse(count(n.query_rows)),
        sample_estimates(count(n.query_rows * n.samples)) {
    pkv_hits_init(&hits, sizeof hits);
    hits.positions = positions.data();
    hits.scores = scores.data();
    hits.counts = counts.data();
    hits.candidates = candidates.data();
    hits.candidate_counts = candidate_counts.data();
    hits.estimates = estimates.data();
    hits.rest_lse = rest_lse.data();
    hits.sample_estimates = sample_estimates.data();
  }
  HitsRoom(const HitsRoom&) = delete;
  HitsRoom& operator=(const HitsRoom&) = delete;

  std::vector<int32_t> positions, counts, candidates, candidate_counts;
  std::vector<float> scores, estimates, rest_lse, sample_estimates;
  pkv_hits hits;  // all of these

 private:
  static std::size_t count(int64_t elements) { return static_cast<std::size_t>(elements); }
};

}  // namespace pkv::test
