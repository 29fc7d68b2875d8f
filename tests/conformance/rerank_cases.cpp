// What rerank must satisfy, with the reference's candidates. docs/algorithm.md, section 6:
// estimates of scalar codecs are exact, the rest bounded (docs/numerics.md, section 3).
#include <algorithm>

#include "fmt/core.h"
#include "tests/conformance/attend_world.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/rerank_judge.h"

namespace pkv::conformance {
namespace {

// Fields that a table leaves out keep these values.
struct Options {
  int32_t rank = PKV_RANK_GROUP;
  int32_t k = 16;
  int32_t k_min = 0;
  int64_t ppm = 500000;  // of the keys are candidates
  int32_t tail_samples = 512;
  int32_t weigh_norms = 0;
  float scale = 0.0F;  // 0: 1/sqrt(d)
  float soft_cap = 0.0F;
  double share = 0.0;
  bool wants_estimates = true;
  bool wants_rest = true;
  bool wants_samples = true;

  std::string text() const {
    const Options usual;
    std::string text;
    if (k != usual.k) text += fmt::format("_k{}", k);
    if (ppm != usual.ppm) text += fmt::format("_ppm{}", ppm);
    if (tail_samples != usual.tail_samples) text += fmt::format("_t{}", tail_samples);
    if (scale != usual.scale) text += fmt::format("_scale{}", scale);
    if (soft_cap != usual.soft_cap) text += fmt::format("_cap{}", soft_cap);
    if (share != usual.share) text += fmt::format("_share{}_min{}", share, k_min);
    if (!wants_estimates) text += "_noestimates";
    if (!wants_rest) text += "_norest";
    if (!wants_samples) text += "_nosamples";
    return text;
  }
};

void check_rerank(const Bench& bench, const World& world, const Options& options) {
  RerankInput input = rerank_input(world);
  input.rank = options.rank;
  input.k = options.k;
  input.k_min = options.k_min;
  input.tail_samples = options.tail_samples;
  input.weigh_norms = options.weigh_norms;
  if (options.scale != 0.0F) input.scale = options.scale;
  input.soft_cap = options.soft_cap;
  input.share = options.share;
  input.wants_estimates = options.wants_estimates;
  input.wants_rest = options.wants_rest;
  input.wants_samples = options.wants_samples;
  choose_candidates(bench, world, options.ppm, options.k, input);
  judge_rerank(bench, world.codec(), world.zone(), input);
}

void add(Cases& cases, const Setup& setup, const Options& options = {}) {
  const char* rank = options.rank == PKV_RANK_MEAN ? "mean" : "group";
  const std::string shape = setup.text();
  const size_t slash = shape.rfind('/');
  const std::string name = fmt::format("rerank/{}_{}{}/{}{}{}", codec_name(setup.codec), rank,
                                       options.weigh_norms != 0 ? "_norms" : "",
                                       shape.substr(0, slash), options.text(), shape.substr(slash));
  const bool is_exact = setup.codec != PKV_CODEC_POLAR4 && options.rank == PKV_RANK_MEAN &&
                        options.weigh_norms == 0 && !options.wants_rest;
  cases.push_back({name, is_exact ? Verdict::kExact : Verdict::kTolerance,
                   [setup, options, name](const Bench& bench) {
                     check_rerank(bench, World(bench, setup, name), options);
                   }});
}

constexpr Options kMean = {.rank = PKV_RANK_MEAN, .wants_rest = false};

void add_widths(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    for (const int32_t d : kDims) add(cases, {.d = d, .G = 4, .n = 65, .codec = codec});
    for (const int32_t d : {24, 128, 576}) {
      add(cases, {.d = d, .h = 2, .G = 3, .b = 3, .n = 65, .codec = codec}, kMean);
    }
    add(cases, {.d = 64, .h = 2, .G = 3, .b = 3, .n = 65, .codec = codec, .rounds = 2});
    add(cases, {.d = 64, .h = 2, .G = 3, .b = 3, .n = 65, .codec = codec, .vote = PKV_VOTE_TIER});
  }
}

void add_counts(Cases& cases) {
  for (const int64_t n : kLengths) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = n});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = n}, kMean);
  }
  for (const int32_t k : {0, 1, 33, 34, 100}) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.k = k, .ppm = 0});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.rank = PKV_RANK_MEAN, .k = k, .ppm = 1000000});
  }
  for (const int32_t b : kBatches) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = b, .n = 19});
    add(cases, {.d = 24, .h = 2, .G = 2, .b = b, .n = 19, .codec = PKV_CODEC_POLAR4}, kMean);
  }
  add(cases, {.d = 64, .G = 2, .n = 3000}, {.k = 2048, .ppm = 1000000});
  add(cases, {.d = 24, .G = 2, .n = 9000}, {.k = 100, .ppm = 50000});
}

