// The arrays that stage fit delivers for the sample geometry, built key by key.
// docs/algorithm.md, section 2.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/codec/fit.h"
#include "tests/unit/codec/sample.h"

namespace pkv {

inline constexpr int kHeads = 2;
inline constexpr int kDim = 24;
inline constexpr int kValueDim = 16;

inline std::size_t at(int head, int j, int dim = kDim) {
  return static_cast<std::size_t>(head * dim + j);
}

// The arrays of stage fit for the sample geometry, and what they come from.
struct FitSums {
  pkv_geometry geometry = sample_geometry();
  std::vector<float> pivot = std::vector<float>(kHeads * kDim);
  std::vector<int64_t> key_counts = std::vector<int64_t>(kHeads);
  std::vector<int64_t> key_weights = std::vector<int64_t>(kHeads);
  std::vector<double> key_sums = std::vector<double>(kHeads * kDim);
  std::vector<double> key_squares = std::vector<double>(kHeads * kDim);
  std::vector<int64_t> query_counts = std::vector<int64_t>(kHeads);
  std::vector<double> query_squares = std::vector<double>(kHeads * kDim);
  std::vector<double> value_sums = std::vector<double>(kHeads * kValueDim);

  // What the stage does for one key of weight `o`, query row or value of a head.
  template <class F>
  void add_key(int head, F k, int o = 1) {
    ++key_counts[static_cast<std::size_t>(head)];
    key_weights[static_cast<std::size_t>(head)] += o;
    for (int j = 0; j < kDim; ++j) {
      const double x = static_cast<double>(k(j)) - static_cast<double>(pivot[at(head, j)]);
      key_sums[at(head, j)] += o * x;
      key_squares[at(head, j)] += o * x * x;
    }
  }
  template <class F>
  void add_query(int head, F q) {
    ++query_counts[static_cast<std::size_t>(head)];
    for (int j = 0; j < kDim; ++j) query_squares[at(head, j)] += static_cast<double>(q(j) * q(j));
  }

  absl::StatusOr<FittedParams> fit(bool center_on = true, bool balance_on = true) {
    pkv_fit_args args{};
    args.struct_size = sizeof(args);
    args.geometry = &geometry;
    args.pivot = pivot.data();
    args.key_counts = key_counts.data();
    args.key_weights = key_weights.data();
    args.key_sums = key_sums.data();
    args.key_squares = key_squares.data();
    args.query_counts = query_counts.empty() ? nullptr : query_counts.data();
    args.query_squares = query_squares.empty() ? nullptr : query_squares.data();
    args.value_sums = value_sums.empty() ? nullptr : value_sums.data();
    return fit_params(args, center_on, balance_on);
  }
};

// Two keys per head at center +- spread, two query rows of size `query`.
template <class Center, class Spread, class Query>
FitSums two_keys(Center center, Spread spread, Query query) {
  FitSums sums;
  for (int head = 0; head < kHeads; ++head) {
    for (int j = 0; j < kDim; ++j) sums.pivot[at(head, j)] = center(j) + spread(j);
    sums.add_key(head, [&](int j) { return center(j) + spread(j); });
    sums.add_key(head, [&](int j) { return center(j) - spread(j); });
    sums.add_query(head, query);
    sums.add_query(head, [&](int j) { return -query(j); });
  }
  return sums;
}

inline FitSums valid_sums() {
  return two_keys([](int) { return 1.0F; }, [](int) { return 1.0F; }, [](int) { return 1.0F; });
}

}  // namespace pkv
