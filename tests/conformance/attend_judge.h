// Whether attention is right, within the bounds of docs/numerics.md, section 3.
#pragma once

#include "tests/conformance/attend_stage.h"
#include "tests/conformance/bench.h"

namespace pkv::conformance {

// `got` against the reference's `expected`, for the same input.
void judge_attention(const Codec& codec, const Zone& zone, const AttendInput& input,
                     const Attention& expected, const Attention& got);

}  // namespace pkv::conformance
