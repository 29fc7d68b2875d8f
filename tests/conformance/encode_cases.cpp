// What encode must satisfy. docs/algorithm.md, section 3: exact, given the stored parameters.
#include "fmt/core.h"
#include "tests/conformance/bench.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/encode_stage.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/random_cases.h"

namespace pkv::conformance {
namespace {

std::string name_of(const std::string& family, const Setup& setup) {
  std::string name = "encode/" + family;
  if (setup.codec != PKV_CODEC_SCALAR4 && family != codec_name(setup.codec)) {
    name += std::string("_") + codec_name(setup.codec);
  }
  if (setup.vote == PKV_VOTE_TIER) name += "_tier";
  return name + "/" + setup.text();
}

// All keys in one call, into stores whose other rows stay as they are.
void check_encode(const Bench& bench, const Setup& setup, const std::string& name) {
  const World world(bench, setup, name);
  const EncodeInput input = encode_input(world);
  const auto run = [&](const Place& place, uint8_t fill) {
    return run_encode(place, fill, world.codec(), input);
  };
  expect_same(bench.expected(run), bench.result(run), "encode", Nans::kAnyEqual);
}

// The same keys in three calls, each behind what the reference made of the ones before: records,
// occupancy, sums and counts are added to, and nothing in front is touched (3.7).
void check_pieces(const Bench& bench, const Setup& setup, const std::string& name) {
  const World world(bench, setup, name);
  EncodeInput input = encode_input(world);
  const Dense keys = take(world.keys(), world.batch().sequences);
  std::optional<Dense> values;
  if (input.values) values = take(*world.values(), world.batch().sequences);
  const int64_t cuts[] = {0, setup.n / 3, setup.n - 1, setup.n};
  for (int piece = 0; piece < 3; ++piece) {
    const auto slice = [&](const Dense& all) {
      return lay_out(slice_tokens(all, cuts[piece], cuts[piece + 1]), setup.layout);
    };
    input.keys = slice(keys);
    if (values) input.values = slice(*values);
    for (size_t i = 0; i < input.counts.size(); ++i) {
      const int64_t length = world.batch().lengths[i];
      input.starts[i] = std::min(cuts[piece], length);
      input.counts[i] = std::min(cuts[piece + 1], length) - input.starts[i];
    }
    const auto run = [&](const Place& place, uint8_t fill) {
      return run_encode(place, fill, world.codec(), input);
    };
    const Encoded expected = bench.expected(run);
    expect_same(expected, bench.result(run), fmt::format("piece {}", piece), Nans::kAnyEqual);
    input.before = expected.zone;
  }
  expect_bits("pieces against one call", world.zone(), input.before);
}

// Of a rotated key one subspace is all zero, so it holds exact zeros of both signs.
void check_zero_block(const Bench& bench, const Setup& setup, const std::string& name) {
  const World world(bench, setup, name);
  EncodeInput input = encode_input(world);
  Random random = bench.random(name + "/keys");
  const int32_t d = setup.d;
  std::vector<float> keys;
  for (int64_t t = 0; t < setup.n * setup.b * setup.h; ++t) {
    std::vector<float> y(static_cast<size_t>(d));
    for (int32_t j = 0; j < d; ++j) {
      y[static_cast<size_t>(j)] =
          j / 8 == t % (d / 8) ? 0.0F : static_cast<float>(random.below(9) - 4);
    }
    // k = sigma_1 * FWHT(y): small integers, so the rotation brings back d * y exactly.
    for (int32_t H = 1; H < d; H *= 2) {
      for (int32_t i = 0; i < d; ++i) {
        if ((i & H) != 0) continue;
        float& a = y[static_cast<size_t>(i)];
        float& b = y[static_cast<size_t>(i + H)];
        const float sum = a + b;
        b = a - b;
        a = sum;
      }
    }
    for (int32_t j = 0; j < d; ++j) {
      keys.push_back(world.codec().signs_1[static_cast<size_t>(j)] * y[static_cast<size_t>(j)]);
    }
  }
  input.keys = lay_out(make_dense(PKV_DTYPE_F32, input.keys.shape, keys), setup.layout);
  const auto run = [&](const Place& place, uint8_t fill) {
    return run_encode(place, fill, world.codec(), input);
  };
  expect_same(bench.expected(run), bench.result(run), "encode", Nans::kAnyEqual);
}

using Check = void (*)(const Bench&, const Setup&, const std::string&);

void add(Cases& cases, const char* family, const Setup& setup, Check check = check_encode) {
  const std::string name = name_of(family, setup);
  cases.push_back({name, Verdict::kExact,
                   [setup, name, check](const Bench& bench) { check(bench, setup, name); }});
}

void add_widths(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    for (const int32_t d : kDims) {
      add(cases, codec_name(codec), {.d = d, .codec = codec});
    }
    for (const int32_t d : {8, 64, 128, 512}) {
      add(cases, codec_name(codec), {.d = d, .b = 3, .codec = codec, .rounds = 2});
    }
    for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
      add(cases, codec_name(codec), {.h = 2, .b = 3, .codec = codec, .dtype = dtype});
    }
  }
  for (const int32_t d : kDims) {
    add(cases, "polar4",
        {.d = d, .h = 2, .b = 3, .n = 65, .codec = PKV_CODEC_POLAR4, .vote = PKV_VOTE_TIER});
  }
  add(cases, "scalar4", {.h = 2, .b = 3, .vote = PKV_VOTE_TIER, .keys = "one_nan"});
  add(cases, "scalar5", {.b = 3, .codec = PKV_CODEC_SCALAR5, .vote = PKV_VOTE_TIER});
}

