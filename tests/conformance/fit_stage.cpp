#include "tests/conformance/fit_stage.h"

namespace pkv::conformance {

Sums run_fit(const Place& place, uint8_t fill, const pkv_geometry& geometry,
             const FitInput& input) {
  Session session(place, fill);
  const int64_t heads = geometry.kv_heads;
  const int64_t numbers = heads * geometry.head_dim;
  const int64_t value_numbers =
      input.values && input.wants_value_sums ? heads * geometry.value_dim : 0;
  pkv_fit_args args = {};
  args.struct_size = sizeof args;
  args.queries_as = input.queries_as;
  args.geometry = &geometry;
  args.keys = session.in("keys", input.keys);
  if (input.queries) args.queries = session.in("queries", *input.queries);
  if (input.values) args.values = session.in("values", *input.values);
  args.weights = session.in("weights", input.weights);
  args.pivot = session.in("pivot", input.pivot);
  args.key_counts = session.out<int64_t>("key_counts", heads);
  args.key_weights = session.out<int64_t>("key_weights", heads);
  args.key_sums = session.out<double>("key_sums", numbers);
  args.key_squares = session.out<double>("key_squares", numbers);
  args.query_counts = session.out<int64_t>("query_counts", heads);
  args.query_squares = session.out<double>("query_squares", numbers);
  args.value_sums = session.out<double>("value_sums", value_numbers);
  session.finish("pkv_stage_fit_sync", pkv_stage_fit_sync(place.device(), place.stream(), &args));
  return {session.read(args.key_counts, heads),        session.read(args.key_weights, heads),
          session.read(args.key_sums, numbers),        session.read(args.key_squares, numbers),
          session.read(args.query_counts, heads),      session.read(args.query_squares, numbers),
          session.read(args.value_sums, value_numbers)};
}

FittedParams fitted_params(const pkv_geometry& geometry, const FitInput& input, const Sums& sums) {
  Sums copy = sums;
  std::vector<float> pivot = input.pivot;
  pkv_fit_args args = {};
  args.struct_size = sizeof args;
  args.geometry = &geometry;
  args.pivot = pivot.data();
  args.key_counts = copy.key_counts.data();
  args.key_weights = copy.key_weights.data();
  args.key_sums = copy.key_sums.data();
  args.key_squares = copy.key_squares.data();
  args.query_counts = copy.query_counts.data();
  args.query_squares = copy.query_squares.data();
  args.value_sums = copy.value_sums.empty() ? nullptr : copy.value_sums.data();
  FittedParams fitted;
  fitted.center.resize(sums.key_sums.size());
  fitted.balance.resize(sums.key_sums.size());
  fitted.value_center.resize(sums.value_sums.size());
  std::vector<float> inverse(sums.key_sums.size());
  require("pkv_fit_params",
          pkv_fit_params(&args, 1, 1, fitted.center.data(), fitted.balance.data(), inverse.data(),
                         sums.value_sums.empty() ? nullptr : fitted.value_center.data()));
  return fitted;
}

}  // namespace pkv::conformance
