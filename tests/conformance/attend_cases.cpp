// What attend must satisfy, with the reference's hits. docs/algorithm.md, section 8: bounded
// (docs/numerics.md, section 3).
#include <cmath>
#include <limits>

#include "fmt/core.h"
#include "tests/conformance/attend_judge.h"
#include "tests/conformance/attend_world.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/half.h"
#include "tests/conformance/random_cases.h"

namespace pkv::conformance {
namespace {

void check_attend(const Bench& bench, const World& world, const AttendOptions& options,
                  const std::string& name) {
  Random random = bench.random(name + "/parts");
  const AttendInput input = attend_input(bench, world, options, random);
  const auto run = [&](const Place& place, uint8_t fill) {
    return run_attend(place, fill, world.codec(), world.zone(), input);
  };
  judge_attention(world.codec(), world.zone(), input, bench.expected(run), bench.result(run));
}

void add(Cases& cases, const char* family, const Setup& setup, const AttendOptions& options) {
  const std::string shape = setup.text();
  const size_t slash = shape.rfind('/');
  const std::string name = fmt::format("attend/{}/{}{}{}", family, shape.substr(0, slash),
                                       options.text(), shape.substr(slash));
  cases.push_back({name, Verdict::kTolerance, [setup, options, name](const Bench& bench) {
                     check_attend(bench, World(bench, setup, name), options, name);
                   }});
}

using Parts = std::vector<int64_t>;

void add_dense(Cases& cases) {
  for (const int32_t d : kDims) {
    add(cases, "dense", {.d = d, .h = 2, .G = 3, .b = 3, .n = 5}, {.parts = {65}});
  }
  for (const int32_t dv : {8, 24, 128, 576}) {
    add(cases, "dense", {.d = 64, .dv = dv, .h = 2, .G = 3, .b = 3, .n = 5}, {.parts = {33}});
  }
  for (const int64_t t : kLengths) {
    add(cases, "lengths", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 5}, {.parts = {t}});
  }
  for (const Parts& parts : {Parts{}, Parts{0}, Parts{17, 9}, Parts{1, 0, 33, 5}}) {
    add(cases, "parts", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 5}, {.parts = parts});
    add(cases, "parts", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 5},
        {.parts = parts, .has_lengths = false});
  }
  for (const int32_t G : {1, 2, 7, 8, 128}) {
    add(cases, "groups", {.d = 64, .h = 2, .G = G, .b = 3, .n = 5}, {.parts = {40}});
  }
  for (const int32_t b : kBatches) {
    add(cases, "batches", {.d = 64, .h = 2, .G = 2, .b = b, .n = 12},
        {.tail = PKV_TAIL_MEAN, .k = 4, .parts = {19}});
  }
  add(cases, "dense", {.d = 128, .h = 4, .G = 7, .b = 9, .n = 5}, {.parts = {300}});
  add(cases, "dense", {.d = 64, .G = 2, .n = 5}, {.parts = {5000}});
  add(cases, "dense", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 5},
      {.parts = {33}, .wants_lse = false});
}

void add_tensors(Cases& cases) {
  for (const pkv_dtype dtype : kFloats) {
    for (const pkv_dtype output : kFloats) {
      add(cases, "dtypes",
          {.d = 128, .h = 2, .G = 2, .b = 3, .n = 20, .dtype = dtype, .query_dtype = dtype},
          {.k = 8, .parts = {33}, .output_dtype = output});
    }
  }
  add(cases, "dtypes", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 20, .dtype = PKV_DTYPE_BF16},
      {.k = 8, .parts = {33}, .output_dtype = PKV_DTYPE_F16});
  for (const Layout layout : kLayouts) {
    add(cases, "layouts", {.d = 72, .h = 2, .G = 3, .b = 3, .n = 20, .layout = layout},
        {.k = 8, .parts = {17}});
  }
  for (const Layout output : {Layout::kDense, Layout::kTokenMajor, Layout::kPadded, Layout::kOffset,
                              Layout::kWideTokens, Layout::kWideRows}) {
    add(cases, "layouts", {.d = 72, .h = 2, .G = 3, .b = 3, .n = 20},
        {.k = 8, .parts = {17}, .output_dtype = PKV_DTYPE_BF16, .output_layout = output});
  }
  for (const char* queries : {"zero", "large", "denormal", "one_nan", "one_inf", "sum_overflow"}) {
    add(cases, "queries", {.d = 64, .h = 2, .G = 4, .b = 3, .n = 20, .queries = queries},
        {.parts = {33}});
    add(cases, "queries", {.d = 64, .h = 2, .G = 4, .b = 3, .n = 40, .queries = queries},
        {.tail = PKV_TAIL_MEAN, .k = 8, .parts = {5}});
  }
  add(cases, "queries",
      {.d = 64, .h = 2, .G = 2, .b = 3, .n = 20, .query_dtype = PKV_DTYPE_F16, .queries = "large"},
      {.parts = {33}, .output_dtype = PKV_DTYPE_F16});
}

