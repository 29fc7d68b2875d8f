// How far results of rerank may be from the reference's, row by row. docs/numerics.md, section 3.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/conformance/model.h"
#include "tests/conformance/rerank_stage.h"

namespace pkv::conformance {

// Whether scores of `input` are exact: rank = mean with a scalar codec, without norms.
bool is_exact(const Codec& codec, const RerankInput& input);

// Row r = entry * h + head of the call.
class RowBounds {
 public:
  RowBounds(const Codec& codec, const Zone& zone, const RerankInput& input, size_t r);

  int32_t group() const { return group_; }
  int64_t length() const { return n_; }
  size_t head(int32_t g) const { return r_ * static_cast<size_t>(group_) + static_cast<size_t>(g); }
  const std::vector<int32_t>& candidates() const { return input_.candidates[r_]; }
  // Positions of the samples, candidates and bad keys among them (6.4).
  const std::vector<int32_t>& samples() const { return samples_; }
  bool is_good(int32_t position) const;
  bool is_candidate(int32_t position) const;
  bool is_bad_query() const { return is_bad_query_; }

  // 0 for scalar codecs, whose estimates are exact.
  double estimate(int32_t g, int64_t position) const;
  // Of the scores; `all`: the reference's results, with estimates and scores of all candidates.
  double score(const Hits& all) const;
  // Of rest_lse. `X`: the largest |logit| of the samples that make it up.
  double rest(double X) const;

 private:
  // The largest |logit| of keys, and the largest error of one. `soft_cap`: of the logits.
  struct Sizes {
    double X = 0.0;
    double error = 0.0;
  };
  Sizes sizes_of(const Rows<float>& estimates, const std::vector<int32_t>& positions,
                 float soft_cap) const;
  double with_norms(double error, const Hits& all) const;

  std::shared_ptr<const Codec> codec_;  // of the row's sequence; sizes_ refers to it
  const RerankInput& input_;
  size_t r_;
  int32_t group_;
  int64_t n_;
  const Records& records_;
  std::vector<int32_t> samples_;
  bool is_bad_query_ = false;
  std::vector<EstimateSizes> sizes_;  // [G]; polar4 only
};

}  // namespace pkv::conformance
