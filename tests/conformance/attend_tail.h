// What the tail adds to the bounds of a query head. docs/algorithm.md, section 8;
// docs/numerics.md, section 3.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/attend_stage.h"

namespace pkv::conformance {

struct TailSizes {
  double eps = 0.0;             // of a logit
  int64_t entries = 0;          // tokens, and samples of the pseudo-token's value
  std::vector<double> largest;  // [dv] of a value
  double sketch_error = 0.0;    // of sums of sketched values
  std::vector<double> shrink;   // [dv] how far l's error moves the pseudo-token's value
};

// Of entry i of the batch; tail other than drop.
TailSizes tail_sizes(const Codec& codec, const Zone& zone, const AttendInput& input, int64_t i,
                     int32_t query_head);

}  // namespace pkv::conformance
