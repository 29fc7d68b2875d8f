// What fit must satisfy. docs/algorithm.md, section 2.2: bounded (docs/numerics.md, section 3), its
// counts exact.
#include <algorithm>
#include <cmath>

#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/fit_stage.h"
#include "tests/conformance/numbers.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

// Query rows per head in the sample; 0: none given.
struct Sample {
  int64_t m = 9;
  bool wants_value_sums = true;
};

FitInput make_input(const World& world, Random& random, const Sample& sample) {
  const Setup& s = world.setup();
  FitInput input;
  const auto head_major = [&](const Dense& all) {
    Dense first = take(all, {0});
    first.shape.erase(first.shape.begin());
    return lay_out(first, s.layout);
  };
  input.keys = head_major(world.keys());
  if (s.has_values && world.values()) input.values = head_major(*world.values());
  if (sample.m > 0) {
    const Shape shape = {s.hq(), sample.m, s.d};
    input.queries = lay_out(
        make_dense(
            s.query_dtype, shape,
            query_numbers(random, s.queries, shape, static_cast<int32_t>(sample.m), s.query_dtype)),
        s.layout);
  }
  // Near the keys, as core chooses it: the first usable one.
  const Dense keys = gather(input.keys, input.keys.memory);
  for (int32_t head = 0; head < s.h; ++head) {
    for (int32_t j = 0; j < s.d; ++j) {
      const float first = s.n == 0 ? 0.0F : keys.at(int64_t{head} * s.n * s.d + j);
      input.pivot.push_back(std::fabs(first) < 1e18F ? first : 0.0F);
    }
  }
  input.wants_value_sums = sample.wants_value_sums;
  return input;
}

// Whether a row counts: all elements finite, and their squares' sum finite in fp32.
bool is_usable(const std::vector<float>& rows, size_t row, size_t width) {
  double sum = 0.0;
  for (size_t j = row * width; j < (row + 1) * width; ++j) {
    sum += static_cast<double>(rows[j]) * static_cast<double>(rows[j]);
  }
  return std::isfinite(static_cast<float>(sum));
}

// Sums of |terms|, per head and coordinate.
struct Sizes {
  std::vector<double> keys;
  std::vector<double> values;
};

Sizes sizes_of(const Setup& setup, const FitInput& input) {
  const std::vector<float> keys = gather(input.keys, input.keys.memory).floats();
  std::vector<float> values;
  size_t dv = 0;
  if (input.values) {
    values = gather(*input.values, input.values->memory).floats();
    dv = static_cast<size_t>(input.values->shape.back());
  }
  const auto d = static_cast<size_t>(setup.d);
  const auto n = static_cast<size_t>(setup.n);
  Sizes sizes = {std::vector<double>(input.pivot.size()),
                 std::vector<double>(dv * static_cast<size_t>(setup.h))};
  for (size_t row = 0; row < n * static_cast<size_t>(setup.h); ++row) {
    if (!is_usable(keys, row, d) || (dv != 0 && !is_usable(values, row, dv))) continue;
    const size_t head = row / n;
    for (size_t j = 0; j < d; ++j) {
      const double pivot = input.pivot[head * d + j];
      sizes.keys[head * d + j] += std::fabs(static_cast<double>(keys[row * d + j]) - pivot);
    }
    for (size_t j = 0; j < dv; ++j) {
      sizes.values[head * dv + j] += std::fabs(static_cast<double>(values[row * dv + j]));
    }
  }
  return sizes;
}

void judge(const Setup& setup, const FitInput& input, const Sums& expected, const Sums& got) {
  expect_bits("key_counts", expected.key_counts, got.key_counts);
  expect_bits("query_counts", expected.query_counts, got.query_counts);
  const Sizes sizes = sizes_of(setup, input);
  const auto d = static_cast<size_t>(setup.d);
  const auto keys = [&](size_t i) { return expected.key_counts[i / d]; };
  const auto queries = [&](size_t i) { return expected.query_counts[i / d]; };
  expect_close("key_sums", expected.key_sums, got.key_sums,
               [&](size_t i) { return fit_sum(keys(i), sizes.keys[i]); });
  expect_close("key_squares", expected.key_squares, got.key_squares,
               [&](size_t i) { return fit_sum(keys(i), expected.key_squares[i]); });
  expect_close("query_squares", expected.query_squares, got.query_squares,
               [&](size_t i) { return fit_sum(queries(i), expected.query_squares[i]); });
  const size_t dv = expected.value_sums.size() / static_cast<size_t>(setup.h);
  expect_close("value_sums", expected.value_sums, got.value_sums,
               [&](size_t i) { return fit_sum(expected.key_counts[i / dv], sizes.values[i]); });
}

