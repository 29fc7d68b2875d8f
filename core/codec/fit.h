// From the sums of stage fit to the parameters of a codec. docs/algorithm.md, section 2.2.
// In double, each parameter rounded once to fp32. Not here: the sums, which a backend delivers.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

struct FittedParams {
  std::vector<float> center;        // [h, d] mu; 0 with center off
  std::vector<float> balance;       // [h, d] s
  std::vector<float> inv_balance;   // [h, d] r, one fp32 division of the stored s
  std::vector<float> value_center;  // [h, dv] mu_v; 0 without value sums
};

// Of `sums` the geometry and the arrays are read, all host memory; the tensors are not.
// query_counts and query_squares may both be NULL (no queries), value_sums too. INVALID_ARGUMENT: a
// NULL array, a negative count, a sum that is not finite, a negative sum of squares, a mean beyond
// fp32; the text names array, KV head, coordinate and value.
absl::StatusOr<FittedParams> fit_params(const pkv_fit_args& sums, bool center_on, bool balance_on);

}  // namespace pkv
