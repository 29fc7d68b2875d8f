// From sums to parameters. docs/algorithm.md, section 2.2.
#include "core/codec/fit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/codec/fit_sums.h"

namespace pkv {
namespace {

TEST_CASE("fit: the centre is the mean of the keys, of the values the mean of the values") {
  FitSums sums = two_keys([](int j) { return static_cast<float>(j); }, [](int) { return 0.25F; },
                          [](int) { return 1.0F; });
  for (int j = 0; j < kValueDim; ++j) sums.value_sums[at(1, j, kValueDim)] = 3.0 * j;
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  for (int head = 0; head < kHeads; ++head) {
    for (int j = 0; j < kDim; ++j) CHECK(fitted->center[at(head, j)] == static_cast<float>(j));
  }
  for (int j = 0; j < kValueDim; ++j) {
    CHECK(fitted->value_center[at(0, j, kValueDim)] == 0.0F);
    CHECK(fitted->value_center[at(1, j, kValueDim)] == 1.5F * static_cast<float>(j));
  }
}

TEST_CASE("fit: the balance is sqrt(rq / rk) over its geometric mean") {
  // rk = 1 or 4, rq = 1: raw 1 or 1/2, half of each: geomean sqrt(1/2).
  FitSums sums = two_keys([](int) { return 7.0F; }, [](int j) { return j % 2 == 0 ? 1.0F : 4.0F; },
                          [](int) { return 1.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  for (int j = 0; j < kDim; ++j) {
    const double wanted = j % 2 == 0 ? std::sqrt(2.0) : std::sqrt(0.5);
    // Double throughout, then one rounding to fp32: 2^-24 relative, and nothing to speak of before
    // it.
    CHECK(std::abs(static_cast<double>(fitted->balance[at(1, j)]) - wanted) <=
          1.01 * 0x1p-24 * wanted);
    CHECK(fitted->inv_balance[at(1, j)] == 1.0F / fitted->balance[at(1, j)]);
  }
}

TEST_CASE("fit: queries raise the balance where they are large") {
  FitSums sums = two_keys([](int) { return 0.0F; }, [](int) { return 1.0F; },
                          [](int j) { return j == 0 ? 4.0F : 1.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  const double geomean = std::pow(2.0, 1.0 / kDim);
  CHECK(static_cast<double>(fitted->balance[0]) == doctest::Approx(2.0 / geomean).epsilon(1e-7));
  CHECK(static_cast<double>(fitted->balance[1]) == doctest::Approx(1.0 / geomean).epsilon(1e-7));
}

TEST_CASE("fit: the balance stays within 1/16 and 16") {
  FitSums sums = two_keys([](int) { return 0.0F; },
                          [](int j) { return j == 0   ? 1e-6F
                                             : j == 1 ? 1e6F
                                                      : 1.0F; },
                          [](int) { return 1.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->balance[0] == 16.0F);
  CHECK(fitted->balance[1] == 1.0F / 16);
  CHECK(fitted->balance[2] == doctest::Approx(1.0));  // the extremes cancel in the geomean
  CHECK(fitted->inv_balance[0] == 1.0F / 16);
}

TEST_CASE("fit: coordinates without spread or without queries keep 1 and stay out of the geomean") {
  FitSums sums = two_keys([](int) { return 3.0F; }, [](int j) { return j == 5 ? 0.0F : 2.0F; },
                          [](int j) { return j == 6 ? 0.0F : 8.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  for (int j = 0; j < kDim; ++j)
    CHECK(fitted->balance[at(0, j)] == 1.0F);  // all raw ones are equal
  CHECK(fitted->center[5] == 3.0F);

  sums.query_squares[at(0, 7)] *= 16;  // one more of four times the size: raw twice the others
  const absl::StatusOr<FittedParams> other = sums.fit();
  REQUIRE(other.ok());
  CHECK(other->balance[at(0, 5)] == 1.0F);
  CHECK(other->balance[at(0, 6)] == 1.0F);
  const double geomean = std::pow(2.0, 1.0 / (kDim - 2));
  CHECK(static_cast<double>(other->balance[at(0, 8)]) ==
        doctest::Approx(1 / geomean).epsilon(1e-7));
}

TEST_CASE("fit: if no coordinate has both, all are 1") {
  FitSums sums = two_keys([](int) { return 3.0F; }, [](int j) { return j % 2 == 0 ? 0.0F : 2.0F; },
                          [](int j) { return j % 2 == 0 ? 8.0F : 0.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->balance == std::vector<float>(kHeads * kDim, 1.0F));
}

TEST_CASE("fit: each option switches its own part off") {
  FitSums sums = two_keys([](int j) { return static_cast<float>(j); },
                          [](int j) { return j % 2 == 0 ? 1.0F : 4.0F; }, [](int) { return 1.0F; });
  const absl::StatusOr<FittedParams> both = sums.fit();
  const absl::StatusOr<FittedParams> no_balance = sums.fit(true, false);
  const absl::StatusOr<FittedParams> no_center = sums.fit(false, true);
  REQUIRE(both.ok());
  REQUIRE(no_balance.ok());
  REQUIRE(no_center.ok());
  CHECK(no_balance->balance == std::vector<float>(kHeads * kDim, 1.0F));
  CHECK(no_balance->inv_balance == no_balance->balance);
  CHECK(no_balance->center == both->center);
  CHECK(no_center->center == std::vector<float>(kHeads * kDim, 0.0F));
  CHECK(no_center->balance != both->balance);
}

TEST_CASE("fit: with center off the spread is the rms of the keys themselves") {
  // Keys center +- spread: mean square center^2 + spread^2. 3-4-5: rms 5; the others 0 +- 1: rms 1.
  FitSums sums = two_keys([](int j) { return j == 0 ? 3.0F : 0.0F; },
                          [](int j) { return j == 0 ? 4.0F : 1.0F; }, [](int) { return 1.0F; });
  const absl::StatusOr<FittedParams> fitted = sums.fit(false, true);
  REQUIRE(fitted.ok());
  const double ratio =
      static_cast<double>(fitted->balance[1]) / static_cast<double>(fitted->balance[0]);
  CHECK(ratio == doctest::Approx(std::sqrt(5.0)).epsilon(1e-6));
}

TEST_CASE("fit: what rounding leaves of the spread of equal keys is no spread") {
  // The pivot is another key: sums about it are those of one number, n times.
  for (const bool center_on : {true, false}) {
    FitSums sums;
    for (int head = 0; head < kHeads; ++head) {
      const double offset = center_on ? 0.3 : -static_cast<double>(sums.pivot[at(head, 0)]);
      for (int i = 0; i < 7; ++i) {
        sums.key_sums[at(head, 0)] += offset;
        sums.key_squares[at(head, 0)] += offset * offset;
        for (int j = 1; j < kDim; ++j) sums.key_squares[at(head, j)] += 1.0 + j;
      }
      sums.key_counts[static_cast<std::size_t>(head)] = 7;
      sums.key_weights[static_cast<std::size_t>(head)] = 7;
      sums.add_query(head, [](int) { return 1.0F; });
    }
    const absl::StatusOr<FittedParams> fitted = sums.fit(center_on, true);
    REQUIRE(fitted.ok());
    CHECK(fitted->balance[at(0, 0)] == 1.0F);
    CHECK(fitted->balance[at(0, 1)] != 1.0F);
  }
}

TEST_CASE("fit: no queries, no balance; per head") {
  FitSums sums = two_keys([](int) { return 0.0F; }, [](int j) { return j % 2 == 0 ? 1.0F : 4.0F; },
                          [](int) { return 1.0F; });
  sums.query_counts[0] = 0;
  absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->balance[at(0, 0)] == 1.0F);
  CHECK(fitted->balance[at(1, 0)] != 1.0F);
  sums.query_counts.clear();
  sums.query_squares.clear();
  fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->balance == std::vector<float>(kHeads * kDim, 1.0F));
}

TEST_CASE("fit: a key of weight o counts o times, the value centre takes each once") {
  FitSums sums, repeated;
  for (int head = 0; head < kHeads; ++head) {
    for (int i = 0; i < 6; ++i) {
      const auto key = [i](int j) { return static_cast<float>((i * 7 + j * (i + 1)) % 11); };
      sums.add_key(head, key, i % 3);
      for (int o = 0; o < i % 3; ++o) repeated.add_key(head, key);
    }
    for (FitSums* one : {&sums, &repeated}) {
      one->add_query(head, [](int j) { return static_cast<float>(1 + j % 3); });
    }
  }
  REQUIRE(sums.key_weights[0] == 6);  // of 6 keys, two of them of weight 0
  sums.value_sums[0] = 12.0;
  for (const bool center_on : {true, false}) {
    const absl::StatusOr<FittedParams> fitted = sums.fit(center_on, true);
    const absl::StatusOr<FittedParams> wanted = repeated.fit(center_on, true);
    REQUIRE(fitted.ok());
    REQUIRE(wanted.ok());
    CHECK(fitted->center == wanted->center);  // sums of small integers: exact
    CHECK(fitted->balance == wanted->balance);
    CHECK(fitted->value_center[0] == 2.0F);
  }
}

TEST_CASE("fit: keys without weight give centre 0 and balance 1, but a value centre; per head") {
  FitSums sums = two_keys([](int) { return 5.0F; }, [](int j) { return j == 0 ? 2.0F : 1.0F; },
                          [](int) { return 1.0F; });
  sums.key_weights[1] = 0;
  for (int j = 0; j < kDim; ++j) sums.key_sums[at(1, j)] = sums.key_squares[at(1, j)] = 0.0;
  sums.value_sums[at(1, 3, kValueDim)] = 4.0;
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  for (int j = 0; j < kDim; ++j) {
    CHECK(fitted->center[at(0, j)] == 5.0F);
    CHECK(fitted->center[at(1, j)] == 0.0F);
    CHECK(fitted->balance[at(1, j)] == 1.0F);
  }
  CHECK(fitted->balance[at(0, 0)] != 1.0F);
  CHECK(fitted->value_center[at(1, 3, kValueDim)] == 2.0F);
}

TEST_CASE("fit: without keys everything is neutral, whatever the sums hold; per head") {
  FitSums sums = two_keys([](int) { return 5.0F; }, [](int j) { return j == 0 ? 2.0F : 1.0F; },
                          [](int) { return 1.0F; });
  sums.key_counts[0] = sums.key_weights[0] = 0;
  sums.pivot[0] = std::numeric_limits<float>::quiet_NaN();
  sums.key_sums[0] = std::numeric_limits<double>::quiet_NaN();
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  for (int j = 0; j < kDim; ++j) {
    CHECK(fitted->center[at(0, j)] == 0.0F);
    CHECK(fitted->balance[at(0, j)] == 1.0F);
    CHECK(fitted->center[at(1, j)] == 5.0F);
  }
  CHECK(fitted->balance[at(1, 0)] != 1.0F);
}

TEST_CASE("fit: the pivot keeps a small spread on a large offset") {
  // Keys 1e4 + noise of size 1e-2. FitSums of squares about 0 would carry 1e8 * 2^-52 per key,
  // which is as much as the variance's relative error of 2e-4; about a key they carry nothing to
  // speak of.
  constexpr int kKeys = 1000;
  std::mt19937 random(7);
  std::vector<std::vector<float>> keys;
  for (int i = 0; i < kKeys; ++i) {
    std::vector<float> key(kDim);
    for (int j = 0; j < kDim; ++j) {
      const double noise = (static_cast<double>(random()) * 0x1p-32 - 0.5) * 0.02;
      key[static_cast<std::size_t>(j)] = static_cast<float>(1e4 + noise * (j == 0 ? 4 : 1));
    }
    keys.push_back(key);
  }
  FitSums sums;
  for (int head = 0; head < kHeads; ++head) {
    for (int j = 0; j < kDim; ++j) sums.pivot[at(head, j)] = keys[0][static_cast<std::size_t>(j)];
    for (const auto& key : keys) {
      sums.add_key(head, [&](int j) { return key[static_cast<std::size_t>(j)]; });
    }
    sums.add_query(head, [](int) { return 1.0F; });
  }
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  // The reference in long double, in two passes.
  std::vector<long double> rms(kDim);
  long double log_sum = 0;
  for (std::size_t j = 0; j < kDim; ++j) {
    long double mean = 0;
    for (const auto& key : keys) mean += static_cast<long double>(key[j]) / kKeys;
    long double square = 0;
    for (const auto& key : keys) {
      const long double x = static_cast<long double>(key[j]) - mean;
      square += x * x / kKeys;
    }
    rms[j] = std::sqrt(square);
    log_sum += std::log(rms[j]);
    CHECK(fitted->center[j] == static_cast<float>(mean));
  }
  const long double geomean = std::exp(log_sum / kDim);
  for (std::size_t j = 0; j < kDim; ++j) {
    const auto wanted = static_cast<double>(std::sqrt(geomean / rms[j]));
    CHECK(static_cast<double>(fitted->balance[j]) == doctest::Approx(wanted).epsilon(1e-6));
  }
}

TEST_CASE("fit: a spread that rounding made negative counts as none") {
  FitSums sums =
      two_keys([](int) { return 1.0F; }, [](int) { return 1.0F; }, [](int) { return 1.0F; });
  sums.key_sums[0] = 2.0;                     // mean 1 about the pivot
  sums.key_squares[0] = 2.0 * (1 - 0x1p-50);  // mean square a little below 1
  const absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->balance[0] == 1.0F);
}

TEST_CASE("fit: no value sums, a value centre of 0; no values, none") {
  FitSums sums =
      two_keys([](int) { return 1.0F; }, [](int) { return 1.0F; }, [](int) { return 1.0F; });
  sums.value_sums.clear();
  absl::StatusOr<FittedParams> fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->value_center == std::vector<float>(kHeads * kValueDim, 0.0F));
  sums.geometry.v_source = PKV_V_SOURCE_NONE;
  sums.geometry.value_dim = 0;
  fitted = sums.fit();
  REQUIRE(fitted.ok());
  CHECK(fitted->value_center.empty());
}

TEST_CASE("fit: extreme but possible sums give numbers") {
  FitSums sums = valid_sums();
  sums.key_squares[0] = std::numeric_limits<double>::max();
  sums.query_squares[1] = std::numeric_limits<double>::max();
  sums.key_sums[1] = 0;
  sums.key_squares[1] = 1e-323;  // rq / rk is beyond double, its root is not
  for (const bool center_on : {false, true}) {
    const absl::StatusOr<FittedParams> fitted = sums.fit(center_on, true);
    REQUIRE(fitted.ok());
    for (const float s : fitted->balance) {
      CHECK(s >= 1.0F / 16);
      CHECK(s <= 16.0F);
    }
  }
}

}  // namespace
}  // namespace pkv