// The centre agrees relative to its size or the rms about it.
void judge_params(const pkv_geometry& geometry, const FitInput& input, const Sums& expected,
                  const Sums& got) {
  const FittedParams a = fitted_params(geometry, input, expected);
  const FittedParams b = fitted_params(geometry, input, got);
  const auto d = static_cast<size_t>(geometry.head_dim);
  expect_close("centre", a.center, b.center, [&](size_t i) {
    const auto count = static_cast<double>(std::max<int64_t>(expected.key_counts[i / d], 1));
    const double rms = std::sqrt(expected.key_squares[i] / count);
    return fit_param(std::max(std::fabs(static_cast<double>(a.center[i])), rms));
  });
}

void check_fit(const Bench& bench, const Setup& setup, const Sample& sample,
               const std::string& name) {
  const World world(bench, setup, name);
  Random random = bench.random(name + "/sample");
  const FitInput input = make_input(world, random, sample);
  const pkv_geometry& geometry = world.codec().geometry;
  const auto run = [&](const Place& place, uint8_t fill) {
    return run_fit(place, fill, geometry, input);
  };
  const Sums expected = bench.expected(run);
  const Sums got = bench.result(run);
  judge(setup, input, expected, got);
  judge_params(geometry, input, expected, got);
}

void add(Cases& cases, const char* family, const Setup& setup, const Sample& sample = {}) {
  const std::string text = setup.text();
  const std::string name = fmt::format("fit/{}/{}_m{}{}", family, text.substr(0, text.rfind('/')),
                                       sample.m, sample.wants_value_sums ? "" : "_nosums");
  cases.push_back({name, Verdict::kTolerance, [setup, sample, name](const Bench& bench) {
                     check_fit(bench, setup, sample, name);
                   }});
}

}  // namespace

void add_fit_cases(Cases& cases) {
  for (const int32_t d : kDims) add(cases, "widths", {.d = d, .h = 2, .G = 2, .n = 65});
  for (const int64_t n : {0, 1, 2, 3, 31, 32, 33, 257, 1025}) {
    add(cases, "counts", {.d = 64, .h = 2, .G = 3, .n = n});
  }
  for (const int64_t m : {0, 1, 2, 65, 257}) {
    add(cases, "sample", {.d = 64, .h = 2, .G = 3, .n = 40}, {.m = m});
  }
  for (const Layout layout : kLayouts) {
    add(cases, "layouts", {.d = 72, .dv = 24, .h = 2, .G = 2, .n = 17, .layout = layout});
  }
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    add(cases, "dtypes", {.d = 64, .h = 2, .G = 2, .dtype = dtype, .query_dtype = dtype});
  }
  for (const char* keys : {"channels", "equal", "aligned", "zero", "denormal", "huge", "one_nan",
                           "one_inf", "all_bad", "overflow"}) {
    add(cases, "keys", {.d = 64, .h = 2, .G = 2, .n = 50, .keys = keys});
  }
  for (const char* queries : {"zero", "one_nan", "one_inf", "large"}) {
    add(cases, "queries", {.d = 64, .h = 2, .G = 2, .n = 50, .queries = queries});
  }
  for (const char* values : {"one_nan", "huge", "overflow"}) {
    add(cases, "values", {.d = 64, .dv = 24, .h = 2, .n = 50, .values = values});
  }
  add(cases, "values", {.d = 64, .dv = 24, .h = 2, .n = 50, .has_values = false});
  add(cases, "values", {.d = 64, .dv = 24, .h = 2, .n = 50, .values = "one_nan"},
      {.wants_value_sums = false});
  add(cases, "groups", {.d = 64, .h = 2, .G = 128, .n = 20}, {.m = 3});
  add(cases, "groups", {.d = 64, .h = 16, .G = 1, .n = 20});
}

}  // namespace pkv::conformance