void add_lengths(Cases& cases) {
  for (const int64_t n : kLengths) add(cases, "lengths", {.h = 2, .b = 3, .n = n});
  for (const int32_t b : kBatches) {
    add(cases, "batches", {.d = 64, .h = 2, .b = b, .n = 17});
    add(cases, "batches",
        {.d = 24, .b = b, .n = 17, .codec = PKV_CODEC_POLAR4, .vote = PKV_VOTE_TIER});
  }
  for (const int32_t h : {3, 16}) add(cases, "heads", {.d = 64, .h = h, .b = 3, .n = 9});
}

void add_layouts(Cases& cases) {
  add(cases, "sizes", {.d = 64, .h = 2, .b = 3, .n = 70, .room = kLargeRoom});
  add(cases, "sizes",
      {.d = 64,
       .h = 2,
       .b = 3,
       .n = 70,
       .vote = PKV_VOTE_TIER,
       .sketch_bits = 4,
       .room = kLargeRoom});
  for (const Layout layout : kLayouts) {
    add(cases, "layouts", {.d = 64, .h = 2, .b = 3, .n = 9, .layout = layout});
    add(cases, "layouts",
        {.d = 72,
         .h = 2,
         .b = 3,
         .n = 9,
         .sketch_bits = 2,
         .dtype = PKV_DTYPE_BF16,
         .layout = layout});
  }
}

void add_kinds(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    for (const char* keys : {"channels", "equal", "integers", "mixed", "denormal", "huge",
                             "overflow", "one_nan", "one_inf", "all_bad"}) {
      add(cases, codec_name(codec),
          {.d = 64, .h = 2, .b = 3, .n = 21, .codec = codec, .keys = keys});
    }
    for (const char* keys : {"zero", "minus_zero", "mixed", "integers"}) {
      add(cases, codec_name(codec),
          {.d = 128, .b = 3, .n = 10, .codec = codec, .is_plain = true, .keys = keys});
    }
    add(cases, "zero_block",
        {.d = codec == PKV_CODEC_SCALAR4 ? 128 : 64, .n = 33, .codec = codec, .is_plain = true},
        check_zero_block);
  }
  add(cases, "scalar4", {.d = 96, .b = 3, .dtype = PKV_DTYPE_F16, .keys = "denormal"});
  add(cases, "scalar4", {.d = 80, .b = 3, .dtype = PKV_DTYPE_F16, .keys = "huge"});
  add(cases, "scalar4", {.d = 80, .b = 3, .dtype = PKV_DTYPE_BF16, .keys = "overflow"});
}

