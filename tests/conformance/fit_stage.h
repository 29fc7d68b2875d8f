// Stage fit on a place. docs/algorithm.md, section 2.2.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

struct FitInput {
  Tensor keys;                    // [h, t, d]
  std::optional<Tensor> queries;  // [hq, m, d]
  std::optional<Tensor> values;   // [h, t, dv]
  std::vector<int32_t> weights;   // [h, t]; empty: none
  std::vector<float> pivot;       // [h, d]
  int32_t queries_as = PKV_FIT_QUERIES_HEADS;
  bool wants_value_sums = true;  // where there are values
};

struct Sums {
  std::vector<int64_t> key_counts;    // [h]
  std::vector<int64_t> key_weights;   // [h]
  std::vector<double> key_sums;       // [h, d]
  std::vector<double> key_squares;    // [h, d]
  std::vector<int64_t> query_counts;  // [h]
  std::vector<double> query_squares;  // [h, d]
  std::vector<double> value_sums;     // [h, dv]; empty if not wanted

  template <class F>
  static void each(F f, const Sums& a, const Sums& b) {
    f("key_counts", a.key_counts, b.key_counts);
    f("key_weights", a.key_weights, b.key_weights);
    f("key_sums", a.key_sums, b.key_sums);
    f("key_squares", a.key_squares, b.key_squares);
    f("query_counts", a.query_counts, b.query_counts);
    f("query_squares", a.query_squares, b.query_squares);
    f("value_sums", a.value_sums, b.value_sums);
  }
};

Sums run_fit(const Place& place, uint8_t fill, const pkv_geometry& geometry, const FitInput& input);

// What core makes of sums: centre, balance, reciprocals, all options on.
struct FittedParams {
  std::vector<float> center;        // [h, d]
  std::vector<float> balance;       // [h, d]
  std::vector<float> value_center;  // [h, dv]; empty without value sums
};
FittedParams fitted_params(const pkv_geometry& geometry, const FitInput& input, const Sums& sums);

}  // namespace pkv::conformance
