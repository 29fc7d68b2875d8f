// What select must satisfy, votes given to it directly. docs/algorithm.md, section 5: exact.
#include <algorithm>
#include <limits>

#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct SelectShape {
  int32_t b = 1;
  int32_t h = 1;
  int64_t n = 33;
  int64_t ppm = 250000;
  int32_t k = 5;
  const char* votes = "normal";
  bool is_wide = false;
};

// One row of votes.
//   normal | equal | levels       few different numbers: ties at the cut
//   close        differ in the last bits only      | zeros  -0 and +0 by turns, then -1
//   some_nan, all_nan, infinite   (-inf, and one +inf)   | few_finite  the others -inf
//   low          all below the lowest f16          | ends   the best at both ends
//   winners      100 above all the others, which are equal
//   far_half     the best in places 32 .. 63 of each 64: the far half of a group of 64 lanes
std::vector<float> vote_row(Random& random, std::string_view kind, int64_t n) {
  std::vector<float> votes(static_cast<size_t>(n));
  for (size_t i = 0; i < votes.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    float& vote = votes[i];
    vote = 100.0F * random.normal();
    if (kind == "equal") vote = 3.0F;
    if (kind == "levels") vote = static_cast<float>(random.below(4));
    if (kind == "close") vote = 1.0F + static_cast<float>((position * 7919) % 16384) * 0x1p-22F;
    if (kind == "zeros") vote = position % 3 == 0 ? -0.0F : position % 3 == 1 ? 0.0F : -1.0F;
    if (kind == "some_nan" && random.below(3) == 0) vote = kNan;
    if (kind == "all_nan") vote = kNan;
    if (kind == "infinite" && random.below(2) == 0) vote = -kInfinity;
    if (kind == "infinite" && position == n / 2) vote = kInfinity;
    if (kind == "few_finite") vote = position % 17 == 5 ? 1.0F : -kInfinity;
    if (kind == "low") vote = -7e4F - 1e5F * random.uniform();
    if (kind == "ends") vote = position < 2 || position >= n - 2 ? 1.0F : 0.0F;
    if (kind == "far_half") vote = position % 64 < 32 ? -1.0F : static_cast<float>(random.below(3));
    if (kind == "winners") vote = (position * 83) % n < 100 ? 2.0F : 1.0F;
  }
  return votes;
}

void check_select(const Bench& bench, const SelectInput& input) {
  const auto run = [&](const Place& place, uint8_t fill) { return run_select(place, fill, input); };
  expect_same(bench.expected(run), bench.result(run), "select");
}

Rows<float> vote_rows(Random& random, const char* kind, const std::vector<int64_t>& lengths,
                      int32_t heads) {
  Rows<float> votes;
  for (const int64_t length : lengths) {
    for (int32_t head = 0; head < heads; ++head) votes.push_back(vote_row(random, kind, length));
  }
  return votes;
}

void add(Cases& cases, const SelectShape& shape, const pkv_candidate_rule& rule,
         const char* what = "") {
  const std::string name = fmt::format(
      "select/{}/n{}_ppm{}_k{}{}{}/b{}", shape.votes, shape.n, shape.ppm, shape.k,
      shape.h == 1 ? "" : fmt::format("_h{}", shape.h), shape.is_wide ? "_wide" : what, shape.b);
  cases.push_back({name, Verdict::kExact, [=](const Bench& bench) {
                     skip_many_blocks(bench, shape.b);
                     Random random = bench.random(name);
                     const int64_t n = shape.n;
                     const int64_t lengths[] = {n, n / 2, n - 1, n, 1, 0, n - 2};
                     std::vector<int64_t> rows;
                     for (int32_t i = 0; i < shape.b; ++i) {
                       rows.push_back(std::clamp<int64_t>(lengths[i % 7], 0, n));
                     }
                     SelectInput input = select_input(vote_rows(random, shape.votes, rows, shape.h),
                                                      rows, shape.h, rule);
                     input.is_wide = shape.is_wide;
                     check_select(bench, input);
                   }});
}

void add(Cases& cases, const SelectShape& shape) {
  add(cases, shape, share_rule(shape.ppm, shape.k));
}