void add_groups(Cases& cases) {
  for (const int32_t G : {1, 2, 7, 8, 128}) {
    add(cases, {.d = 64, .h = 2, .G = G, .b = 3, .n = 37});
    add(cases, {.d = 64, .h = 2, .G = G, .b = 3, .n = 37}, kMean);
  }
  add(cases, {.d = 64, .h = 3, .G = 7, .b = 3, .codec = PKV_CODEC_POLAR4});
}

// 6.4 with a sketch: samples lie on its stride, fewer than asked for, as many, and more.
void add_samples(Cases& cases) {
  for (const int32_t stride : kStrides) {
    for (const int64_t n : kAroundStride) {
      add(cases,
          {.d = 64,
           .dv = 8,
           .h = 2,
           .G = 2,
           .b = 3,
           .n = n,
           .sketch_bits = 4,
           .sketch_stride = stride},
          {.tail_samples = 7});
    }
    for (const int32_t codec : kCodecs) {
      add(cases, {.d = 24,
                  .dv = 8,
                  .h = 2,
                  .G = 3,
                  .b = 3,
                  .n = 257,
                  .codec = codec,
                  .sketch_bits = 2,
                  .sketch_stride = stride,
                  .keys = "one_nan"});
    }
    for (const char* keys : {"all_bad", "one_inf"}) {
      add(cases, {.d = 64,
                  .dv = 8,
                  .G = 2,
                  .n = 33,
                  .sketch_bits = 4,
                  .sketch_stride = stride,
                  .keys = keys});
    }
    add(cases,
        {.d = 64,
         .dv = 8,
         .h = 2,
         .G = 2,
         .b = 3,
         .n = 65,
         .sketch_bits = 4,
         .sketch_stride = stride,
         .queries = "one_nan"},
        {.tail_samples = 5});
    // Every key a candidate: samples all the same, and no rest.
    add(cases, {.d = 64, .dv = 8, .G = 2, .n = 65, .sketch_bits = 4, .sketch_stride = stride},
        {.ppm = 1000000});
  }
  // More samples than keys would fill, as few as there are, and a row of 8,192 on the default's
  // stride.
  for (const int32_t samples : {1, 31, 32, 33, 4096}) {
    add(cases, {.d = 64, .dv = 8, .G = 2, .n = 512, .sketch_bits = 4, .sketch_stride = 16},
        {.tail_samples = samples});
  }
  for (const int64_t n : {8176, 8192, 8193, 8208}) {
    add(cases, {.d = 8, .dv = 8, .n = n, .sketch_bits = 4, .sketch_stride = 16}, {.ppm = 20000});
  }
}

// 6.3, 6.4, norms, and results that are not wanted.
void add_options(Cases& cases) {
  for (const double share : {0.1, 0.5, 0.9, 1.0}) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 100}, {.k = 40, .share = share});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 100, .queries = "large"},
        {.k = 40, .k_min = 4, .share = share});
  }
  for (const int32_t samples : {1, 7, 49, 50, 51, 64}) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 100, .keys = "one_nan"},
        {.tail_samples = samples});
  }
  add(cases, {.d = 24, .G = 2, .n = 5000, .codec = PKV_CODEC_POLAR4}, {.ppm = 20000});
  add_samples(cases);
  for (const int32_t codec : kCodecs) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .codec = codec, .value_norm = 1, .values = "zero"},
        {.weigh_norms = 1});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .codec = codec, .value_norm = 1, .values = "zero"},
        {.rank = PKV_RANK_MEAN, .weigh_norms = 1});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .codec = codec},
        {.wants_estimates = false, .wants_rest = false, .wants_samples = false});
  }
  add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.wants_estimates = false});
  add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.wants_samples = false});
  add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.wants_estimates = false, .wants_rest = false});
  add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .value_norm = 1});
  for (const float scale : {1.0F, 1e-3F, 1e6F}) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3}, {.scale = scale});
  }
}

