// Keys, queries and values of the kinds that cases ask for by name.
#pragma once

#include <string_view>
#include <vector>

#include "tests/conformance/random.h"
#include "tests/conformance/tensor.h"

namespace pkv::conformance {

// Keys [.., t, d].
//   normal       | channels     some coordinates far larger, and off centre
//   duplicates   each of t/6 keys several times           | equal   one key t times
//   integers     -1, 0, 1: many ties                       | aligned one sign pattern in all keys
//   zero, minus_zero                                       | mixed   zero, tiny, normal by turns
//   denormal     down to the smallest fp32                 | huge    squares near the largest
//   overflow     squares of some keys are infinite
//   one_nan, one_inf   one element in the middle key of each row    | all_bad   in every key
std::vector<float> key_numbers(Random& random, std::string_view kind, const Shape& shape,
                               pkv_dtype dtype);

// Queries [b, hq, d]; `group` heads share a KV head.
//   normal | zero | minus_zero | denormal | huge | integers | large (logits near 1,000)
//   opposite       of each pair of heads one is the other's negative
//   one_nan, one_inf   in one head of the middle entry
//   sum_overflow   each head's rotated square finite, that of their sum not, in the middle entry
//   sum_square     the same of the squares before the rotation
std::vector<float> query_numbers(Random& random, std::string_view kind, const Shape& shape,
                                 int32_t group, pkv_dtype dtype);

// Values [.., t, dv]: normal | zero (every third) | huge | one_nan | one_inf | overflow
//   large_square   of every second token: sum v^2 is finite, dv times as much is not
std::vector<float> value_numbers(Random& random, std::string_view kind, const Shape& shape,
                                 pkv_dtype dtype);

}  // namespace pkv::conformance
