// Cases of tests/scenarios/scenarios.txt, area attention: empty, short and ragged sequences, parts
// that merge, magnitudes at the ends of f16, what lies behind a length.
#include <cmath>
#include <limits>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("merge: empty parts give nothing, and leave the bits of the only other one") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    const std::vector<int64_t> shape = {1, 2, 8};
    Tensor nothing(PKV_DTYPE_F32, shape), something(PKV_DTYPE_F32, shape);
    nothing.fill(0);
    for (int64_t i = 0; i < something.size(); ++i) {
      something.set(i, std::nextafter(0.1F * static_cast<float>(i), 3.0F));
    }
    const float none[2] = {-kInfinity, -kInfinity}, some[2] = {3.5F, -1000.25F};
    Tensor output(PKV_DTYPE_F32, shape);
    float lse[2] = {7, 7};
    const auto merge = [&](const Tensor& a, const float* a_lse, const Tensor& b,
                           const float* b_lse) {
      output.fill(7);
      const pkv_tensor parts[2] = {a.view(), b.view()};
      const float* const lses[2] = {a_lse, b_lse};
      const pkv_tensor out = output.view();
      check(pkv_merge(machine.stream.get(), 2, parts, lses, &out, lse));
      machine.stream.sync();
    };
    merge(nothing, none, nothing, none);
    CHECK(same_bits(output.numbers(), nothing.numbers()));
    CHECK(lse[0] == -kInfinity);
    CHECK(lse[1] == -kInfinity);
    merge(nothing, none, something, some);
    CHECK(same_bits(output.numbers(), something.numbers()));
    CHECK(lse[0] == some[0]);
    CHECK(lse[1] == some[1]);
    merge(something, some, nothing, none);
    CHECK(same_bits(output.numbers(), something.numbers()));
    CHECK(lse[0] == some[0]);
    CHECK(lse[1] == some[1]);
  }
}

TEST_CASE("merge: parts of a sequence in several caches give the whole one's attention") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    Shape shape;
    shape.options = {{"k", "8"}};
    World whole(machine, shape);
    Naive naive(shape);
    naive.add();
    const int32_t all = whole.add();
    std::vector<std::vector<float>> lses;
    std::vector<Tensor> outputs;
    const Parts query = {{all, {9000}}};
    for (const int64_t count : {40, 1, 200}) {
      const std::vector<uint64_t> tokens = tokens_from(static_cast<uint64_t>(1000 * count), count);
      whole.append_all(all, tokens);
      naive.append_all(all, tokens);
      World part(machine, shape);
      REQUIRE(part.add() == all);
      part.append_all(all, tokens);
      Attended attended;
      check(part.attend(0, query, PKV_CACHE_EXACT, attended));
      outputs.emplace_back(PKV_DTYPE_F32,
                           std::vector<int64_t>{1, shape.query_heads, shape.value_dim});
      outputs.back().set(0, attended.output);
      lses.push_back(attended.lse);
    }
    std::vector<pkv_tensor> views;
    std::vector<const float*> pointers;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      views.push_back(outputs[i].view());
      pointers.push_back(lses[i].data());
    }
    Attended merged;
    merged.lse.resize(static_cast<std::size_t>(shape.query_heads));
    const Tensor output(PKV_DTYPE_F32, {1, shape.query_heads, shape.value_dim});
    const pkv_tensor out = output.view();
    check(
        pkv_merge(machine.stream.get(), 3, views.data(), pointers.data(), &out, merged.lse.data()));
    machine.stream.sync();
    merged.output = output.numbers();
    CHECK_NOTHROW(judge_step(whole, naive, 0, query, PKV_CACHE_EXACT, merged));
  }
}

