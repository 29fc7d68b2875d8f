// What fit must satisfy. docs/algorithm.md, section 2.2: bounded (docs/numerics.md, section 3), its
// counts exact.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/fit_stage.h"
#include "tests/conformance/numbers.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

struct Sample {
  int64_t m = 9;  // query rows per head; 0: none given
  bool wants_value_sums = true;
  // none | counts, as of picks: most of them 0 | large | zero in head 0
  const char* weights = "none";
  int32_t queries_as = PKV_FIT_QUERIES_HEADS;

  std::string text() const {
    std::string text = fmt::format("_m{}", m);
    if (!wants_value_sums) text += "_nosums";
    if (weights != std::string_view("none")) text += fmt::format("_weights_{}", weights);
    if (queries_as == PKV_FIT_QUERIES_SUM) text += "_qsum";
    return text;
  }
};

std::vector<int32_t> weights_of(Random& random, std::string_view kind, int32_t h, int64_t n) {
  std::vector<int32_t> weights;
  if (kind == "none") return weights;
  for (int64_t i = 0; i < h * n; ++i) {
    int64_t weight = 1;
    if (kind == "counts") weight = random.below(3) == 0 ? random.below(40) : 0;
    if (kind == "large") weight = random.below(2) == 0 ? 1 : random.below(1000000);
    if (kind == "zero" && i < n) weight = 0;
    weights.push_back(static_cast<int32_t>(weight));
  }
  return weights;
}

FitInput make_input(const World& world, Random& random, const Sample& sample) {
  const Setup& s = world.setup();
  FitInput input;
  const auto first_sequence = [&](const Dense& all) {
    Dense first = take(all, {0});
    first.shape.erase(first.shape.begin());
    return lay_out(first, s.layout);
  };
  input.keys = first_sequence(world.keys());
  if (s.has_values && world.values()) input.values = first_sequence(*world.values());
  if (sample.m > 0) {
    // Positions are what entries are to other stages: [m, hq, d], to be turned round.
    const std::vector<float> numbers =
        query_numbers(random, s.queries, {sample.m, s.hq(), s.d}, s.G, s.query_dtype);
    std::vector<float> head_major;
    for (int64_t row = 0; row < s.hq() * sample.m; ++row) {
      const int64_t from = row % sample.m * s.hq() + row / sample.m;
      head_major.insert(head_major.end(), numbers.begin() + from * s.d,
                        numbers.begin() + (from + 1) * s.d);
    }
    input.queries =
        lay_out(make_dense(s.query_dtype, {s.hq(), sample.m, s.d}, head_major), s.layout);
  }
  // Near the keys, as core chooses it: the first usable one.
  const Dense keys = gather(input.keys, input.keys.memory);
  for (int32_t head = 0; head < s.h; ++head) {
    for (int32_t j = 0; j < s.d; ++j) {
      const float first = s.n == 0 ? 0.0F : keys.at(int64_t{head} * s.n * s.d + j);
      input.pivot.push_back(std::fabs(first) < 1e18F ? first : 0.0F);
    }
  }
  input.weights = weights_of(random, sample.weights, s.h, s.n);
  input.queries_as = sample.queries_as;
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

// Sums of |terms|, per head and coordinate, and the integers.
struct Sizes {
  std::vector<double> keys;
  std::vector<double> values;
  std::vector<int64_t> counts;   // [h] usable keys
  std::vector<int64_t> weights;  // [h] W
};

// [h] usable query rows, or sums ((q_0 + q_1) + ..) of the heads of a position.
std::vector<int64_t> query_counts(const Setup& setup, const FitInput& input) {
  std::vector<int64_t> counts(static_cast<size_t>(setup.h));
  if (!input.queries) return counts;
  const std::vector<float> rows = gather(*input.queries, input.queries->memory).floats();
  const auto d = static_cast<size_t>(setup.d);
  const auto m = static_cast<size_t>(input.queries->shape[1]);
  const auto G = static_cast<size_t>(setup.G);
  for (size_t position = 0; position < static_cast<size_t>(setup.h) * m; ++position) {
    const size_t head = position / m;
    std::vector<float> sum(d);
    for (size_t g = 0; g < G; ++g) {
      const size_t row = (head * G + g) * m + position % m;
      for (size_t j = 0; j < d; ++j) sum[j] += rows[row * d + j];
      const bool is_row = input.queries_as == PKV_FIT_QUERIES_HEADS;
      counts[head] += is_row && is_usable(rows, row, d) ? 1 : 0;
    }
    const bool is_sum = input.queries_as == PKV_FIT_QUERIES_SUM;
    counts[head] += is_sum && is_usable(sum, 0, d) ? 1 : 0;
  }
  return counts;
}

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
  const auto h = static_cast<size_t>(setup.h);
  Sizes sizes = {std::vector<double>(input.pivot.size()), std::vector<double>(dv * h),
                 std::vector<int64_t>(h), std::vector<int64_t>(h)};
  for (size_t row = 0; row < n * static_cast<size_t>(setup.h); ++row) {
    if (!is_usable(keys, row, d) || (dv != 0 && !is_usable(values, row, dv))) continue;
    const size_t head = row / n;
    const int32_t o = input.weights.empty() ? 1 : input.weights[row];
    ++sizes.counts[head];
    sizes.weights[head] += o;
    for (size_t j = 0; j < d; ++j) {
      const double pivot = input.pivot[head * d + j];
      sizes.keys[head * d + j] += o * std::fabs(static_cast<double>(keys[row * d + j]) - pivot);
    }
    for (size_t j = 0; j < dv; ++j) {
      sizes.values[head * dv + j] += std::fabs(static_cast<double>(values[row * dv + j]));
    }
  }
  return sizes;
}