void add_rows(Cases& cases) {
  for (const int32_t k : {1, 8, 33, 100}) {  // 100: more slots than keys
    add(cases, "rows", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 40}, {.k = k, .parts = {}});
    add(cases, "rows", {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = 40},
        {.k = k, .parts = {9, 3}});
  }
  add(cases, "rows", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 0}, {.k = 8, .parts = {4}});
  add(cases, "prefix",
      {.d = 576, .dv = 512, .G = 8, .b = 3, .n = 40, .v_source = PKV_V_SOURCE_K_PREFIX},
      {.k = 8, .parts = {9}});
  add(cases, "prefix",
      {.d = 64,
       .dv = 24,
       .h = 2,
       .G = 2,
       .b = 3,
       .n = 40,
       .sketch_bits = 2,
       .v_source = PKV_V_SOURCE_K_PREFIX,
       .layout = Layout::kPadded},
      {.tail = PKV_TAIL_SKETCH, .k = 8, .parts = {9}});
}

// Samples on every stride; with sketches of every key, samples for the rest alone.
void add_sampled(Cases& cases) {
  constexpr int32_t kSampled = PKV_TAIL_SAMPLED;
  for (const int32_t stride : kStrides) {
    for (const int64_t n : kAroundStride) {
      for (const int32_t k : {0, 8}) {
        add(cases, "sampled",
            {.d = 64,
             .dv = 24,
             .h = 2,
             .G = 2,
             .b = 3,
             .n = n,
             .sketch_bits = 4,
             .sketch_stride = stride},
            {.tail = kSampled, .k = k, .parts = {5}});
      }
    }
    for (const int32_t dv : {8, 64, 192}) {
      add(cases, "sampled",
          {.d = 64,
           .dv = dv,
           .h = 2,
           .G = 3,
           .b = 3,
           .n = 257,
           .sketch_bits = 2,
           .sketch_stride = stride},
          {.tail = kSampled, .k = 4, .tail_samples = 11, .parts = {}});
    }
    for (const char* keys : {"one_nan", "all_bad"}) {
      add(cases, "sampled",
          {.d = 64,
           .h = 2,
           .G = 2,
           .b = 3,
           .n = 40,
           .sketch_bits = 4,
           .sketch_stride = stride,
           .keys = keys},
          {.tail = kSampled, .k = 8, .parts = {5}});
    }
    for (const char* queries : {"zero", "large", "one_nan"}) {
      add(cases, "sampled",
          {.d = 64,
           .h = 2,
           .G = 2,
           .b = 3,
           .n = 100,
           .sketch_bits = 4,
           .sketch_stride = stride,
           .queries = queries},
          {.tail = kSampled, .k = 8, .parts = {5}});
    }
    // Every key fetched: nothing is left to sample.
    add(cases, "sampled",
        {.d = 64,
         .dv = 24,
         .h = 2,
         .G = 2,
         .b = 3,
         .n = 33,
         .sketch_bits = 4,
         .sketch_stride = stride},
        {.tail = kSampled, .k = 40, .ppm = 1000000, .parts = {5}});
    // Every key a candidate, few fetched: samples and mass are candidates'.
    add(cases, "sampled",
        {.d = 64,
         .dv = 24,
         .h = 2,
         .G = 2,
         .b = 3,
         .n = 65,
         .sketch_bits = 4,
         .sketch_stride = stride},
        {.tail = kSampled, .k = 3, .ppm = 1000000, .parts = {5}});
  }
  add(cases, "sampled", {.d = 128, .G = 4, .n = 8208, .sketch_bits = 4, .sketch_stride = 16},
      {.tail = kSampled, .k = 32, .ppm = 50000, .parts = {64}});
  add(cases, "sampled",
      {.d = 64,
       .dv = 24,
       .h = 2,
       .G = 2,
       .b = 3,
       .n = 100,
       .sketch_bits = 4,
       .sketch_stride = 16,
       .v_source = PKV_V_SOURCE_K_PREFIX,
       .layout = Layout::kPadded},
      {.tail = kSampled, .k = 8, .parts = {9}});
  // One sample fewer than keys, as many, one more: l is 1 from there on.
  for (const int32_t samples : {1, 7, 99, 100, 101}) {
    for (const int32_t bits : {2, 4}) {
      add(cases, "sketch",
          {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = 100, .sketch_bits = bits},
          {.tail = PKV_TAIL_SKETCH, .k = 8, .tail_samples = samples, .parts = {5}});
    }
  }
  for (const char* queries : {"zero", "large"}) {
    add(cases, "sketch",
        {.d = 64, .h = 2, .G = 2, .b = 3, .n = 300, .sketch_bits = 4, .queries = queries},
        {.tail = PKV_TAIL_SKETCH, .k = 4, .ppm = 50000, .tail_samples = 64, .parts = {}});
  }
}

