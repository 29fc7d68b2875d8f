// Steps of a cache against an index that is built anew for each, and against full attention.
#include "tests/unit/cache/naive.h"

namespace pkv::test {
namespace {

// Same backend, same inputs, other places in memory: fp32 sums of at most 1,024 terms of magnitude
// below 4, in another order of blocks.
constexpr double kTolerance = 1e-5;

TEST_CASE("step: at every length as a fresh index answers") {
  for (const char* backend : {"cpu_ref", "cpu"}) {
    Shape shape;
    shape.backend = backend;
    CAPTURE(backend);
    World world(shape);
    Naive naive(world);
    const int32_t sequence = world.add();
    std::vector<uint64_t> ids;
    for (uint64_t t = 0; t < 420; ++t) {
      ids.push_back(t);
      const Answer got = world.decode({sequence}, {{t}});
      if (t % 13 != 0 && t > 12) continue;
      CAPTURE(t);
      check_close(got, naive.attend(ids, 1), kTolerance);
    }
  }
}

TEST_CASE("step: several query tokens are as single ones, each with its own limit") {
  for (const char* backend : {"cpu_ref", "cpu"}) {
    Shape shape;
    shape.backend = backend;
    World world(shape);
    Naive naive(world);
    const int32_t sequence = world.add();
    std::vector<uint64_t> ids = ids_from(0, 300);
    world.append(sequence, ids);
    const std::vector<uint64_t> more = ids_from(1000, 9);
    ids.insert(ids.end(), more.begin(), more.end());
    check_close(world.decode({sequence}, {more}), naive.attend(ids, 9), kTolerance);
    check_close(world.attend(sequence, more), naive.attend(ids, 9), kTolerance);
  }
}

TEST_CASE("step: a ragged batch answers for each sequence as alone") {
  Shape shape;
  World world(shape);
  Naive naive(world);
  const std::vector<int64_t> lengths = {5, 130, 411};
  std::vector<int32_t> sequences;
  std::vector<std::vector<uint64_t>> all, more;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back(world.add());
    all.push_back(ids_from(10000 * (i + 1), lengths[i]));
    world.append(sequences.back(), all.back());
    more.push_back(ids_from(77 * (i + 1), static_cast<int64_t>(i) + 1));
    all.back().insert(all.back().end(), more.back().begin(), more.back().end());
  }
  std::swap(sequences[0], sequences[2]);
  std::swap(more[0], more[2]);
  std::swap(all[0], all[2]);
  Answer wanted;
  for (std::size_t i = 0; i < 3; ++i) {
    join(wanted, naive.attend(all[i], static_cast<int64_t>(more[i].size())));
  }
  check_close(world.decode(sequences, more), wanted, kTolerance);
}

TEST_CASE("step: with every key of the zone selected it is full attention, whatever the tail") {
  for (const char* tail : {"drop", "mean", "sampled", "sketch2", "sketch4"}) {
    CAPTURE(tail);
    Shape shape;
    shape.options = {{"k", "2000"}, {"candidates", "1"}, {"tail", tail}};
    World world(shape);
    Naive naive(world);
    const int32_t sequence = world.add();
    const std::vector<uint64_t> ids = ids_from(3, 333);
    world.append(sequence, ids);
    Answer got = world.attend(sequence, {ids.back()});
    Answer wanted = naive.full(ids, 1);
    CHECK(got.counts ==
          std::vector<int32_t>(2, static_cast<int32_t>(world.regions(sequence).zone)));
    got.positions = wanted.positions;
    got.counts = wanted.counts;
    check_close(got, wanted, kTolerance);
  }
}

TEST_CASE("step: exact attention over a prefix of any length") {
  Shape shape;
  shape.soft_cap = 3;
  shape.sink_logits = {0.5F, -1, 2, 0};
  World world(shape);
  Naive naive(world);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> ids = ids_from(3, 333);
  world.append(sequence, ids);
  Answer got = world.attend(sequence, {ids.end() - 100, ids.end()}, PKV_CACHE_EXACT);
  Answer wanted = naive.full(ids, 100);
  got.positions = wanted.positions;
  got.counts = wanted.counts;
  check_close(got, wanted, kTolerance);
}

TEST_CASE("step: dense and window layers attend to what their policy says") {
  Shape shape;
  shape.layers = 2;
  shape.policies = {{sizeof(pkv_cache_layer), PKV_CACHE_DENSE, 0},
                    {sizeof(pkv_cache_layer), PKV_CACHE_WINDOW, 30}};
  World world(shape);
  Naive naive(world);
  const int32_t sequence = world.add();
  for (const int64_t tokens : {4, 20, 36, 37, 200}) {
    CAPTURE(tokens);
    world.truncate(sequence, 0);
    const std::vector<uint64_t> ids = ids_from(3, tokens);
    world.append(sequence, ids, true, 0);
    world.append(sequence, ids, true, 1);
    Answer dense = world.attend(sequence, {ids.back()}, 0, 0);
    Answer wanted = naive.full(ids, 1);
    dense.positions = wanted.positions;
    dense.counts = wanted.counts;
    check_close(dense, wanted, kTolerance);
    Answer window = world.attend(sequence, {ids.back()}, 0, 1);
    const std::vector<uint64_t> last(ids.end() - std::min<int64_t>(30, tokens), ids.end());
    wanted = naive.full(last, 1);
    window.positions = wanted.positions;
    window.counts = wanted.counts;
    check_close(window, wanted, kTolerance);
  }
}

TEST_CASE("step: a special key decoded long ago is found") {
  Shape shape;
  shape.capacity = 30000;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 600));
  const uint64_t special = 1000000;
  world.append(sequence, {special});
  world.append(sequence, ids_from(601, 9000));
  // The query looks where the special key differs from all others.
  Tensor query({1, 4, 32});
  for (int32_t head = 0; head < 4; ++head) {
    fill_token(special, Role::kDeviation, head / 2, 32, query.data() + head * 32);
  }
  std::vector<int32_t> positions(2 * 12), counts(2);
  pkv_cache_hits hits{};
  REQUIRE_OK(pkv_cache_hits_init(&hits, sizeof hits));
  hits.positions = positions.data();
  hits.counts = counts.data();
  pkv_cache_batch batch{};
  REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
  batch.batch = 1;
  batch.sequences = &sequence;
  const pkv_tensor view = query.view();
  REQUIRE_OK(pkv_cache_retrieve(world.cache(), world.stream(), 0, &batch, &view, &hits));
  CHECK(positions[0] == 600 - 8);
  CHECK(positions[12] == 600 - 8);
}

}  // namespace
}  // namespace pkv::test
