// What the tests of the cache share: comparisons of whole sequences, refusals, the shapes that
// properties run through. C API only.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "tests/model/judge.h"
#include "tests/model/world.h"

namespace pkv::cache_model {

// What a test runs on. A plug-in is one whatever its name (tests/model/world.h), so once.
inline std::vector<const char*> backends() {
  if (std::getenv("PKV_CACHE_PLUGIN") != nullptr) return {"plug-in"};
  return {"cpu", "cpu_ref"};
}

// PKV_CACHE_BRIEF=1, for kernels that run lane by lane: the same laws, over the first fit, a few
// refits and the end of a page, in a minute instead of half an hour.
inline bool is_brief() { return std::getenv("PKV_CACHE_BRIEF") != nullptr; }
template <class T>
T brief_or(T brief, T whole) {
  return is_brief() ? brief : whole;
}

inline std::vector<uint64_t> tokens_from(uint64_t first, int64_t count) {
  std::vector<uint64_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
inline std::vector<uint64_t> joined(std::vector<uint64_t> a, const std::vector<uint64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Status, and every part of the text.
inline void check_refused(pkv_status status, pkv_status code,
                          std::initializer_list<std::string_view> parts) {
  const std::string text = status == PKV_OK ? "" : pkv_last_error();
  INFO(std::string(pkv_status_name(status)), ": ", text);
  CHECK(status == code);
  for (const std::string_view part : parts) {
    INFO("looked for: ", std::string(part));
    CHECK(text.find(part) != std::string::npos);
  }
}

// Sums run over other pieces of the tokens: docs/numerics.md, 3, with |v| below 4, logits of 40
// products below 16 and up to 400 tokens: 2 (42 * 640 * .18 + 408) u * 4 < .0025; and outputs of 16
// bits are rounded twice.
inline void check_near(pkv_dtype dtype, const std::vector<float>& a, const std::vector<float>& b) {
  const float r = dtype == PKV_DTYPE_F32 ? 0 : dtype == PKV_DTYPE_F16 ? 0x1p-11F : 0x1p-8F;
  const float bound = .0025F + 2 * r * 4;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("number ", i, ": ", a[i], " and ", b[i]);
    const bool is_near = std::fabs(a[i] - b[i]) <= bound;
    CHECK(is_near);
    if (!is_near) return;
  }
}

// Two sequences hold the same and answer the same, bit for bit.
inline void check_same(World& a, int32_t sequence_a, World& b, int32_t sequence_b) {
  const std::vector<uint64_t> queries = tokens_from(900000, 2);
  for (int32_t layer = 0; layer < a.shape().layers; ++layer) {
    CAPTURE(layer);
    const int64_t tokens = a.length(layer, sequence_a);
    REQUIRE(tokens == b.length(layer, sequence_b));
    CHECK(a.content_of(layer, sequence_a) == b.content_of(layer, sequence_b));
    if (a.shape().is_sparse(layer)) {
      Found of_a, of_b;
      check(a.retrieve(layer, {{sequence_a, queries}}, of_a));
      check(b.retrieve(layer, {{sequence_b, queries}}, of_b));
      of_a.stamp = of_b.stamp = 0;
      CHECK(of_a == of_b);
    }
    if (!a.shape().attends() || tokens < 2 || a.shape().local < 1) continue;
    Attended out_a, out_b;
    check(a.attend(layer, {{sequence_a, queries}}, 0, out_a));
    check(b.attend(layer, {{sequence_b, queries}}, 0, out_b));
    CHECK(same_bits(out_a.output, out_b.output));
    CHECK(same_bits(out_a.lse, out_b.lse));
  }
}

// A sequence equals one that was given these tokens at once, in a cache of its own.
inline void check_equals_fresh(World& world, int32_t sequence,
                               const std::vector<uint64_t>& tokens) {
  World fresh(world.machine(), world.shape());
  const int32_t other = fresh.add();
  fresh.append_all(other, tokens);
  check_same(world, sequence, fresh, other);
}

// Shapes that differ in what a sequence keeps: records of each kind, layers of each kind.
inline std::vector<Shape> property_shapes() {
  Shape base;
  base.options = {{"k", "12"}};
  base.capacity = 1 << 20;
  std::vector<Shape> shapes;
  const auto add = [&shapes](const char* name, Shape shape) {
    shape.name = name;
    shapes.push_back(std::move(shape));
  };
  add("default", base);
  add("mean", base.with("tail", "mean"));
  add("sketch2", base.with("tail", "sketch2"));
  Shape paper = base;
  paper.profile = "paper";
  paper.dtype = PKV_DTYPE_F16;
  add("paper", paper);
  Shape uneven = base.with("codec", "scalar5").with("tail", "sketch4");
  uneven.head_dim = 24;
  uneven.value_dim = 16;
  uneven.sink = 5;
  uneven.local = 7;
  uneven.interval = 24;
  uneven.dtype = uneven.query_dtype = uneven.output_dtype = PKV_DTYPE_BF16;
  add("uneven", uneven);
  Shape layers = base;
  layers.layers = 3;
  layers.policies = {{PKV_CACHE_DENSE, 0}, {PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 33}};
  add("layers", layers);
  Shape latent = base;
  latent.v_source = PKV_V_SOURCE_K_PREFIX;
  latent.head_dim = 40;
  latent.value_dim = 32;
  latent.kv_heads = 1;
  add("latent", latent);
  return shapes;
}

}  // namespace pkv::cache_model
