// One entry of a golden file: the inputs of all stages, made as make_golden.py makes them, and the
// expected results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tests/conformance/attend_stage.h"
#include "tests/conformance/encode_stage.h"
#include "tests/conformance/rerank_judge.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {

class GoldenWorld {
 public:
  explicit GoldenWorld(const nlohmann::json& entry);

  const Codec& codec() const { return codec_; }
  // Expected after encode: records, occupancy, sums, counts.
  const Zone& zone() const { return zone_; }

  EncodeInput encode_input() const;
  VoteInput vote_input() const;
  Votes votes() const;
  SelectInput select_input() const;
  Candidates candidates() const;
  RerankInput rerank_input() const;
  ExpectedHits hits() const;
  AttendInput attend_input() const;
  Attention attention() const;

 private:
  void make_codec();
  void make_zone();
  Tensor numbers(int32_t stream, const Shape& shape) const;
  // Rows of keys or values at the positions of the hits.
  Tensor rows(const Dense& source) const;
  int32_t option(const char* name) const { return entry_["options"][name].get<int32_t>(); }
  std::vector<int32_t> integers(const char* name) const;

  nlohmann::json entry_;
  pkv_dtype dtype_ = PKV_DTYPE_F32;
  Codec codec_;
  Dense keys_;    // [1, 1, n, d]
  Dense values_;  // [1, 1, n, dv]
  Zone zone_;
};

}  // namespace pkv::conformance
