// Taking tokens back and sharing them.
#include "tests/unit/cache/naive.h"

namespace pkv::test {
namespace {

TEST_CASE("truncate: as if the tokens had never been appended, at every border") {
  for (const char* vote : {"graded", "tier"}) {
    Shape shape;
    shape.options.push_back({"vote", vote});
    if (std::string(vote) == "tier") shape.options.push_back({"rank", "mean"});
    World world(shape);
    const int32_t sequence = world.add();
    for (const int64_t from : {700, 333}) {
      for (const int64_t to : {699, 650, 616, 504, 300, 152, 120, 119, 87, 24, 9, 8, 7, 0}) {
        if (to > from) continue;
        CAPTURE(from);
        CAPTURE(to);
        World fresh(shape);
        fresh.append(fresh.add(), ids_from(0, to));
        REQUIRE_OK(pkv_cache_reset(world.cache(), world.stream(), sequence));
        world.append(sequence, ids_from(0, from));
        world.truncate(sequence, to);
        CHECK(world.state(sequence) == fresh.state(0));
        CHECK(world.usage().samples == fresh.usage().samples);
        // And on from there, over the next refit.
        fresh.append(0, ids_from(5000, 200));
        world.append(sequence, ids_from(5000, 200));
        CHECK(world.state(sequence) == fresh.state(0));
      }
    }
  }
}

TEST_CASE("truncate: small steps back and on again over a flush") {
  Shape shape;
  World world(shape);
  World fresh(shape);
  const int32_t sequence = world.add();
  fresh.add();
  for (uint64_t t = 0; t < 300; ++t) {
    world.append(sequence, ids_from(t, 1));
    world.append(sequence, ids_from(90000 + t, 40));
    world.truncate(sequence, static_cast<int64_t>(t) + 1);
  }
  fresh.append(0, ids_from(0, 300));
  CHECK(world.state(sequence) == fresh.state(0));
}

TEST_CASE("fork: child and parent are as two caches that were built alone") {
  Shape shape;
  for (const int64_t prefix : {3, 8, 71, 72, 73, 135, 136, 137, 500}) {
    CAPTURE(prefix);
    World world(shape);
    const int32_t parent = world.add();
    const std::vector<uint64_t> ids = ids_from(0, 520);
    world.append(parent, ids);
    const int32_t child = world.fork(parent, prefix);
    world.append(child, ids_from(8000, 150));
    world.append(parent, ids_from(9000, 150));
    World alone(shape);
    alone.add();
    alone.append(0, {ids.begin(), ids.begin() + prefix});
    alone.append(0, ids_from(8000, 150));
    CHECK(world.state(child) == alone.state(0));
    World other(shape);
    other.add();
    other.append(0, ids);
    other.append(0, ids_from(9000, 150));
    CHECK(world.state(parent) == other.state(0));
  }
}

TEST_CASE("fork: pages are shared, and all of them come back") {
  Shape shape;
  World world(shape);
  const pkv_cache_usage empty = world.usage();
  const int32_t parent = world.add();
  world.append(parent, ids_from(0, 1000));
  const pkv_cache_usage one = world.usage();
  std::vector<int32_t> children;
  for (int i = 0; i < 3; ++i) children.push_back(world.fork(parent));
  const pkv_cache_usage shared = world.usage();
  CHECK(shared.row_pages == one.row_pages);
  CHECK(shared.record_pages == one.record_pages);
  CHECK(world.stats().shared_pages > 0);
  const std::vector<uint8_t> before = world.state(children[1]);
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), parent));
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), children[0]));
  world.append(children[2], ids_from(7000, 300));
  CHECK(world.state(children[1]) == before);
  CHECK(world.add() == parent);
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), parent));
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), children[1]));
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), children[2]));
  const pkv_cache_usage end = world.usage();
  CHECK(end.row_pages == empty.row_pages);
  CHECK(end.record_pages == empty.record_pages);
  CHECK(end.samples == empty.samples);
  CHECK(end.codecs == empty.codecs);
  CHECK(end.partly == 0);
  CHECK(world.stats().shared_pages == 0);
}

TEST_CASE("refit: on request the zone has a codec of its own, and truncation forgets it") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 640));
  const std::vector<uint8_t> before = world.state(sequence);
  const pkv_cache_regions regions = world.regions(sequence);
  const Tensor queries = tokens_of(ids_from(600, 40), Role::kQuery, 4, 32);
  const pkv_tensor view = queries.view();
  world.append(sequence, ids_from(640, 30));
  REQUIRE(world.regions(sequence).fit_length < world.regions(sequence).zone);
  REQUIRE_OK(pkv_cache_refit(world.cache(), world.stream(), 0, sequence, &view));
  const pkv_cache_regions refitted = world.regions(sequence);
  CHECK(refitted.fit_length == refitted.zone);
  CHECK(16 * refitted.next_fit >= 17 * refitted.zone);
  world.truncate(sequence, 640);
  CHECK(world.state(sequence) == before);
  CHECK(world.regions(sequence).fit_length == regions.fit_length);
}

TEST_CASE(
    "codec: a refit of a deferred cache comes behind what waits, and later fits see all queries") {
  Shape shape;
  World plain(shape);
  shape.deferred = 1;
  World deferred(shape);
  for (World* world : {&plain, &deferred}) {
    const int32_t sequence = world->add();
    world->append(sequence, ids_from(0, 260));
    REQUIRE_OK(pkv_cache_flush(world->cache(), world->stream()));
    world->append(sequence, ids_from(260, 900));
    REQUIRE_OK(pkv_cache_refit(world->cache(), world->stream(), 0, sequence, nullptr));
    world->append(sequence, ids_from(1160, 700));
    REQUIRE_OK(pkv_cache_flush(world->cache(), world->stream()));
  }
  CHECK(deferred.regions(0).fits == plain.regions(0).fits);
  CHECK(deferred.state(0) == plain.state(0));
}

TEST_CASE("codec: an imported one serves all sequences and is never refitted") {
  Shape shape;
  World teacher(shape);
  teacher.append(teacher.add(), ids_from(0, 500));
  pkv_codec* codec = nullptr;
  REQUIRE_OK(pkv_cache_codec(teacher.cache(), 0, 0, &codec));
  pkv_codec_data data{};
  REQUIRE_OK(pkv_codec_data_init(&data, sizeof data));
  REQUIRE_OK(pkv_codec_export(codec, &data));
  World world(shape);
  pkv_codec* own = nullptr;
  REQUIRE_OK(pkv_codec_import(world.device(), world.config(), &data, &own));
  REQUIRE_OK(pkv_cache_import_codec(world.cache(), 0, own));
  pkv_codec_destroy(own);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 500));
  CHECK(world.regions(sequence).fits == 0);
  CHECK(world.regions(sequence).is_encoded == 1);
  CHECK(world.records(sequence) == teacher.records(0));
  world.append(sequence, ids_from(500, 200));
  CHECK(world.regions(sequence).fits == 0);
  world.truncate(sequence, 300);
  World fresh(shape);
  REQUIRE_OK(pkv_codec_import(fresh.device(), fresh.config(), &data, &own));
  REQUIRE_OK(pkv_cache_import_codec(fresh.cache(), 0, own));
  fresh.append(fresh.add(), ids_from(0, 300));
  CHECK(world.state(sequence) == fresh.state(0));
  CHECK_REFUSED(pkv_cache_import_codec(fresh.cache(), 0, own), PKV_FAILED_PRECONDITION,
                "300 tokens");
  pkv_codec_destroy(own);
  pkv_codec_destroy(codec);
}

}  // namespace
}  // namespace pkv::test