TEST_CASE("attention: over nothing the output is exactly 0 and lse exactly -inf") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    Shape shape;
    shape.options = {{"k", "0"}, {"tail", "drop"}};
    shape.head_dim = shape.value_dim = 64;
    shape.sink = shape.local = 0;
    shape.interval = shape.dense_below = 1;
    World world(machine, shape);
    const int32_t sequence = world.add();
    world.append_all(sequence, tokens_from(1, 10));
    REQUIRE(world.regions(0, sequence).zone == 10);
    Attended attended;
    check(world.attend(0, {{sequence, {5000}}}, 0, attended));
    for (const float number : attended.output) CHECK(number == 0.0F);
    for (const float lse : attended.lse) CHECK(lse == -kInfinity);
    for (const int32_t count : attended.found.counts) CHECK(count == 0);

    // A sequence without tokens has no query of its own, and is no harm in a batch.
    const int32_t empty = world.add();
    Found found;
    check(world.retrieve(0, {{empty, {5000}}, {sequence, {5001}}}, found));
    check_refused(world.attend(0, {{empty, {5000}}}, 0, attended), PKV_OUT_OF_RANGE, {"1", "0"});
    Attended both;
    check(world.attend(0, {{empty, {}}, {sequence, {5000}}}, 0, both));
    CHECK(both.lse.size() == static_cast<std::size_t>(shape.query_heads));
    check(world.attend(0, {}, 0, both));
  }
}

// Pages that held NaN values, and belong to nobody now, are where later tokens go.
TEST_CASE("attention: what lies behind a length takes no part") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    Shape shape;
    shape.options = {{"k", "8"}, {"nonfinite", "isolate"}};
    shape.dense_below = 1 << 20;  // NaN is attended like any other number where nothing is encoded
    World used(machine, shape), fresh(machine, shape);
    const int32_t dirty = used.add();
    std::vector<uint64_t> bad = tokens_from(1, 300);
    for (uint64_t& token : bad) token |= kNan;
    used.append_all(dirty, bad);
    used.remove(dirty);
    Parts parts;
    for (const int64_t tokens : {1, 3}) {
      parts.push_back({used.add(), tokens_from(static_cast<uint64_t>(1000 * tokens), tokens)});
      REQUIRE(fresh.add() == parts.back().sequence);
    }
    check(used.append(0, parts));
    check(fresh.append(0, parts));
    const Parts queries = {{parts[0].sequence, {5000}}, {parts[1].sequence, {5001, 5002}}};
    Attended a, b;
    check(used.attend(0, queries, 0, a));
    check(fresh.attend(0, queries, 0, b));
    for (const float number : a.output) CHECK(std::isfinite(number));
    CHECK(same_bits(a.output, b.output));
    CHECK(same_bits(a.lse, b.lse));
  }
}

TEST_CASE("attention: prompts around the ends of sink and local window are attended in full") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    Shape shape;
    shape.options = {{"k", "8"}};
    shape.sink = 64;
    shape.local = 128;
    shape.interval = 64;
    for (const int64_t tokens : {1, 63, 64, 65, 191, 192, 193, 255, 256}) {
      CAPTURE(tokens);
      World world(machine, shape);
      Naive naive(shape);
      const int32_t sequence = world.add();
      naive.add();
      world.append_all(sequence, tokens_from(1, tokens));
      naive.append_all(sequence, tokens_from(1, tokens));
      CHECK_NOTHROW(judge_regions(world, naive, sequence));
      CHECK_NOTHROW(judge_answers(world, naive, 0, sequence, {5000, 5001, 5002}));
    }
  }
}