void add_numbers(Cases& cases) {
  for (const Layout layout : kLayouts) {
    add(cases, {.d = 72, .h = 2, .G = 3, .b = 3, .layout = layout}, kMean);
  }
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    add(cases, {.h = 2, .G = 4, .b = 3, .dtype = dtype, .query_dtype = dtype});
    add(cases, {.h = 2, .G = 4, .b = 3, .dtype = dtype, .query_dtype = dtype}, kMean);
  }
  for (const char* queries : {"zero", "minus_zero", "denormal", "huge", "integers", "opposite",
                              "one_nan", "one_inf", "sum_overflow", "large"}) {
    for (const int32_t codec : {PKV_CODEC_SCALAR4, PKV_CODEC_POLAR4}) {
      add(cases, {.d = 64, .h = 2, .G = 4, .b = 3, .codec = codec, .queries = queries});
    }
    add(cases, {.d = 64, .h = 2, .G = 4, .b = 3, .queries = queries}, kMean);
  }
  // Equal scores; estimates beyond +-1e30.
  for (const char* keys :
       {"duplicates", "equal", "integers", "mixed", "one_nan", "all_bad", "huge", "aligned"}) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 97, .keys = keys});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 97, .keys = keys}, kMean);
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 97, .codec = PKV_CODEC_POLAR4, .keys = keys});
  }
  for (const int32_t codec : kCodecs) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .codec = codec, .keys = "huge", .queries = "huge"},
        kMean);
    add(cases, {.d = 512, .h = 2, .G = 2, .b = 3, .codec = codec, .keys = "aligned"}, kMean);
  }
}

// 8.1: caps below and above the logits, with everything that is made of logits.
void add_caps(Cases& cases) {
  for (const float cap : {0.5F, 5.0F, 30.0F, 1e6F}) {
    for (const char* queries : {"normal", "large"}) {
      add(cases, {.d = 64, .h = 2, .G = 3, .b = 3, .n = 100, .queries = queries},
          {.soft_cap = cap});
      add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 100, .queries = queries},
          {.k = 40, .k_min = 4, .soft_cap = cap, .share = 0.5});
    }
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .codec = PKV_CODEC_POLAR4}, {.soft_cap = cap});
    // The mean is of plain estimates.
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3},
        {.rank = PKV_RANK_MEAN, .soft_cap = cap, .wants_rest = false});
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .value_norm = 1},
        {.weigh_norms = 1, .soft_cap = cap});
  }
  add(cases, {.d = 64, .h = 2, .G = 4, .b = 3, .queries = "huge"}, {.soft_cap = 30.0F});
  add(cases, {.d = 64, .h = 2, .G = 4, .b = 3, .queries = "zero"}, {.soft_cap = 30.0F});
}

// In pages, with several sets, with several query tokens of a sequence, and all at once.
void add_shapes(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 3, .n = 65, .codec = codec, .room = kLargeRoom});
    for (const int64_t n : {64, 65, 200}) {
      add(cases, {.d = 64, .h = 2, .G = 2, .b = 4, .n = n, .codec = codec, .page = 64});
    }
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 4, .n = 70, .codec = codec, .sets = 3}, kMean);
    add(cases, {.d = 64, .h = 2, .G = 2, .b = 5, .n = 70, .codec = codec, .query_tokens = 3});
    for (const Options& options : {Options{}, kMean}) {
      add(cases,
          {.d = 72,
           .dv = 24,
           .h = 2,
           .G = 3,
           .b = 6,
           .n = 300,
           .codec = codec,
           .sketch_bits = 4,
           .sketch_stride = 16,
           .value_norm = 1,
           .page = 128,
           .sets = 2,
           .query_tokens = 2},
          options);
    }
  }
}

}  // namespace

void add_random_rerank(Cases& cases, Random& random) {
  const Setup setup = random_setup(random, {});
  Options options;
  options.rank = one_of(random, {PKV_RANK_GROUP, PKV_RANK_GROUP, PKV_RANK_MEAN});
  options.k = random_k(random, setup.n);
  options.ppm = random_ppm(random);
  options.tail_samples = one_of(random, {512, 512, 1, 33, 100});
  options.weigh_norms = setup.value_norm;
  if (chance(random, 4)) options.soft_cap = one_of(random, {0.5F, 20.0F, 50.0F});
  if (options.rank == PKV_RANK_GROUP && chance(random, 5)) {
    options.share = one_of(random, {0.3, 0.9, 1.0});
    options.k_min = std::min(one_of(random, {0, 1, 5}), options.k);
  }
  options.wants_rest = !chance(random, 4);
  options.wants_samples = options.wants_rest && chance(random, 2);
  options.wants_estimates = !chance(random, 3);
  add(cases, setup, options);
}

void add_rerank_cases(Cases& cases) {
  add_caps(cases);
  add_shapes(cases);
  add_widths(cases);
  add_counts(cases);
  add_groups(cases);
  add_options(cases);
  add_numbers(cases);
}

}  // namespace pkv::conformance
