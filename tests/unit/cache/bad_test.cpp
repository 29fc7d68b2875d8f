// Tokens that are not finite, with nonfinite = isolate: no KV head that has one attends to it,
// wherever it lies. docs/algorithm.md, 3.6.
#include <cmath>

#include "tests/unit/cache/naive.h"
#include "tests/unit/cache/path.h"

namespace pkv::test {
namespace {

constexpr double kTolerance = 2e-5;

// Every good key of the zone is selected, so that answers are full attention over good tokens.
Shape everything_selected(const char* backend) {
  Shape shape;
  shape.backend = backend;
  shape.options = {{"k", "2000"}, {"candidates", "1"}, {"nonfinite", "isolate"}};
  return shape;
}

void check_attention(const Answer& got, const Answer& wanted) {
  Answer result = got;
  result.positions = wanted.positions;  // full attention has none
  result.counts = wanted.counts;
  check_close(result, wanted, kTolerance);
}

// Bad tokens of every kind, in the sink, the zone and the tail, some next to each other.
std::vector<uint64_t> spoilt(int64_t count, uint64_t first = 0) {
  std::vector<uint64_t> ids = ids_from(first, count);
  for (const auto& [at, what] :
       std::initializer_list<std::pair<std::size_t, uint64_t>>{{0, kNanKey},
                                                               {7, kInfiniteValue},
                                                               {9, kHugeKey},
                                                               {40, kNanKey | kInfiniteValue},
                                                               {41, kNanKey},
                                                               {150, kInfiniteValue},
                                                               {205, kHugeKey}}) {
    if (at < ids.size()) ids[at] |= what;
  }
  return ids;
}

TEST_CASE("bad tokens: decoded one by one, they are never attended to") {
  for (const char* backend : {"cpu_ref", "cpu"}) {
    CAPTURE(backend);
    World world(everything_selected(backend));
    const Naive naive(world);
    const int32_t sequence = world.add();
    const std::vector<uint64_t> all = spoilt(260);
    std::vector<uint64_t> ids;
    for (const uint64_t id : all) {
      ids.push_back(id);
      CAPTURE(ids.size());
      const Answer got = world.decode({sequence}, {{id}});
      const bool is_near = ids.size() < 12 || (ids.size() > 38 && ids.size() < 44);
      if (is_near || ids.size() % 17 == 0) check_attention(got, naive.full(ids, 1));
    }
  }
}

TEST_CASE("bad tokens: exact, dense and window layers leave them out too") {
  Shape shape = everything_selected("cpu");
  shape.layers = 3;
  pkv_cache_layer policy{};
  REQUIRE_OK(pkv_cache_layer_init(&policy, sizeof policy));
  shape.policies.assign(3, policy);
  shape.policies[1].attention = PKV_CACHE_DENSE;
  shape.policies[2].attention = PKV_CACHE_WINDOW;
  shape.policies[2].window = 1000;  // all there is
  World world(shape);
  const Naive naive(world);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> ids = spoilt(220);
  const std::vector<uint64_t> last(ids.end() - 15, ids.end());
  const Answer wanted = naive.full(ids, 15);
  for (int32_t layer = 0; layer < 3; ++layer) {
    CAPTURE(layer);
    world.append(sequence, ids, true, layer);
    check_attention(world.attend(sequence, last, PKV_CACHE_EXACT, layer), wanted);
    check_attention(world.attend(sequence, last, 0, layer), wanted);
  }
}

TEST_CASE("bad tokens: a window that has passed them does not know them") {
  Shape shape = everything_selected("cpu");
  pkv_cache_layer policy{};
  REQUIRE_OK(pkv_cache_layer_init(&policy, sizeof policy));
  policy.attention = PKV_CACHE_WINDOW;
  policy.window = 14;
  shape.policies = {policy};
  World world(shape);
  const Naive naive(world);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> ids = spoilt(220);
  world.append(sequence, ids);
  // Of the tokens behind position 205 only. Of those before, one at a time less.
  const std::vector<uint64_t> seen(ids.end() - 14, ids.end());
  check_attention(world.attend(sequence, {ids.back()}), naive.full(seen, 1));
  world.truncate(sequence, 210);
  const std::vector<uint64_t> before(ids.begin() + 196, ids.begin() + 210);
  check_attention(world.attend(sequence, {ids[209]}), naive.full(before, 1));
}

TEST_CASE("bad tokens: caps and sink logits are as ever, beside sequences without any") {
  Shape shape = everything_selected("cpu");
  shape.soft_cap = 3;
  shape.sink_logits = {0.5F, -1, 2, -INFINITY};
  World world(shape);
  const Naive naive(world);
  const int32_t a = world.add(), b = world.add(), c = world.add();
  std::vector<uint64_t> of_a = spoilt(230), of_b = ids_from(5000, 230), of_c = spoilt(50, 900);
  world.append(a, of_a);
  world.append(b, of_b);
  world.append(c, of_c);
  const std::vector<uint64_t> more_a = {7000, 7001 | kNanKey, 7002}, more_b = {7100}, more_c = {};
  const Answer got = world.decode({c, a, b}, {more_c, more_a, more_b});
  of_a.insert(of_a.end(), more_a.begin(), more_a.end());
  of_b.insert(of_b.end(), more_b.begin(), more_b.end());
  Answer wanted = naive.full(of_a, 3);
  join(wanted, naive.full(of_b, 1));
  check_attention(got, wanted);
}

TEST_CASE("bad tokens: truncated, forked and loaded, what is left of them is left out") {
  Shape shape = everything_selected("cpu");
  World world(shape);
  const Naive naive(world);
  const int32_t sequence = world.add();
  std::vector<uint64_t> ids = spoilt(260);
  world.append(sequence, ids);
  const int32_t child = world.fork(sequence, 230);
  world.truncate(sequence, 203);  // the last bad one goes
  ids.resize(203);
  for (const uint64_t id : {uint64_t{8000}, uint64_t{8001}}) {
    ids.push_back(id);
    check_attention(world.decode({sequence}, {{id}}), naive.full(ids, 1));
  }
  std::vector<uint64_t> of_child = spoilt(230);
  of_child.push_back(8100);
  check_attention(world.decode({child}, {{8100}}), naive.full(of_child, 1));
  const Path path;
  REQUIRE_OK(pkv_cache_save_sync(world.cache(), world.stream(), child, path.get(), 0));
  World other(shape);
  int32_t loaded = -1, count = 0;
  REQUIRE_OK(pkv_cache_load_sync(other.cache(), other.stream(), path.get(), 1, &loaded, &count));
  Shape refusing = shape;
  refusing.options.pop_back();
  const World third(refusing);
  CHECK_REFUSED(pkv_cache_load_sync(third.cache(), third.stream(), path.get(), 1, &loaded, &count),
                PKV_FAILED_PRECONDITION, "position 0, KV head 0");
  CHECK(third.stats().sequences == 0);
  of_child.push_back(8101);
  check_attention(other.decode({0}, {{8101}}), naive.full(of_child, 1));
}

TEST_CASE("bad tokens: with nothing good to attend to the output is 0 and lse -inf") {
  World world(everything_selected("cpu"));
  const int32_t sequence = world.add();
  const Answer got = world.decode({sequence}, {{kNanKey | 1}});
  const int32_t d = world.shape().d;
  for (int32_t head = 0; head < 2; ++head) {  // of KV head 0
    CHECK(got.lse[static_cast<std::size_t>(head)] == -INFINITY);
    for (int32_t j = 0; j < d; ++j) {
      CHECK(got.output[static_cast<std::size_t>(head * d + j)] == 0);
    }
  }
  CHECK(std::isfinite(got.lse[2]));
}

}  // namespace
}  // namespace pkv::test