void add_values(Cases& cases) {
  for (const int32_t bits : {2, 4}) {
    for (const int32_t dv : {8, 24, 64, 128, 192, 576}) {
      add(cases, "sketch", {.d = 64, .dv = dv, .h = 2, .b = 3, .n = 17, .sketch_bits = bits});
    }
    for (const char* values : {"zero", "huge", "one_nan", "one_inf", "overflow"}) {
      add(cases, "sketch",
          {.d = 64,
           .dv = 64,
           .b = 3,
           .n = 17,
           .sketch_bits = bits,
           .value_norm = 1,
           .values = values});
    }
    add(cases, "sketch",
        {.d = 64,
         .dv = 64,
         .b = 3,
         .n = 17,
         .sketch_bits = bits,
         .is_plain = true,
         .values = "zero"});
  }
  for (const int32_t stride : kStrides) {
    for (const int64_t n : kAroundStride) {
      add(cases, "stride",
          {.d = 64, .dv = 24, .h = 2, .b = 3, .n = n, .sketch_bits = 4, .sketch_stride = stride});
    }
    // What is bad of a value alone is bad everywhere, what is bad of a sketch only where one is.
    for (const char* values : {"one_nan", "large_square", "overflow", "zero"}) {
      add(cases, "stride",
          {.d = 64,
           .dv = 64,
           .b = 3,
           .n = 35,
           .sketch_bits = stride == 3 ? 2 : 4,
           .sketch_stride = stride,
           .value_norm = 1,
           .values = values});
    }
  }
  add(cases, "stride", {.d = 64, .dv = 128, .n = 70, .sketch_bits = 4, .sketch_stride = 65536});
  add(cases, "values", {.d = 64, .dv = 24, .h = 2, .b = 3, .value_norm = 1, .values = "zero"});
  add(cases, "values", {.d = 64, .b = 3, .values = "one_nan"});
  add(cases, "values", {.d = 64, .b = 3, .values = "overflow"});
  add(cases, "values", {.d = 64, .b = 3, .keys = "one_nan", .values = "one_inf"});
  add(cases, "values", {.d = 64, .b = 3, .has_values = false});
  add(cases, "values", {.d = 64, .b = 3, .v_source = PKV_V_SOURCE_NONE});
  add(cases, "values",
      {.d = 576, .dv = 512, .b = 3, .n = 9, .sketch_bits = 2, .v_source = PKV_V_SOURCE_K_PREFIX});
}

void add_pieces(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    add(cases, "pieces", {.d = 64, .h = 2, .b = 3, .n = 40, .codec = codec, .keys = "one_nan"},
        check_pieces);
  }
  add(cases, "pieces",
      {.d = 80,
       .h = 2,
       .b = 3,
       .n = 70,
       .codec = PKV_CODEC_POLAR4,
       .vote = PKV_VOTE_TIER,
       .keys = "one_inf"},
      check_pieces);
  add(cases, "pieces",
      {.d = 64,
       .dv = 24,
       .h = 2,
       .b = 3,
       .n = 33,
       .sketch_bits = 4,
       .value_norm = 1,
       .values = "one_nan"},
      check_pieces);
  // Pieces that begin before, at and behind positions with a sketch.
  for (const int32_t stride : {3, 5, 16}) {
    for (const int64_t n : {31, 48, 49, 100}) {
      add(cases, "pieces",
          {.d = 64, .dv = 24, .h = 2, .b = 3, .n = n, .sketch_bits = 4, .sketch_stride = stride},
          check_pieces);
    }
  }
  add(cases, "pieces", {.d = 64, .h = 2, .b = 9, .n = 12, .layout = Layout::kTokenMajor},
      check_pieces);
}

// In pages, with several sets, and both.
void add_shapes(Cases& cases) {
  for (const int32_t codec : kCodecs) {
    for (const int64_t n : {1, 63, 64, 65, 128, 200}) {
      add(cases, "pages", {.d = 64, .h = 2, .b = 3, .n = n, .codec = codec, .page = 64});
    }
    for (const int32_t stride : {1, 16, 64}) {
      const Setup setup = {.d = 64,
                           .dv = 24,
                           .h = 2,
                           .b = 3,
                           .n = 200,
                           .codec = codec,
                           .vote = PKV_VOTE_TIER,
                           .sketch_bits = 4,
                           .sketch_stride = stride,
                           .value_norm = 1,
                           .keys = "one_nan",
                           .page = 64,
                           .sets = 2};
      add(cases, "pages", setup);
      add(cases, "pages_pieces", setup, check_pieces);
    }
    add(cases, "sets", {.d = 72, .h = 2, .b = 5, .codec = codec, .sets = 3});
  }
  add(cases, "sets", {.d = 128, .dv = 72, .h = 2, .b = 5, .n = 40, .sketch_bits = 2, .sets = 5});
  add(cases, "pages", {.d = 24, .b = 3, .n = 700, .page = 256});
}

}  // namespace

void add_random_encode(Cases& cases, Random& random) {
  Setup setup = random_setup(random, {});
  if (chance(random, 3) && setup.n > 2) {
    setup.page = 0;
    setup.query_tokens = 1;
    return add(cases, "pieces", setup, check_pieces);
  }
  add(cases, codec_name(setup.codec), setup);
}

void add_encode_cases(Cases& cases) {
  add_widths(cases);
  add_lengths(cases);
  add_layouts(cases);
  add_kinds(cases);
  add_values(cases);
  add_pieces(cases);
  add_shapes(cases);
}

}  // namespace pkv::conformance
