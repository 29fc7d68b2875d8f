// What vote must satisfy. docs/algorithm.md, section 4: exact.
#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {
namespace {

struct Options {
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int32_t rho_of = PKV_RHO_OF_KEYS;
  bool is_wide = false;
};

const char* family(const Setup& setup, const Options& options) {
  if (setup.vote == PKV_VOTE_TIER) {
    return options.rho_of == PKV_RHO_OF_CENTROIDS ? "tier_centroids" : "tier";
  }
  return options.vote_group == PKV_VOTE_GROUP_HEADS ? "graded_heads" : "graded";
}

void check_vote(const Bench& bench, const World& world, const Options& options) {
  VoteInput input = vote_input(world);
  input.vote_group = options.vote_group;
  input.rho_of = options.rho_of;
  input.is_wide = options.is_wide;
  const auto run = [&](const Place& place, uint8_t fill) {
    return run_vote(place, fill, world.codec(), world.zone(), input);
  };
  expect_same(bench.expected(run), bench.result(run), "vote", Nans::kAnyEqual);
}

void add(Cases& cases, const Setup& setup, const Options& options = {}) {
  const std::string name = fmt::format(
      "vote/{}{}{}/{}", family(setup, options), options.is_wide ? "_wide" : "",
      setup.codec == PKV_CODEC_SCALAR4 ? "" : fmt::format("_{}", codec_name(setup.codec)),
      setup.text());
  cases.push_back({name, Verdict::kExact, [setup, options, name](const Bench& bench) {
                     skip_many_blocks(bench, setup.b);
                     check_vote(bench, World(bench, setup, name), options);
                   }});
}

constexpr Options kHeads = {.vote_group = PKV_VOTE_GROUP_HEADS};
constexpr Options kCentroids = {.rho_of = PKV_RHO_OF_CENTROIDS};

// The same setup with each vote.
void add_all(Cases& cases, Setup setup) {
  setup.vote = PKV_VOTE_GRADED;
  add(cases, setup);
  add(cases, setup, kHeads);
  setup.vote = PKV_VOTE_TIER;
  add(cases, setup);
}

void add_widths(Cases& cases) {
  for (const int32_t d : kDims) {
    add_all(cases, {.d = d, .G = 4, .n = 65});
    add(cases, {.d = d, .G = 2, .n = 33, .vote = PKV_VOTE_TIER}, kCentroids);
  }
  for (const int32_t d : {8, 64, 256}) add_all(cases, {.d = d, .G = 3, .b = 3, .rounds = 2});
}

void add_lengths(Cases& cases) {
  for (const int64_t n : kLengths) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = n});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = n, .vote = PKV_VOTE_TIER});
  }
  // Where the tier's rho changes: below, at, and with fewer good keys than keys.
  for (const int64_t n : {4999, 5000, 9999, 10000, 29999, 30000}) {
    add(cases, {.d = 8, .dv = 8, .n = n, .vote = PKV_VOTE_TIER});
  }
  add(cases, {.d = 8, .dv = 8, .n = 5000, .vote = PKV_VOTE_TIER, .keys = "one_nan"});
  add(cases, {.d = 8, .dv = 8, .n = 10000, .vote = PKV_VOTE_TIER}, kCentroids);
  add(cases, {.d = 16, .dv = 8, .n = 40000});
  // More rows than a grid has along its short axis, 65,535, and about as many blocks of keys.
  add(cases, {.d = 8, .dv = 8, .h = 7, .b = 10000, .n = 9});
  add(cases, {.d = 8, .dv = 8, .n = 262145});
  for (const int32_t b : kBatches) add_all(cases, {.d = 64, .h = 2, .G = 2, .b = b, .n = 19});
}

void add_groups(Cases& cases) {
  for (const int32_t G : {1, 2, 3, 7, 8, 128}) {
    add(cases, {.d = 64, .h = 2, .G = G, .b = 3, .n = 37});
    add(cases, {.d = 64, .h = 2, .G = G, .b = 3, .n = 37}, kHeads);
  }
  add(cases, {.d = 80, .h = 3, .G = 5, .b = 3}, kHeads);
  add(cases, {.d = 64, .h = 2, .G = 7, .b = 3, .vote = PKV_VOTE_TIER});
}