// The default profile's schedule (section 1).
pkv_candidate_rule schedule(int32_t k) {
  pkv_candidate_rule rule = {};
  const int64_t below[] = {16384, 32768, 131072, INT64_MAX};
  const int64_t ppm[] = {100000, 50000, 20000, 10000};
  std::copy_n(below, 4, rule.below);
  std::copy_n(ppm, 4, rule.ppm);
  rule.k = k;
  rule.steps = 4;
  return rule;
}

void add_counts(Cases& cases) {
  for (const int32_t k : {0, 1, 33, 34, 1000}) {
    for (const int64_t ppm : {0, 1, 500000, 1000000}) {
      add(cases, {.b = 3, .n = 33, .ppm = ppm, .k = k, .votes = "levels"});
    }
  }
  for (const int64_t n : {999, 1000, 1001}) add(cases, {.n = n, .ppm = 1000, .k = 0});
  for (const int64_t n : {16383, 16384, 32767, 32768, 131071, 131072}) {
    add(cases, {.n = n, .ppm = 0, .k = 100, .votes = "levels"}, schedule(100), "_auto");
  }
}

}  // namespace

void add_random_select(Cases& cases, Random& random) {
  SelectShape shape;
  shape.b = static_cast<int32_t>(1 + random.below(4));
  shape.h = static_cast<int32_t>(1 + random.below(4));
  shape.n = random.below(one_of<int64_t>(random, {40, 300, 3000, 30000}));
  shape.ppm = random_ppm(random);
  shape.k = random_k(random, shape.n);
  shape.votes = one_of(random, {"normal", "equal", "levels", "close", "zeros", "some_nan",
                                "all_nan", "infinite", "few_finite", "low", "ends", "winners"});
  add(cases, shape);
}

void add_select_cases(Cases& cases) {
  for (const int64_t n : kLengths) {
    for (const char* votes : {"normal", "equal", "levels", "some_nan"}) {
      add(cases, {.b = 3, .h = 2, .n = n, .votes = votes});
    }
  }
  for (const char* votes : {"close", "zeros", "all_nan", "infinite", "few_finite", "low", "ends"}) {
    add(cases, {.b = 3, .h = 2, .n = 257, .votes = votes});
    add(cases, {.n = 4097, .ppm = 100000, .k = 100, .votes = votes});
  }
  for (const int64_t n : {64, 640, 20000}) {
    add(cases, {.b = 3, .h = 2, .n = n, .ppm = 500000, .votes = "far_half"});
  }
  // Rows on both sides of 2^31 and 2^32 bytes.
  for (const char* votes : {"normal", "levels", "some_nan", "ends"}) {
    add(cases, {.b = 3, .h = 2, .n = 300, .votes = votes, .is_wide = true});
    add(cases, {.b = 3, .n = 20000, .k = 100, .votes = votes, .is_wide = true});
  }
  add_counts(cases);
  for (const int32_t b : kBatches) {
    add(cases, {.b = b, .h = 2, .n = 65, .votes = "levels"});
    add(cases, {.b = b, .n = 300, .votes = "some_nan"});
  }
  // More ties than a buffer for ties may hold; all but the low bits equal; rows of one call beside
  // each other; a row that vector widths pad.
  add(cases, {.n = 8320, .ppm = 0, .k = 2048, .votes = "winners"});
  add(cases, {.n = 16384, .ppm = 0, .k = 2048, .votes = "close"});
  add(cases, {.n = 51, .ppm = 0, .k = 16, .votes = "few_finite"});
  add(cases, {.b = 100, .h = 2, .n = 1027, .ppm = 0, .k = 512, .votes = "low"});
  add(cases, {.b = 33, .n = 2000, .ppm = 0, .k = 100, .votes = "equal"});
  add(cases, {.n = 70000, .ppm = 0, .k = 65536, .votes = "levels"});
  add(cases, {.b = 3, .n = 100000, .ppm = 10000, .k = 100, .votes = "normal"});
  // More rows than a grid has along its short axis; as many blocks along a row.
  add(cases, {.b = 10000, .h = 7, .n = 9, .ppm = 0, .k = 4, .votes = "levels"});
  for (const int64_t n : {262144, 262145, 1048577}) {
    add(cases, {.n = n, .ppm = 0, .k = 100, .votes = "ends"});
  }
}

}  // namespace pkv::conformance