TEST_CASE("attention: groups of seven heads, 32 sequences from one token to 3,000") {
  Machine machine("cpu");
  Shape shape;
  shape.options = {{"k", "20"}, {"fit", "keys"}};
  shape.kv_heads = 4;
  shape.query_heads = 28;
  shape.sequences = 32;
  shape.interval = 64;
  shape.dense_below = 512;
  World world(machine, shape);
  Naive naive(shape);
  Parts parts, queries;
  for (int32_t i = 0; i < 32; ++i) {
    const int64_t tokens = 1 + (2999 * i * i) / (31 * 31);
    parts.push_back({world.add(), tokens_from(static_cast<uint64_t>(10000 * i), tokens)});
    naive.append_all(naive.add(), parts.back().tokens);
    queries.push_back({i, {900000 + static_cast<uint64_t>(i)}});
  }
  check(world.append(0, parts, /*with_queries=*/true));
  Attended attended;
  check(world.attend(0, queries, 0, attended));
  CHECK_NOTHROW(judge_step(world, naive, 0, queries, 0, attended));
}

TEST_CASE("attention: queries of tiny and of large numbers in f16 are finite and exact") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    for (const char* scale : {"0.00001", "16"}) {  // as |q| of about .001 and 1,000 would do
      CAPTURE(scale);
      Shape shape;
      shape.options = {{"k", "300"}, {"scale", scale}};
      shape.dtype = shape.query_dtype = shape.output_dtype = PKV_DTYPE_F16;
      World world(machine, shape);
      Naive naive(shape);
      const int32_t sequence = world.add();
      naive.add();
      for (const int64_t tokens : {1, 2, 200}) {
        const std::vector<uint64_t> more =
            tokens_from(static_cast<uint64_t>(1000 * tokens), tokens);
        naive.append_all(sequence, more);
        Attended attended;
        const auto count = std::min<std::size_t>(more.size(), 17);
        world.append_all(sequence, {more.begin(), more.end() - static_cast<int64_t>(count)});
        const Parts last = {{sequence, {more.end() - static_cast<int64_t>(count), more.end()}}};
        check(world.decode_step(0, last, 0, attended));
        for (const float number : attended.output) CHECK(std::isfinite(number));
        for (const float lse : attended.lse) CHECK(std::isfinite(lse));
        CHECK_NOTHROW(judge_step(world, naive, 0, last, PKV_CACHE_EXACT, attended));
      }
    }
  }
}

TEST_CASE("attention: slopes by distance are refused with the reason") {
  Machine machine("cpu");
  const Shape shape;
  Desc desc(shape);
  const float slopes[4] = {1, 1, 1, 1};
  desc.c.alibi_slopes = slopes;
  pkv_cache* cache = nullptr;
  const Config config = config_of(shape);
  check_refused(pkv_cache_create(machine.device.get(), config.get(), &desc.c, &cache),
                PKV_UNIMPLEMENTED, {"alibi_slopes", "distance"});
  CHECK(cache == nullptr);
}

TEST_CASE("attention: soft cap, sink logits, dense and window layers are what plain loops give") {
  for (const char* backend : backends()) {
    CAPTURE(backend);
    Machine machine(backend);
    Shape shape;
    shape.options = {{"k", "12"}, {"tail", "drop"}, {"rank", "mean"}};
    shape.layers = 3;
    shape.policies = {{PKV_CACHE_DENSE, 0}, {PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 21}};
    for (const bool has_cap : {false, true}) {
      for (const bool has_sinks : {false, true}) {
        CAPTURE(has_cap);
        CAPTURE(has_sinks);
        shape.soft_cap = has_cap ? 2.0F : 0.0F;
        shape.sink_logits.clear();
        if (has_sinks) shape.sink_logits = {-2, 0.5F, -kInfinity, 4};
        World world(machine, shape);
        Naive naive(shape);
        const int32_t sequence = world.add();
        naive.add();
        for (const int64_t tokens : {1, 30, 170}) {
          const auto more = tokens_from(static_cast<uint64_t>(1000 * tokens), tokens);
          world.append_all(sequence, more);
          naive.append_all(sequence, more);
          for (int32_t layer = 0; layer < 3; ++layer) {
            CAPTURE(layer);
            CHECK_NOTHROW(judge_answers(world, naive, layer, sequence, {5000, 5001}));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pkv::cache_model
