// What a whole decoding step must satisfy, through index and plan, with scratch between guards that
// holds something else on the second run.
#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/step_judge.h"

namespace pkv::conformance {
namespace {

using Options = StepCaseOptions;

using Judge = void (*)(const Bench&, const Setup&, const Options&, const std::string&);

void add(Cases& cases, const char* family, const Setup& setup, const Options& options,
         Judge judge = judge_step) {
  const std::string shape = setup.text();
  const size_t slash = shape.rfind('/');
  std::string text = fmt::format("_k{}", options.step.k);
  const int32_t samples = options.step.tail_samples;
  if (samples != StepOptions().tail_samples) text += fmt::format("_samples{}", samples);
  if (options.ppm != Options().ppm) text += fmt::format("_ppm{}", options.ppm);
  if (options.soft_cap != 0.0F) text += fmt::format("_cap{}", options.soft_cap);
  if (options.has_sinks) text += "_sinks";
  if (options.share > 0.0) text += fmt::format("_share{}", options.share);
  if (options.rank == PKV_RANK_MEAN) text += "_mean";
  if (options.vote_group == PKV_VOTE_GROUP_HEADS) text += "_heads";
  const std::string name =
      fmt::format("step/{}/{}{}{}", family, shape.substr(0, slash), text, shape.substr(slash));
  cases.push_back({name, Verdict::kTolerance, [setup, options, name, judge](const Bench& bench) {
                     judge(bench, setup, options, name);
                   }});
}

Options paper() {
  Options options;
  options.step.profile = "paper";
  options.step.tail = PKV_TAIL_DROP;
  options.rank = PKV_RANK_MEAN;
  return options;
}

Options with_tail(int32_t tail, int32_t k) {
  Options options;
  options.step.tail = tail;
  options.step.k = k;
  return options;
}

// Of the default's tail: a sketch of every 16th value.
Setup sampled_setup(int64_t n) {
  Setup setup = {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = n};
  setup.sketch_bits = 4;
  setup.sketch_stride = 16;
  return setup;
}

// Around the stride; rows are appended in two pieces at n/3.
void add_sampled(Cases& cases) {
  const Options usual = with_tail(PKV_TAIL_SAMPLED, 8);
  for (const int64_t n : {0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 257}) {
    add(cases, "sampled", sampled_setup(n), usual);
  }
  for (const int32_t codec : kCodecs) {
    Options few = usual;
    few.step.tail_samples = 5;
    Setup setup = sampled_setup(200);
    setup.d = 80;
    setup.codec = codec;
    setup.dtype = PKV_DTYPE_BF16;
    add(cases, fmt::format("sampled_{}", codec_name(codec)).c_str(), setup, few);
  }
  for (const char* keys : {"one_nan", "all_bad"}) {
    Setup setup = sampled_setup(60);
    setup.keys = keys;
    add(cases, "sampled", setup, usual);
  }
  Setup bad_query = sampled_setup(60);
  bad_query.queries = "one_nan";
  add(cases, "sampled", bad_query, with_tail(PKV_TAIL_SAMPLED, 0));
  Setup prefix = sampled_setup(100);
  prefix.v_source = PKV_V_SOURCE_K_PREFIX;
  add(cases, "sampled", prefix, usual);
  Setup every_key = sampled_setup(100);
  every_key.sketch_stride = 1;
  Options few = with_tail(PKV_TAIL_SKETCH, 8);
  few.step.tail_samples = 20;
  add(cases, "sketch4", every_key, few);
}

void add_host_rows(Cases& cases) {
  for (const pkv_dtype dtype : {PKV_DTYPE_F32, PKV_DTYPE_BF16}) {
    add(cases, "host_rows", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 600, .dtype = dtype}, Options(),
        judge_host_rows);
  }
  add(cases, "host_rows", {.d = 80, .dv = 24, .h = 3, .b = 2, .n = 600}, Options(),
      judge_host_rows);
}

void add_row_cache(Cases& cases) {
  const Options usual = with_tail(PKV_TAIL_MEAN, 24);
  const auto add_case = [&](const Setup& setup, const Options& options) {
    add(cases, "row_cache", setup, options, judge_row_cache);
  };
  add_case({.d = 64, .h = 2, .G = 2, .b = 3, .n = 200}, usual);
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    add_case({.h = 2, .G = 4, .b = 2, .n = 300, .dtype = dtype, .query_dtype = dtype},
             with_tail(PKV_TAIL_MEAN, 100));
  }
  // Long rows of candidates, several passes over a group, K and V of different widths.
  Options many = with_tail(PKV_TAIL_DROP, 200);
  many.ppm = 1000000;
  add_case({.d = 80, .dv = 24, .h = 2, .G = 3, .b = 1, .n = 600}, many);
  add_case({.d = 128, .G = 24, .b = 1, .n = 100}, usual);
  add_case({.d = 264, .dv = 576, .h = 1, .G = 2, .b = 1, .n = 100}, usual);
  add_case({.d = 96, .dv = 64, .G = 4, .b = 2, .n = 90, .v_source = PKV_V_SOURCE_K_PREFIX}, usual);
  Setup bad_query = {.d = 64, .h = 2, .G = 2, .b = 3, .n = 60, .queries = "one_nan"};
  add_case(bad_query, usual);
}

}  // namespace

