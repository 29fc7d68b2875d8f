// What a whole decoding step must satisfy, through index and plan, with scratch between guards that
// holds something else on the second run. Each part is judged given what the part before really
// delivered.
#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/attend_judge.h"
#include "tests/conformance/attend_world.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/rerank_judge.h"
#include "tests/conformance/step_stage.h"
#include "tests/conformance/vote_stage.h"

namespace pkv::conformance {
namespace {

struct Options {
  StepOptions step;
  int32_t rank = PKV_RANK_GROUP;
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int64_t ppm = 200000;  // of the keys are candidates
  double share = 0.0;
  int32_t k_min = 0;
  std::vector<int64_t> parts = {9};
  float soft_cap = 0.0F;
  bool has_sinks = false;
};

struct Retrieved {
  Hits hits;
  Rows<int32_t> candidates;

  template <class F>
  static void each(F f, const Retrieved& a, const Retrieved& b) {
    f("candidates", a.candidates, b.candidates);
    Hits::each(f, a.hits, b.hits);
  }
};

StepOptions step_options(const Options& options) {
  StepOptions step = options.step;
  step.set.emplace_back("rank", options.rank == PKV_RANK_MEAN ? "mean" : "group");
  step.set.emplace_back("candidates", fmt::format("{}", static_cast<double>(options.ppm) * 1e-6));
  if (options.vote_group == PKV_VOTE_GROUP_HEADS) step.set.emplace_back("vote_group", "heads");
  if (options.soft_cap != 0.0F) {
    step.set.emplace_back("soft_cap", fmt::format("{}", options.soft_cap));
  }
  if (options.share > 0.0) {
    step.set.emplace_back("share", fmt::format("{}", options.share));
    step.set.emplace_back("k_min", fmt::format("{}", options.k_min));
  }
  return step;
}

RerankInput rerank_of(const World& world, const Options& options) {
  RerankInput input = rerank_input(world);
  input.rank = options.rank;
  input.k = options.step.k;
  input.k_min = options.k_min;
  input.soft_cap = options.soft_cap;
  input.share = options.share;
  input.weigh_norms = world.setup().value_norm;
  input.tail_samples = options.step.tail_samples;
  input.wants_estimates = input.wants_rest = options.step.tail != PKV_TAIL_DROP;
  input.wants_samples = reads_samples(options.step.tail);
  return input;
}

// Candidates exactly, hits by their class.
Retrieved check_retrieve(const Bench& bench, const World& world, const Step& step,
                         const Options& options, float scale) {
  const Retrieved got = bench.result([&](const Place&, uint8_t fill) {
    Retrieved result;
    result.hits = step.retrieve(fill, world, result.candidates);
    return result;
  });
  VoteInput vote = vote_input(world);
  vote.vote_group = options.vote_group;
  const Votes votes = bench.expected([&](const Place& place, uint8_t fill) {
    return run_vote(place, fill, world.codec(), world.zone(), vote);
  });
  const SelectInput select = select_input(votes.votes, world.batch().lengths, world.setup().h,
                                          share_rule(options.ppm, options.step.k));
  const Candidates chosen = bench.expected(
      [&](const Place& place, uint8_t fill) { return run_select(place, fill, select); });
  RerankInput rerank = rerank_of(world, options);
  rerank.scale = scale;
  rerank.candidates_stride = select.candidates_stride;
  for (size_t r = 0; r < chosen.counts.size(); ++r) {
    rerank.candidates.push_back(chosen.candidates[r]);
    rerank.candidates.back().resize(static_cast<size_t>(chosen.counts[r]));
  }
  expect_bits("candidates", rerank.candidates, got.candidates);
  judge_hits(world.codec(), world.zone(), rerank,
             expected_hits(bench, world.codec(), world.zone(), rerank), got.hits);
  return got;
}

// The rows at the positions that retrieve gave.
Fetched check_fetch(const Bench& bench, const World& world, const Step& step,
                    const Retrieved& retrieved) {
  FetchInput input;
  input.keys = lay_out(world.keys(), world.setup().layout);
  if (world.setup().v_source == PKV_V_SOURCE_OWN) {
    input.values = lay_out(*world.values(), world.setup().layout);
  }
  input.batch = world.batch();
  input.heads = world.setup().h;
  input.k = static_cast<int32_t>(retrieved.hits.positions.front().size());
  for (const auto& row : retrieved.hits.positions) {
    input.positions.insert(input.positions.end(), row.begin(), row.end());
  }
  const Fetched got =
      bench.result([&](const Place&, uint8_t fill) { return step.fetch(fill, input); });
  const Fetched expected = bench.expected(
      [&](const Place& place, uint8_t fill) { return run_fetch(place, fill, input); });
  expect_same(expected, got, "fetch");
  return got;
}

void check_step(const Bench& bench, const Setup& setup, const Options& options,
                const std::string& name) {
  const World world(bench, setup, name);
  const float scale = rerank_input(world).scale;
  const Step step(bench.subject(), world, step_options(options), scale);
  const std::vector<Records> records = step.records();
  for (size_t r = 0; r < records.size(); ++r) {
    expect_bits(fmt::format("index row {}", r), world.zone().rows[r], records[r]);
  }
  const Retrieved retrieved = check_retrieve(bench, world, step, options, scale);

  Random random = bench.random(name + "/parts");
  AttendOptions dense;
  dense.tail = options.step.tail;
  dense.tail_samples = options.step.tail_samples;
  dense.parts = options.parts;
  dense.soft_cap = options.soft_cap;
  dense.has_sinks = options.has_sinks;
  AttendInput input = attend_input(bench, world, dense, random);
  input.k = options.step.k;
  if (input.k > 0) {
    const Fetched rows = check_fetch(bench, world, step, retrieved);
    PartInput part;
    part.keys = lay_out(rows.keys, setup.layout);
    if (setup.v_source == PKV_V_SOURCE_OWN) part.values = lay_out(rows.values, setup.layout);
    input.rows = part;
  }
  input.positions = retrieved.hits.positions;
  input.counts = retrieved.hits.counts;
  input.candidates = retrieved.candidates;
  input.candidates_stride = step.candidates_stride();
  input.estimates = retrieved.hits.estimates;
  input.rest_lse = retrieved.hits.rest_lse;
  input.sample_estimates = retrieved.hits.sample_estimates;
  const Attention got =
      bench.result([&](const Place&, uint8_t fill) { return step.attend(fill, input); });
  const Attention expected = bench.expected([&](const Place& place, uint8_t fill) {
    return run_attend(place, fill, world.codec(), world.zone(), input);
  });
  judge_attention(world.codec(), world.zone(), input, expected, got);
  // All in one call: the same hits, so the same attention.
  const Attention whole =
      bench.result([&](const Place&, uint8_t fill) { return step.run(fill, input); });
  judge_attention(world.codec(), world.zone(), input, expected, whole);
}

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
                     check_step(bench, setup, options, name);
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
