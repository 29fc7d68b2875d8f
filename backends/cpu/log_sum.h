// ln of a sum of exponentials of many numbers, in fp32 with sums of blocks in double.
// docs/numerics.md, section 3.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/prefetch.h"

namespace pkv::cpu {

// ln sum exp(x[i]), 0 <= i < count; NaN and -inf are left out, -inf if nothing is left. No x[i] is
// +inf. `ahead`: what to ask for meanwhile.
double log_sum_exp(const Isa& isa, const float* x, int64_t count, LinesAhead& ahead);
double log_sum_exp(const Isa& isa, const float* x, int64_t count);

// The largest x[i]; NaN does not count, -inf for none.
float largest(const Isa& isa, const float* x, int64_t count);

struct ExpSums {
  double sum;
  double squares;
};
// out[i] = exp(x[i] - max), 0 for NaN and -inf, and their sums. max is finite.
ExpSums exp_all(const Isa& isa, const float* x, int64_t count, float max, float* out);

// out[i] = scale * x[i]
void scale_all(const Isa& isa, const float* x, int64_t count, float scale, float* out);

// x[i] = soft_cap * tanh(x[i] / soft_cap) (8.1); soft_cap 0: nothing happens.
void cap_all(const Isa& isa, float* x, int64_t count, float soft_cap);

}  // namespace pkv::cpu