void add_tails(Cases& cases) {
  for (const int64_t n : {0, 1, 33, 257}) {
    for (const int32_t k : {0, 8, 100}) {
      add(cases, "mean", {.d = 64, .h = 2, .G = 2, .b = 3, .n = n},
          {.tail = PKV_TAIL_MEAN, .k = k, .parts = {5}});
    }
    add(cases, "mean", {.d = 64, .h = 2, .G = 2, .b = 3, .n = n},
        {.tail = PKV_TAIL_MEAN, .k = 0, .parts = {}});
    for (const int32_t bits : {2, 4}) {
      for (const int32_t k : {0, 8}) {
        add(cases, "sketch", {.d = 64, .h = 2, .G = 2, .b = 3, .n = n, .sketch_bits = bits},
            {.tail = PKV_TAIL_SKETCH, .k = k, .parts = {5}});
      }
    }
  }
  add_sampled(cases);
  for (const char* keys : {"one_nan", "all_bad"}) {
    add(cases, "mean", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 40, .keys = keys},
        {.tail = PKV_TAIL_MEAN, .k = 8, .parts = {5}});
    add(cases, "sketch", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 40, .sketch_bits = 2, .keys = keys},
        {.tail = PKV_TAIL_SKETCH, .k = 8, .parts = {5}});
  }
  for (const int32_t dv : {8, 24, 128, 192, 576}) {
    for (const int32_t bits : {2, 4}) {
      add(cases, "sketch",
          {.d = 64, .dv = dv, .h = 2, .G = 3, .b = 3, .n = 40, .sketch_bits = bits},
          {.tail = PKV_TAIL_SKETCH, .k = 4, .parts = {}});
    }
  }
  // No key is left for the rest; a tail that outweighs everything; values that are all zero.
  add(cases, "mean", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 40},
      {.tail = PKV_TAIL_MEAN, .k = 8, .ppm = 1000000, .parts = {5}});
  add(cases, "sketch", {.d = 64, .h = 2, .G = 2, .b = 3, .n = 40, .sketch_bits = 4},
      {.tail = PKV_TAIL_SKETCH, .k = 40, .ppm = 1000000, .parts = {5}});
  add(cases, "sketch",
      {.d = 64, .h = 2, .G = 2, .b = 3, .n = 200, .sketch_bits = 2, .queries = "large"},
      {.tail = PKV_TAIL_SKETCH, .k = 1, .parts = {1}});
  add(cases, "sketch",
      {.d = 64,
       .h = 2,
       .G = 2,
       .b = 3,
       .n = 40,
       .sketch_bits = 2,
       .is_plain = true,
       .values = "zero"},
      {.tail = PKV_TAIL_SKETCH, .k = 0, .parts = {}});
}

// 8.1, with every tail.
void add_caps_and_sinks(Cases& cases) {
  struct Tail {
    const char* name;
    int32_t tail;
    int32_t bits;
    int32_t stride;
  };
  constexpr Tail kTails[] = {{"drop", PKV_TAIL_DROP, 0, 1},
                             {"mean", PKV_TAIL_MEAN, 0, 1},
                             {"sampled", PKV_TAIL_SAMPLED, 4, 16},
                             {"sketch2", PKV_TAIL_SKETCH, 2, 1},
                             {"sketch4", PKV_TAIL_SKETCH, 4, 1}};
  for (const auto& [name, tail, bits, stride] : kTails) {
    const std::string caps = fmt::format("caps_{}", name);
    const std::string sinks = fmt::format("sinks_{}", name);
    const Setup usual = {.d = 64,
                         .dv = 24,
                         .h = 2,
                         .G = 3,
                         .b = 3,
                         .n = 100,
                         .sketch_bits = bits,
                         .sketch_stride = stride};
    for (const char* queries : {"normal", "large", "one_nan"}) {
      Setup setup = usual;
      setup.queries = queries;
      for (const float cap : {0.0F, 0.5F, 5.0F, 50.0F}) {
        AttendOptions options = {.tail = tail, .k = 8, .parts = {9}, .soft_cap = cap};
        if (cap != 0.0F) add(cases, caps.c_str(), setup, options);
        options.has_sinks = true;
        add(cases, sinks.c_str(), setup, options);
      }
    }
    // More samples than fit, and nothing fetched.
    add(cases, caps.c_str(), usual,
        {.tail = tail, .tail_samples = 5, .parts = {}, .soft_cap = 5.0F, .has_sinks = true});
  }
  // Nothing but the sink.
  add(cases, "sinks", {.d = 64, .h = 2, .G = 3, .b = 3, .n = 5}, {.parts = {}, .has_sinks = true});
  add(cases, "sinks", {.d = 64, .h = 2, .G = 3, .b = 3, .n = 0},
      {.tail = PKV_TAIL_MEAN, .parts = {5}, .has_sinks = true});
  for (const pkv_dtype output : kFloats) {
    add(cases, "sinks", {.d = 64, .h = 2, .G = 8, .b = 3, .n = 5, .dtype = PKV_DTYPE_BF16},
        {.parts = {300}, .output_dtype = output, .soft_cap = 30.0F, .has_sinks = true});
  }
}