void add_random_step(Cases& cases, Random& random) {
  const int32_t tail =
      one_of(random, {PKV_TAIL_DROP, PKV_TAIL_MEAN, PKV_TAIL_SAMPLED, PKV_TAIL_SKETCH});
  const RandomLimits limits = {.has_stores = false,
                               .has_extremes = false,
                               .needs_values = true,
                               .needs_sketch = reads_samples(tail)};
  Setup setup = random_setup(random, limits);
  // What the options of a config can name.
  if (tail == PKV_TAIL_SAMPLED) {
    setup.sketch_bits = 4;
    setup.sketch_stride = 16;
  } else if (tail == PKV_TAIL_SKETCH) {
    setup.sketch_stride = 1;
  } else {
    setup.sketch_bits = 0;
    setup.sketch_stride = 1;
  }
  Options options = with_tail(tail, random_k(random, setup.n));
  options.step.tail_samples = one_of(random, {512, 512, 5, 100});
  options.rank = one_of(random, {PKV_RANK_GROUP, PKV_RANK_GROUP, PKV_RANK_MEAN});
  if (setup.vote == PKV_VOTE_GRADED && chance(random, 3)) {
    options.vote_group = PKV_VOTE_GROUP_HEADS;
  }
  options.ppm = random_ppm(random);
  if (options.rank == PKV_RANK_GROUP && chance(random, 5)) {
    options.share = 0.5;
    options.k_min = std::min(2, options.step.k);
  }
  options.parts = {random.below(150)};
  if (chance(random, 4)) options.soft_cap = one_of(random, {0.5F, 20.0F});
  options.has_sinks = chance(random, 4);
  add(cases, "any", setup, options, chance(random, 3) ? judge_row_cache : judge_step);
}

void add_step_cases(Cases& cases) {
  add_host_rows(cases);
  add_row_cache(cases);
  for (const int32_t d : {24, 64, 80, 128, 576}) {
    add(cases, "default", {.d = d, .h = 2, .G = 3, .b = 3, .n = 120}, Options());
    add(cases, "paper",
        {.d = d,
         .h = 2,
         .G = 3,
         .b = 3,
         .n = 120,
         .codec = PKV_CODEC_POLAR4,
         .vote = PKV_VOTE_TIER},
        paper());
  }
  add(cases, "default", {.d = 96, .h = 2, .G = 2, .b = 3, .n = 500}, Options());
  for (const int64_t n : {0, 1, 33, 257}) {
    add(cases, "default", {.d = 64, .h = 2, .G = 2, .b = 3, .n = n}, Options());
  }
  add(cases, "default", {.d = 64, .h = 2, .G = 2, .n = 40}, Options());
  for (const int32_t b : kBatches) {
    add(cases, "default", {.d = 64, .h = 2, .G = 2, .b = b, .n = 40}, Options());
  }
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    add(cases, "default", {.h = 2, .G = 4, .b = 3, .n = 100, .dtype = dtype, .query_dtype = dtype},
        Options());
  }
  for (const int32_t bits : {2, 4}) {
    for (const int32_t k : {0, 8}) {
      add(cases, bits == 2 ? "sketch2" : "sketch4",
          {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = 100, .sketch_bits = bits},
          with_tail(PKV_TAIL_SKETCH, k));
    }
  }
  // Rows so long that what a few keys tell decides how the others are searched.
  for (const int64_t n : {9000, 20000}) {
    Options options;
    options.ppm = 20000;
    add(cases, "default", {.d = 24, .G = 2, .b = 2, .n = n}, options);
    options = paper();
    options.ppm = 20000;
    add(cases, "paper",
        {.d = 24, .G = 2, .b = 2, .n = n, .codec = PKV_CODEC_POLAR4, .vote = PKV_VOTE_TIER},
        options);
  }
  add_sampled(cases);
  for (const float cap : {0.5F, 20.0F}) {
    Options options = with_tail(PKV_TAIL_SAMPLED, 8);
    options.soft_cap = cap;
    add(cases, "sampled", sampled_setup(200), options);
    options.has_sinks = true;
    add(cases, "sampled", sampled_setup(200), options);
    options = paper();
    options.soft_cap = cap;
    options.has_sinks = true;
    add(cases, "paper", {.d = 64, .h = 2, .G = 3, .b = 3, .n = 120, .vote = PKV_VOTE_TIER},
        options);
  }
  add(cases, "default",
      {.d = 64,
       .h = 2,
       .G = 2,
       .b = 3,
       .n = 60,
       .codec = PKV_CODEC_SCALAR5,
       .value_norm = 1,
       .layout = Layout::kPadded},
      with_tail(PKV_TAIL_MEAN, 100));
  add(cases, "prefix",
      {.d = 96, .dv = 64, .G = 4, .b = 3, .n = 60, .v_source = PKV_V_SOURCE_K_PREFIX}, Options());
  for (const char* queries : {"zero", "one_nan", "opposite"}) {
    Options options;
    options.vote_group = PKV_VOTE_GROUP_HEADS;
    add(cases, "default", {.d = 64, .h = 2, .G = 4, .b = 3, .n = 60, .queries = queries}, options);
  }
  for (const char* keys : {"duplicates", "one_nan", "all_bad"}) {
    Options options;
    options.share = 0.5;
    options.k_min = 2;
    add(cases, "default", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 60, .keys = keys}, options);
  }
}

}  // namespace pkv::conformance
