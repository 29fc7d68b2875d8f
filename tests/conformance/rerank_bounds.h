// How far results of rerank may be from the reference's, row by row. docs/numerics.md, section 3.
#pragma once

#include <cstdint>
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
  size_t head(int32_t g) const { return r_ * static_cast<size_t>(group_) + static_cast<size_t>(g); }
  const std::vector<int32_t>& candidates() const { return input_.candidates[r_]; }
  // Good keys that are no candidates, ascending.
  std::vector<int32_t> rest() const;

  // 0 for scalar codecs, whose estimates are exact.
  double estimate(int32_t g, int64_t position) const;
  // Of the scores; `all`: the reference's results, with estimates and scores of all candidates.
  double score(const Hits& all) const;
  // `estimates`: the reference's, of the keys in rest().
  double rest(const Rows<float>& estimates) const;
  // The same where only the largest |scale * est| of them is known.
  double rest_from_size(double X) const;

 private:
  // The largest |scale * est| of keys, and the largest error of one.
  struct Sizes {
    double X = 0.0;
    double error = 0.0;
  };
  Sizes sizes_of(const Rows<float>& estimates, const std::vector<int32_t>& positions) const;
  double with_norms(double error, const Hits& all) const;

  const Codec& codec_;
  const RerankInput& input_;
  size_t r_;
  int32_t group_;
  int64_t n_;
  const Records& records_;
  std::vector<EstimateSizes> sizes_;  // [G]; polar4 only
};

}  // namespace pkv::conformance
