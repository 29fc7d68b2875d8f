// Which sums are refused, with which words. docs/algorithm.md, section 2.2.
#include "core/codec/fit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include "tests/unit/base/check_text.h"
#include "tests/unit/codec/fit_sums.h"

namespace pkv {
namespace {

TEST_CASE("fit: sums that cannot be are refused by array, head and coordinate") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto refuses = [](std::vector<double> FitSums::*array, std::size_t index, double value,
                          std::initializer_list<std::string_view> words) {
    FitSums sums = valid_sums();
    (sums.*array)[index] = value;
    check_invalid(sums.fit().status(), words);
  };
  refuses(&FitSums::key_sums, 25, kInf,
          {"key_sums[KV head 1, coordinate 1]=inf", "2 fp32 numbers"});
  refuses(&FitSums::key_sums, 3, std::nan(""), {"key_sums[KV head 0, coordinate 3]=nan"});
  refuses(&FitSums::key_sums, 3, 1e40, {"key_sums[KV head 0, coordinate 3]=1e+40"});
  refuses(&FitSums::key_sums, 3, 8e38, {"center[KV head 0, coordinate 3]=", "finite in fp32"});
  refuses(&FitSums::key_squares, 4, -1.0, {"key_squares[KV head 0, coordinate 4]=-1", ">= 0"});
  refuses(&FitSums::key_squares, 4, kInf, {"key_squares[KV head 0, coordinate 4]=inf"});
  refuses(&FitSums::query_squares, 47, -1.0, {"query_squares[KV head 1, coordinate 23]=-1"});
  refuses(&FitSums::value_sums, 17, -kInf, {"value_sums[KV head 1, coordinate 1]=-inf"});

  FitSums sums = valid_sums();
  sums.pivot[2] = std::numeric_limits<float>::infinity();
  check_invalid(sums.fit().status(), {"pivot[KV head 0, coordinate 2]=inf, accepted: finite"});
  sums = valid_sums();
  sums.key_counts[1] = -1;
  check_invalid(sums.fit().status(), {"key_counts[KV head 1]=-1, accepted: >= 0"});
  sums = valid_sums();
  sums.key_weights[1] = -2;
  check_invalid(sums.fit().status(), {"key_weights[KV head 1]=-2, accepted: >= 0"});
  sums = valid_sums();
  sums.query_counts[0] = -7;
  check_invalid(sums.fit().status(), {"query_counts[KV head 0]=-7, accepted: >= 0"});
  sums = valid_sums();
  sums.geometry.head_dim = 25;
  check_invalid(sums.fit().status(), {"head_dim=25"});
}

TEST_CASE("fit: missing arrays are refused by name") {
  FitSums sums = valid_sums();
  pkv_fit_args args{};
  check_invalid(fit_params(args, true, true).status(), {"geometry=NULL"});
  args.geometry = &sums.geometry;
  check_invalid(fit_params(args, true, true).status(), {"pivot=NULL"});
  args.pivot = sums.pivot.data();
  check_invalid(fit_params(args, true, true).status(), {"key_counts=NULL"});
  args.key_counts = sums.key_counts.data();
  check_invalid(fit_params(args, true, true).status(), {"key_weights=NULL"});
  args.key_weights = sums.key_weights.data();
  check_invalid(fit_params(args, true, true).status(), {"key_sums=NULL"});
  args.key_sums = sums.key_sums.data();
  check_invalid(fit_params(args, true, true).status(), {"key_squares=NULL"});
  args.key_squares = sums.key_squares.data();
  args.query_counts = sums.query_counts.data();
  check_invalid(fit_params(args, true, true).status(), {"query_squares=NULL"});
  args.query_counts = nullptr;
  args.query_squares = sums.query_squares.data();
  check_invalid(fit_params(args, true, true).status(), {"query_counts=NULL"});
  args.query_squares = nullptr;
  CHECK(fit_params(args, true, true).ok());
}

}  // namespace
}  // namespace pkv