void add_tensors(Cases& cases) {
  for (const Layout layout : kLayouts) {
    add(cases, {.d = 72, .h = 2, .G = 3, .b = 3, .n = 17, .layout = layout});
    add(cases, {.d = 72,
                .h = 2,
                .G = 3,
                .b = 3,
                .n = 17,
                .vote = PKV_VOTE_TIER,
                .query_dtype = PKV_DTYPE_BF16,
                .layout = layout});
  }
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    add_all(cases, {.d = 128, .h = 2, .G = 4, .b = 3, .dtype = dtype, .query_dtype = dtype});
  }
}

void add_kinds(Cases& cases) {
  for (const char* queries : {"zero", "minus_zero", "denormal", "huge", "integers", "opposite",
                              "one_nan", "one_inf", "sum_overflow"}) {
    add_all(cases, {.d = 64, .h = 2, .G = 4, .b = 3, .queries = queries});
  }
  // Ties, keys without votes, extreme votes.
  for (const char* keys : {"duplicates", "equal", "integers", "aligned", "mixed", "one_nan",
                           "all_bad", "huge", "denormal"}) {
    add_all(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 97, .keys = keys});
  }
  add_all(cases, {.d = 576, .G = 2, .n = 40, .is_plain = true, .keys = "aligned"});
  add_all(cases, {.d = 128, .G = 2, .n = 40, .is_plain = true, .keys = "zero"});
  add(cases, {.d = 128, .h = 2, .G = 2, .b = 3, .codec = PKV_CODEC_POLAR4});
  add(cases, {.d = 128, .h = 2, .G = 2, .b = 3, .codec = PKV_CODEC_SCALAR5});
  add(cases, {.d = 128,
              .h = 2,
              .G = 2,
              .b = 3,
              .codec = PKV_CODEC_POLAR4,
              .vote = PKV_VOTE_TIER,
              .keys = "one_inf"});
  add(cases, {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .sketch_bits = 2, .value_norm = 1});
}

// In pages, with several sets, with several query tokens of a sequence, and all at once.
void add_shapes(Cases& cases) {
  for (const int64_t n : {1, 63, 64, 65, 128, 129, 400}) {
    add_all(cases, {.d = 64, .h = 2, .G = 2, .b = 4, .n = n, .page = 64});
  }
  for (const int64_t page : {128, 1024}) {
    add_all(cases, {.d = 24, .h = 2, .G = 2, .b = 4, .n = 2100, .page = page});
  }
  add_all(cases, {.d = 64, .h = 2, .G = 2, .b = 4, .n = 200, .keys = "one_nan", .page = 64});
  for (const int32_t d : {24, 128}) {
    add_all(cases, {.d = d, .h = 2, .G = 2, .b = 5, .sets = 3});
    add_all(cases, {.d = d, .h = 2, .G = 2, .b = 7, .n = 70, .query_tokens = 3});
    add_all(cases,
            {.d = d, .h = 2, .G = 2, .b = 7, .n = 300, .page = 64, .sets = 2, .query_tokens = 2});
  }
}

// Votes, and records, on both sides of 2^31 and 2^32 bytes.
void add_sizes(Cases& cases) {
  for (const int32_t d : {24, 128}) {
    add(cases, {.d = d, .h = 2, .G = 2, .b = 3, .n = 300}, {.is_wide = true});
    add(cases, {.d = d, .h = 2, .G = 2, .b = 3, .n = 300},
        {.vote_group = PKV_VOTE_GROUP_HEADS, .is_wide = true});
    add(cases, {.d = d, .h = 2, .G = 2, .b = 3, .n = 300, .vote = PKV_VOTE_TIER},
        {.is_wide = true});
  }
  add_all(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 65, .room = kLargeRoom});
}

}  // namespace

void add_random_vote(Cases& cases, Random& random) {
  const Setup setup = random_setup(random, {});
  Options options;
  if (setup.vote == PKV_VOTE_GRADED) {
    options.vote_group = one_of(random, {PKV_VOTE_GROUP_SUM, PKV_VOTE_GROUP_HEADS});
  } else {
    options.rho_of = one_of(random, {PKV_RHO_OF_KEYS, PKV_RHO_OF_CENTROIDS});
  }
  add(cases, setup, options);
}

void add_vote_cases(Cases& cases) {
  add_shapes(cases);
  add_widths(cases);
  add_lengths(cases);
  add_groups(cases);
  add_tensors(cases);
  add_kinds(cases);
  add_sizes(cases);
}

}  // namespace pkv::conformance