void judge(const Setup& setup, const FitInput& input, const Sums& expected, const Sums& got) {
  const Sizes sizes = sizes_of(setup, input);
  expect_bits("key_counts", sizes.counts, got.key_counts);
  expect_bits("key_weights", sizes.weights, got.key_weights);
  expect_bits("query_counts", query_counts(setup, input), got.query_counts);
  const auto d = static_cast<size_t>(setup.d);
  expect_close("key_sums", expected.key_sums, got.key_sums, [&](size_t i) {
    return fit_sum(sizes.counts[i / d], sizes.weights[i / d], sizes.keys[i]);
  });
  expect_close("key_squares", expected.key_squares, got.key_squares, [&](size_t i) {
    return fit_sum(sizes.counts[i / d], sizes.weights[i / d], expected.key_squares[i]);
  });
  expect_close("query_squares", expected.query_squares, got.query_squares, [&](size_t i) {
    const int64_t count = expected.query_counts[i / d];
    return fit_sum(count, count, expected.query_squares[i]);
  });
  const size_t dv = expected.value_sums.size() / static_cast<size_t>(setup.h);
  expect_close("value_sums", expected.value_sums, got.value_sums, [&](size_t i) {
    const int64_t count = sizes.counts[i / dv];
    return fit_sum(count, count, sizes.values[i]);
  });
}

// The centre agrees relative to its size or the rms about it.
void judge_params(const pkv_geometry& geometry, const FitInput& input, const Sums& expected,
                  const Sums& got) {
  const FittedParams a = fitted_params(geometry, input, expected);
  const FittedParams b = fitted_params(geometry, input, got);
  const auto d = static_cast<size_t>(geometry.head_dim);
  expect_close("centre", a.center, b.center, [&](size_t i) {
    const auto weight = static_cast<double>(std::max<int64_t>(expected.key_weights[i / d], 1));
    const double rms = std::sqrt(expected.key_squares[i] / weight);
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
  const std::string name =
      fmt::format("fit/{}/{}{}", family, text.substr(0, text.rfind('/')), sample.text());
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
  for (const char* weights : {"counts", "large", "zero"}) {
    for (const int64_t n : {0, 1, 33, 1025}) {
      add(cases, "weights", {.d = 64, .h = 2, .G = 3, .n = n},
          {.weights = weights, .queries_as = PKV_FIT_QUERIES_SUM});
    }
    for (const char* keys : {"channels", "one_nan", "all_bad"}) {
      add(cases, "weights", {.d = 24, .dv = 8, .h = 3, .G = 2, .n = 50, .keys = keys},
          {.weights = weights});
    }
    add(cases, "weights", {.d = 64, .dv = 24, .h = 2, .n = 50, .values = "one_nan"},
        {.weights = weights});
    add(cases, "weights", {.d = 72, .h = 2, .n = 17, .layout = Layout::kPadded},
        {.weights = weights});
  }
  for (const int64_t m : {0, 1, 2, 65}) {
    for (const int32_t G : {1, 2, 7, 128}) {
      add(cases, "query_sums", {.d = 64, .h = 2, .G = G, .n = 20},
          {.m = m, .queries_as = PKV_FIT_QUERIES_SUM});
    }
  }
  for (const char* queries : {"zero", "opposite", "one_nan", "one_inf", "large", "sum_square"}) {
    for (const int32_t as : {PKV_FIT_QUERIES_HEADS, PKV_FIT_QUERIES_SUM}) {
      add(cases, "query_sums", {.d = 72, .h = 2, .G = 4, .n = 20, .queries = queries},
          {.m = 10, .queries_as = as});
    }
  }
  for (const Layout layout : kLayouts) {
    add(cases, "query_sums", {.d = 72, .h = 2, .G = 3, .n = 17, .layout = layout},
        {.queries_as = PKV_FIT_QUERIES_SUM});
  }
  add(cases, "groups", {.d = 64, .h = 2, .G = 128, .n = 20}, {.m = 3});
  add(cases, "groups", {.d = 64, .h = 16, .G = 1, .n = 20});
}

}  // namespace pkv::conformance
