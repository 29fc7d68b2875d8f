// What a whole decoding step must satisfy, through index and plan, with scratch between guards that
// holds something else on the second run.
#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/step_judge.h"

namespace pkv::conformance {
namespace {

using Options = StepCaseOptions;

void add(Cases& cases, const char* family, const Setup& setup, const Options& options) {
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
  cases.push_back({name, Verdict::kTolerance, [setup, options, name](const Bench& bench) {
                     judge_step(bench, setup, options, name);
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

}  // namespace

void add_step_cases(Cases& cases) {
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
