// Saving and loading. docs/format.md, section 3.
#include "tests/unit/cache/naive.h"
#include "tests/unit/cache/path.h"

namespace pkv::test {
namespace {

std::vector<int32_t> load(const World& world, const Path& path, int32_t room = 4) {
  std::vector<int32_t> sequences(static_cast<std::size_t>(room));
  int32_t count = 0;
  REQUIRE_OK(pkv_cache_load_sync(world.cache(), world.stream(), path.get(), room, sequences.data(),
                                 &count));
  sequences.resize(static_cast<std::size_t>(count));
  return sequences;
}

TEST_CASE("file: what is loaded is what was saved, on any backend, and goes on as it would have") {
  Shape shape;
  shape.layers = 2;
  const Path path;
  World world(shape);
  for (const int64_t length : {0, 50, 610}) {
    const int32_t sequence = world.add();
    for (int32_t layer = 0; layer < 2; ++layer) {
      world.append(sequence, ids_from(static_cast<uint64_t>(9000 * sequence), length), true, layer);
    }
  }
  REQUIRE_OK(pkv_cache_save_sync(world.cache(), world.stream(), -1, path.get(), 0));
  CHECK_REFUSED(pkv_cache_save_sync(world.cache(), world.stream(), -1, path.get(), 0),
                PKV_ALREADY_EXISTS, path.get());
  for (const char* backend : {"cpu", "cpu_ref"}) {
    CAPTURE(backend);
    shape.backend = backend;
    World other(shape);
    other.append(other.add(), ids_from(77, 100));
    const std::vector<uint8_t> before = other.state(0);
    CHECK(load(other, path) == std::vector<int32_t>{1, 2, 3});
    for (int32_t s = 0; s < 3; ++s) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        CHECK(other.records(s + 1, layer) == world.records(s, layer));
        CHECK(other.length(s + 1, layer) == world.length(s, layer));
        if (std::string(backend) == "cpu") {
          CHECK(other.state(s + 1, layer) == world.state(s, layer));
        }
      }
    }
    CHECK(other.state(0) == before);
    if (std::string(backend) != "cpu") continue;
    const int32_t fork = world.fork(2);
    for (int32_t layer = 0; layer < 2; ++layer) {
      world.append(fork, ids_from(5, 150), true, layer);
      other.append(3, ids_from(5, 150), true, layer);
    }
    CHECK(other.state(3) == world.state(fork));
    world.truncate(fork, 300);
    other.truncate(3, 300);
    CHECK(other.state(3) == world.state(fork));
    REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), fork));
  }
}

TEST_CASE("file: one sequence; another shape or too little room is refused by name") {
  Shape shape;
  const Path path;
  World world(shape);
  world.append(world.add(), ids_from(0, 100));
  world.append(world.add(), ids_from(500, 300));
  REQUIRE_OK(pkv_cache_save_sync(world.cache(), world.stream(), 1, path.get(), 0));
  CHECK(load(world, path) == std::vector<int32_t>{2});
  CHECK(world.state(2) == world.state(1));
  int32_t sequences[4];
  int32_t count = -1;
  CHECK_REFUSED(
      pkv_cache_load_sync(world.cache(), world.stream(), path.get(), 0, sequences, &count),
      PKV_RESOURCE_EXHAUSTED, "needs 1 sequences, has room for 0");
  shape.sink = 16;
  World sink(shape);
  CHECK_REFUSED(pkv_cache_load_sync(sink.cache(), sink.stream(), path.get(), 4, sequences, &count),
                PKV_FAILED_PRECONDITION, "sink of the file=8, of the cache=16");
  shape.sink = 8;
  shape.options.push_back({"seed", "9"});
  World seed(shape);
  CHECK_REFUSED(pkv_cache_load_sync(seed.cache(), seed.stream(), path.get(), 4, sequences, &count),
                PKV_FAILED_PRECONDITION, "seed of the file=0, of the cache=9");
  CHECK(count == 0);
}

TEST_CASE("file: every changed byte and every shorter file is refused, and nothing has changed") {
  const Path path;
  World world(small_shape());
  world.append(world.add(), ids_from(0, 70));
  REQUIRE(world.regions(0).is_encoded == 1);
  REQUIRE_OK(pkv_cache_save_sync(world.cache(), world.stream(), -1, path.get(), 0));
  const std::vector<char> good = path.read();
  const std::vector<uint8_t> before = world.state(0);
  int32_t sequences[4];
  int32_t count = -1;
  int64_t loaded = 0;
  const auto check = [&](const std::vector<char>& bytes) {
    path.write(bytes);
    const pkv_status status =
        pkv_cache_load_sync(world.cache(), world.stream(), path.get(), 4, sequences, &count);
    if (status == PKV_OK) ++loaded;
    CHECK((status == PKV_DATA_LOSS || status == PKV_FAILED_PRECONDITION));
    CHECK(count == 0);
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<char> bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x24);
    check(bad);
  }
  for (std::size_t length = 0; length < good.size(); length += 37) {
    check({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
  }
  CHECK(loaded == 0);
  CHECK(world.state(0) == before);
  CHECK(world.add() == 1);
  path.write(good);
  REQUIRE_OK(pkv_cache_load_sync(world.cache(), world.stream(), path.get(), 4, sequences, &count));
  CHECK(world.state(sequences[0]) == before);
}

}  // namespace
}  // namespace pkv::test
