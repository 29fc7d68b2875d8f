// The input of attend: dense parts, and what the reference's retrieve and fetch bring.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/attend_stage.h"
#include "tests/conformance/bench.h"

namespace pkv::conformance {

// Fields that a table leaves out keep these values.
struct AttendOptions {
  int32_t tail = PKV_TAIL_DROP;
  int32_t k = 0;
  int64_t ppm = 300000;  // of the keys are candidates
  int32_t tail_samples = 512;
  std::vector<int64_t> parts = {};  // tokens of each
  bool has_lengths = true;          // of parts: shorter than their tokens, NaN behind
  pkv_dtype output_dtype = PKV_DTYPE_F32;
  Layout output_layout = Layout::kStrided;
  bool wants_lse = true;
  int64_t page_tokens = 0;  // of the parts' pages; 0: not in pages
  float soft_cap = 0.0F;
  bool has_sinks = false;

  std::string text() const;
};

// Fetched rows beyond the counts are NaN.
AttendInput attend_input(const Bench& bench, const World& world, const AttendOptions& options,
                         Random& random);

// The candidates that the reference's vote and select choose, into input.candidates.
void choose_candidates(const Bench& bench, const World& world, int64_t ppm, int32_t k,
                       RerankInput& input);

}  // namespace pkv::conformance