// Parts and records in pages, several sets, several query tokens of a sequence, and all at once.
void add_shapes(Cases& cases) {
  Setup large = {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = 65, .sketch_bits = 4};
  large.room = kLargeRoom;
  add(cases, "sizes", large, {.tail = PKV_TAIL_SKETCH, .k = 8, .parts = {5}});
  large.sketch_stride = 16;
  add(cases, "sizes", large, {.tail = PKV_TAIL_SAMPLED, .k = 8, .parts = {5}});
  for (const int64_t page : {1, 7, 16, 64}) {
    for (const int64_t t : {1, 16, 17, 65}) {
      add(cases, "pages", {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 3, .n = 5},
          {.parts = {t}, .page_tokens = page});
    }
    add(cases, "pages", {.d = 64, .h = 2, .G = 2, .b = 5, .n = 40, .query_tokens = 3},
        {.k = 8, .parts = {33, 0, 5}, .has_lengths = false, .page_tokens = page});
    add(cases, "pages",
        {.d = 96, .dv = 64, .G = 4, .b = 3, .n = 40, .v_source = PKV_V_SOURCE_K_PREFIX},
        {.parts = {33}, .page_tokens = page});
    for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
      add(cases, "pages", {.d = 128, .h = 4, .G = 2, .b = 3, .n = 40, .dtype = dtype},
          {.k = 8, .parts = {90}, .page_tokens = page});
    }
  }
  for (const int32_t stride : {1, 16, 64}) {
    const int32_t tail = stride == 1 ? PKV_TAIL_SKETCH : PKV_TAIL_SAMPLED;
    Setup setup = {.d = 64, .dv = 24, .h = 2, .G = 2, .b = 6, .sketch_bits = 4};
    setup.sketch_stride = stride;
    for (const int64_t n : {63, 64, 65, 200}) {
      setup.n = n;
      setup.page = 64;
      setup.sets = 1;
      setup.query_tokens = 1;
      add(cases, "store_pages", setup, {.tail = tail, .k = 8, .parts = {5}});
      setup.sets = 3;
      add(cases, "sets", setup, {.tail = tail, .k = 8, .parts = {5}});
      setup.query_tokens = 2;
      add(cases, "tokens", setup,
          {.tail = tail,
           .k = 8,
           .parts = {5},
           .page_tokens = 16,
           .soft_cap = 20.0F,
           .has_sinks = true});
      setup.page = 0;
      add(cases, "sets", setup, {.tail = tail, .k = 8, .parts = {5}});
    }
  }
}

}  // namespace

void add_random_attend(Cases& cases, Random& random) {
  AttendOptions options;
  options.tail = one_of(random, {PKV_TAIL_DROP, PKV_TAIL_MEAN, PKV_TAIL_SAMPLED, PKV_TAIL_SKETCH});
  const RandomLimits limits = {
      .has_extremes = false, .needs_values = true, .needs_sketch = reads_samples(options.tail)};
  Setup setup = random_setup(random, limits);
  if (options.tail == PKV_TAIL_SKETCH) setup.sketch_stride = 1;
  options.k = random_k(random, setup.n);
  options.ppm = random_ppm(random);
  options.tail_samples = one_of(random, {512, 512, 1, 20, 100});
  for (int64_t part = random.below(4); part > 0; --part) options.parts.push_back(random.below(150));
  options.has_lengths = chance(random, 2);
  options.output_dtype = kFloats[random.below(3)];
  options.wants_lse = !chance(random, 4);
  if (chance(random, 4)) options.page_tokens = 1 + random.below(40);
  if (chance(random, 4)) options.soft_cap = one_of(random, {0.5F, 20.0F, 50.0F});
  options.has_sinks = chance(random, 4);
  add(cases, "any", setup, options);
}

void add_attend_cases(Cases& cases) {
  add_caps_and_sinks(cases);
  add_shapes(cases);
  add_dense(cases);
  add_tensors(cases);
  add_rows(cases);
  add_tails(cases);
}

}  // namespace pkv::conformance
