// Which token is in which region. docs/algorithm.md, section 9.
#include "tests/unit/cache/naive.h"

namespace pkv::test {
namespace {

void check_regions(const World& world, int32_t sequence, int64_t tokens) {
  CAPTURE(tokens);
  const NaiveRegions wanted = simulate(world.shape(), tokens);
  const pkv_cache_regions got = world.regions(sequence);
  CHECK(got.tokens == tokens);
  CHECK(got.sink == wanted.sink);
  CHECK(got.zone == wanted.zone);
  CHECK(got.tail == wanted.tail);
  CHECK(got.fit_length == wanted.fit);
  CHECK(got.next_fit == wanted.next_fit);
  CHECK(got.fits == wanted.fits);
  CHECK(got.is_encoded == (wanted.fit > 0 ? 1 : 0));
}

TEST_CASE("regions: token by token as the schedule says") {
  for (const int64_t interval : {1, 7, 32}) {
    for (const int64_t sink : {0, 8}) {
      Shape shape;
      shape.interval = interval;
      shape.sink = sink;
      shape.local = interval == 7 ? 0 : 16;
      CAPTURE(interval);
      CAPTURE(sink);
      World world(shape);
      const int32_t sequence = world.add();
      for (int64_t t = 0; t < 330; ++t) {
        check_regions(world, sequence, t);
        world.append(sequence, ids_from(static_cast<uint64_t>(t), 1));
      }
    }
  }
}

TEST_CASE("regions: long zones are fitted each eighth, shorter ones each sixteenth") {
  Shape shape;
  shape.d = 8;
  shape.kv_heads = shape.query_heads = 1;
  shape.interval = 64;
  shape.capacity = 40000;
  shape.options = {{"k", "4"}};
  World world(shape);
  const int32_t sequence = world.add();
  int64_t fits[2] = {0, 0};
  for (int64_t t = 0; t < 40000; t += 500) {
    const int64_t before = world.regions(sequence).fit_length;
    world.append(sequence, ids_from(static_cast<uint64_t>(t), 500), false);
    check_regions(world, sequence, t + 500);
    if (world.regions(sequence).fit_length != before) ++fits[before >= 16384 ? 1 : 0];
  }
  CHECK(fits[0] > 20);
  CHECK(fits[1] >= 6);  // 16,384 * 1.125^7 < 40,000
}

TEST_CASE("regions: without refits the first fit stands") {
  Shape shape;
  shape.refits = 0;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 600));
  check_regions(world, sequence, 600);
  CHECK(world.regions(sequence).next_fit == INT64_MAX);
}

TEST_CASE("regions: appended in pieces, every byte is as appended at once") {
  Shape shape;
  const std::vector<uint64_t> ids = ids_from(5, 700);
  World whole(shape);
  whole.append(whole.add(), ids);
  const std::vector<uint8_t> wanted = whole.state(0);
  for (const int64_t piece : {1, 37, 64, 300}) {
    CAPTURE(piece);
    World world(shape);
    const int32_t sequence = world.add();
    for (int64_t done = 0; done < 700; done += piece) {
      world.append(sequence,
                   {ids.begin() + done, ids.begin() + std::min<int64_t>(700, done + piece)});
    }
    CHECK(world.state(sequence) == wanted);
  }
}

TEST_CASE("regions: a deferred cache is the same once it is flushed") {
  Shape shape;
  World whole(shape);
  const std::vector<uint64_t> ids = ids_from(5, 700);
  whole.append(whole.add(), ids);
  shape.deferred = 1;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids);
  CHECK(world.regions(sequence).zone == 0);
  CHECK(world.regions(sequence).tail == 692);
  REQUIRE_OK(pkv_cache_flush(world.cache(), world.stream()));
  CHECK(world.state(sequence) == whole.state(0));
}

}  // namespace
}  // namespace pkv::test
