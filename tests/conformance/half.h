// f16 and bf16 to fp32 and back, for the numbers that cases are made of. docs/algorithm.md, 0.
// By arithmetic on values, so that nothing is shared with the code under test.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_types.h"

namespace pkv::conformance {

int64_t dtype_bytes(pkv_dtype dtype);
const char* dtype_name(pkv_dtype dtype);

// Exact. `bits`: the element of an f16 or bf16 tensor.
float half_to_float(pkv_dtype dtype, uint16_t bits);
// To nearest, ties to even.
uint16_t float_to_half(pkv_dtype dtype, float value);

inline float bf16_to_float(uint16_t bits) { return half_to_float(PKV_DTYPE_BF16, bits); }

}  // namespace pkv::conformance
