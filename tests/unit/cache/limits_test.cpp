// What a cache refuses, with nothing changed; what it holds; many threads.
#include <cmath>
#include <limits>
#include <thread>

#include "tests/unit/cache/naive.h"

namespace pkv::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_CASE("limits: past the capacity, with need and room, and on again after truncate") {
  Shape shape;
  shape.capacity = 1000;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 990));
  const std::vector<uint8_t> before = world.state(sequence);
  CHECK_REFUSED(world.try_append(0, {sequence}, {ids_from(0, 50)}), PKV_RESOURCE_EXHAUSTED,
                "needs 50 tokens, has room for 10");
  CHECK(world.state(sequence) == before);
  world.truncate(sequence, 900);
  world.append(sequence, ids_from(900, 100));
  CHECK(world.length(sequence) == 1000);
}

TEST_CASE("limits: a batch that runs out of pages changes none of its sequences") {
  Shape shape;
  World large(shape);
  large.append(large.add(), ids_from(0, 300));
  large.append(large.add(), ids_from(5000, 300));
  const pkv_cache_usage use = large.usage();
  for (const int64_t missing : {1, 100000}) {
    CAPTURE(missing);
    shape.max_bytes = use.row_pages + use.record_pages + use.samples - missing;
    World world(shape);
    const int32_t one = world.add();
    const int32_t two = world.add();
    world.append(one, ids_from(0, 200));
    world.append(two, ids_from(5000, 100));
    const std::vector<uint8_t> first = world.state(one);
    const std::vector<uint8_t> second = world.state(two);
    const pkv_cache_usage held = world.usage();
    CHECK_REFUSED(world.try_append(0, {one, two}, {ids_from(200, 100), ids_from(5100, 200)}),
                  PKV_RESOURCE_EXHAUSTED, "has room for");
    CHECK(world.state(one) == first);
    CHECK(world.state(two) == second);
    CHECK(world.usage().row_pages == held.row_pages);
    CHECK(world.usage().record_pages == held.record_pages);
    world.append(one, ids_from(200, 1));
    large.truncate(0, 201);
    CHECK(world.state(one) == large.state(0));
    large.append(0, ids_from(201, 99));
  }
}

TEST_CASE("limits: sequences outside the slots, twice, or not in use") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  for (const int32_t wrong : {-1, 4, INT32_MAX}) {
    CHECK_REFUSED(pkv_cache_truncate(world.cache(), world.stream(), wrong, 0), PKV_OUT_OF_RANGE,
                  "accepted: 0..3");
    CHECK_REFUSED(world.try_append(0, {wrong}, {ids_from(0, 1)}), PKV_OUT_OF_RANGE,
                  "accepted: 0..3");
  }
  CHECK_REFUSED(world.try_append(0, {2}, {ids_from(0, 1)}), PKV_FAILED_PRECONDITION, "sequence 2");
  CHECK_REFUSED(world.try_append(0, {sequence, sequence}, {ids_from(0, 1), ids_from(0, 1)}),
                PKV_INVALID_ARGUMENT, "twice");
  CHECK_REFUSED(world.try_append(1, {sequence}, {ids_from(0, 1)}), PKV_OUT_OF_RANGE, "layer=1");
  REQUIRE_OK(pkv_cache_remove(world.cache(), world.stream(), sequence));
  CHECK_REFUSED(pkv_cache_remove(world.cache(), world.stream(), sequence), PKV_FAILED_PRECONDITION,
                "not in use");
  for (int i = 0; i < 4; ++i) CHECK(world.add() == i);
  int32_t none = -1;
  CHECK_REFUSED(pkv_cache_add(world.cache(), &none), PKV_RESOURCE_EXHAUSTED, "all 4 are in use");
}

TEST_CASE("limits: a key that is not finite is refused by position and head") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 100));
  const std::vector<uint8_t> before = world.state(sequence);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, 1e20F}) {
    Tensor keys = tokens_of(ids_from(100, 60), Role::kKey, 2, 32);
    const Tensor values = tokens_of(ids_from(100, 60), Role::kValue, 2, 32);
    keys.data()[(41 * 2 + 1) * 32 + 7] = bad;
    const pkv_tensor k = keys.view();
    const pkv_tensor v = values.view();
    pkv_cache_batch batch{};
    REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
    const int64_t count = 60;
    batch.batch = 1;
    batch.sequences = &sequence;
    batch.counts = &count;
    CHECK_REFUSED(pkv_cache_append(world.cache(), world.stream(), 0, &batch, &k, &v, nullptr),
                  PKV_INVALID_ARGUMENT, "sequence 0, position 141, KV head 1");
    CHECK_REFUSED(pkv_cache_append(world.cache(), world.stream(), 0, &batch, &v, &k, nullptr),
                  PKV_INVALID_ARGUMENT, "value of sequence 0, position 141, KV head 1");
  }
  CHECK(world.state(sequence) == before);
}

TEST_CASE("limits: more query tokens than the local window, or than there are") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  world.append(sequence, ids_from(0, 100));
  Tensor query({101, 4, 32});
  Tensor output({101, 4, 32});
  pkv_cache_attention attention{};
  REQUIRE_OK(pkv_cache_attention_init(&attention, sizeof attention));
  attention.query = query.view();
  attention.output = output.view();
  pkv_cache_batch batch{};
  REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
  int64_t count = 101;
  batch.batch = 1;
  batch.sequences = &sequence;
  batch.counts = &count;
  CHECK_REFUSED(pkv_cache_attend(world.cache(), world.stream(), 0, &batch, &attention),
                PKV_OUT_OF_RANGE, "counts[0]=101, accepted: 0..100");
  Tensor fewer({18, 4, 32});
  attention.query = fewer.view();
  attention.output = output.view();
  CHECK_REFUSED(pkv_cache_attend(world.cache(), world.stream(), 0, &batch, &attention),
                PKV_INVALID_ARGUMENT, "18");
  count = 18;
  Tensor out18({18, 4, 32});
  attention.output = out18.view();
  CHECK_REFUSED(pkv_cache_attend(world.cache(), world.stream(), 0, &batch, &attention),
                PKV_INVALID_ARGUMENT, "counts[0]=18, accepted: 0..17");
}

TEST_CASE("limits: stale hits are refused, fresh ones give the rows") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> ids = ids_from(0, 300);
  world.append(sequence, ids);
  const Tensor query = tokens_of({7}, Role::kQuery, 4, 32);
  const pkv_tensor view = query.view();
  std::vector<int32_t> positions(2 * 12), counts(2);
  pkv_cache_hits hits{};
  REQUIRE_OK(pkv_cache_hits_init(&hits, sizeof hits));
  hits.positions = positions.data();
  hits.counts = counts.data();
  pkv_cache_batch batch{};
  REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
  batch.batch = 1;
  batch.sequences = &sequence;
  REQUIRE_OK(pkv_cache_retrieve(world.cache(), world.stream(), 0, &batch, &view, &hits));
  Tensor keys({1, 2, 12, 32});
  Tensor values({1, 2, 12, 32});
  pkv_rows rows{};
  REQUIRE_OK(pkv_rows_init(&rows, sizeof rows));
  rows.keys = keys.view();
  rows.values = values.view();
  REQUIRE_OK(pkv_cache_fetch(world.cache(), world.stream(), 0, &batch, &hits, &rows));
  for (int32_t head = 0; head < 2; ++head) {
    for (int32_t slot = 0; slot < 12; ++slot) {
      const int32_t position = positions[static_cast<std::size_t>(head * 12 + slot)];
      REQUIRE(position >= 0);
      std::vector<float> wanted(32);
      fill_token(ids[static_cast<std::size_t>(position + 8)], Role::kKey, head, 32, wanted.data());
      CHECK(std::memcmp(wanted.data(), keys.data() + (head * 12 + slot) * 32, 128) == 0);
    }
  }
  std::swap(positions[3], positions[5]);
  positions[4] = 100000;
  CHECK_REFUSED(pkv_cache_fetch(world.cache(), world.stream(), 0, &batch, &hits, &rows),
                PKV_OUT_OF_RANGE, "slot 4]=100000");
  positions[4] = -1;
  world.append(sequence, ids_from(300, 1));
  CHECK_REFUSED(pkv_cache_fetch(world.cache(), world.stream(), 0, &batch, &hits, &rows),
                PKV_FAILED_PRECONDITION, "stale");
}

TEST_CASE("limits: the estimate of bytes is what a cache then holds") {
  for (const bool with_queries : {true, false}) {
    Shape shape;
    shape.layers = 2;
    shape.policies = {{sizeof(pkv_cache_layer), PKV_CACHE_SPARSE, 0},
                      {sizeof(pkv_cache_layer), PKV_CACHE_DENSE, 0}};
    World world(shape);
    const std::vector<int64_t> lengths = {0, 5, 119, 900};
    for (const int64_t length : lengths) {
      const int32_t sequence = world.add();
      for (int32_t layer = 0; layer < 2; ++layer) {
        world.append(sequence, ids_from(static_cast<uint64_t>(1000 * sequence), length),
                     with_queries, layer);
      }
    }
    pkv_cache_usage estimate{};
    REQUIRE_OK(pkv_cache_usage_init(&estimate, sizeof estimate));
    REQUIRE_OK(pkv_cache_bytes(world.device(), world.config(), &world.desc(), lengths.data(), 4,
                               with_queries ? PKV_DTYPE_F32 : 0, &estimate));
    const pkv_cache_usage use = world.usage();
    CHECK(estimate.row_pages == use.row_pages);
    CHECK(estimate.record_pages == use.record_pages);
    CHECK(estimate.tables == use.tables);
    CHECK(estimate.codecs == use.codecs);
    CHECK(estimate.samples == use.samples);
    CHECK(estimate.occupancy == use.occupancy);
    CHECK(estimate.partly == use.partly);
    CHECK(estimate.total == use.total - use.scratch);
  }
}

TEST_CASE("limits: a rolling workload holds no more after a while") {
  Shape shape;
  shape.sequences = 2;
  World world(shape);
  const int32_t sequence = world.add();
  int64_t total = 0;
  int64_t allocated = 0;
  for (uint64_t round = 0; round < 30; ++round) {
    world.append(sequence, ids_from(round * 1000, 200));
    for (uint64_t t = 0; t < 40; ++t) world.decode({sequence}, {{round * 1000 + 500 + t}});
    const int64_t now = world.usage().total;
    if (round == 1) total = now;
    if (round == 1) allocated = world.stats().allocated_bytes;
    if (round > 1) CHECK(now == total);
    if (round > 1) CHECK(world.stats().allocated_bytes == allocated);
    world.truncate(sequence, 40);
  }
}

TEST_CASE("limits: nothing to attend to is 0 and -inf; no sequences are no work") {
  Shape shape;
  World world(shape);
  const Answer none = world.decode({}, {});
  CHECK(none.output.empty());
  Shape windowed;
  windowed.sink = 0;
  World other(windowed);
  const int32_t sequence = other.add();
  const Answer one = other.decode({sequence}, {{5}});  // its own token alone
  std::vector<float> value(32);
  fill_token(5, Role::kValue, 0, 32, value.data());
  CHECK(std::abs(one.output[3] - value[3]) <= 1e-6);
}

TEST_CASE("limits: launches are announced where steps can be captured, not elsewhere") {
  Shape shape;
  World world(shape);
  pkv_cache_batch batch{};
  REQUIRE_OK(pkv_cache_batch_init(&batch, sizeof batch));
  CHECK_REFUSED(pkv_cache_advance(world.cache(), world.stream(), -1, &batch),
                PKV_FAILED_PRECONDITION, "host memory");
}

TEST_CASE("merge: empty parts add nothing, one with mass keeps its bits, two are one") {
  Shape shape;
  World world(shape);
  Tensor zero({1, 1, 8});
  Tensor real({1, 1, 8});
  Tensor out({1, 1, 8}, 9);
  for (int i = 0; i < 8; ++i) real.data()[i] = 0.1F * static_cast<float>(i) + 0.01F;
  const float nothing = -kInf;
  const float mass = 3.5F;
  float lse = 7;
  const auto merged = [&](const Tensor& a, float lse_a, const Tensor& b, float lse_b) {
    const pkv_tensor parts[] = {a.view(), b.view()};
    const float* lses[] = {&lse_a, &lse_b};
    const pkv_tensor to = out.view();
    REQUIRE_OK(pkv_merge(world.stream(), 2, parts, lses, &to, &lse));
  };
  merged(zero, nothing, zero, nothing);
  CHECK(out.numbers() == zero.numbers());
  CHECK(lse == nothing);
  merged(zero, nothing, real, mass);
  CHECK(out.numbers() == real.numbers());
  CHECK(lse == mass);
  merged(real, mass, zero, nothing);
  CHECK(out.numbers() == real.numbers());
  CHECK(lse == mass);
  merged(real, 1.0F, zero, 1.0F);
  CHECK(std::abs(out.numbers()[5] - real.numbers()[5] / 2) <= 1e-7);
  CHECK(std::abs(lse - (1 + std::log(2.0F))) <= 1e-6);
}

TEST_CASE("threads: answers from many threads are those of one") {
  Shape shape;
  World world(shape);
  const int32_t sequence = world.add();
  const std::vector<uint64_t> ids = ids_from(0, 400);
  world.append(sequence, ids);
  const Answer wanted = world.attend(sequence, {ids.back()});
  const Tensor query = tokens_of({ids.back()}, Role::kQuery, 4, 32);
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) {
        Tensor output({1, 4, 32});
        pkv_cache_attention attention{};
        pkv_cache_attention_init(&attention, sizeof attention);
        attention.query = query.view();
        attention.output = output.view();
        pkv_cache_batch batch{};
        pkv_cache_batch_init(&batch, sizeof batch);
        batch.batch = 1;
        batch.sequences = &sequence;
        const pkv_status status =
            pkv_cache_attend(world.cache(), world.stream(), 0, &batch, &attention);
        if (status != PKV_OK || output.numbers() != wanted.output) ++wrong[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(8, 0));
}

TEST_CASE("limits: ALiBi is refused with a reason, other fields by name and range") {
  Shape shape;
  World world(shape);
  pkv_cache_desc desc = world.desc();
  pkv_cache* cache = nullptr;
  const float slopes[] = {1, 1, 1, 1};
  desc.alibi_slopes = slopes;
  CHECK_REFUSED(pkv_cache_create(world.device(), world.config(), &desc, &cache), PKV_UNIMPLEMENTED,
                "alibi_slopes");
  desc = world.desc();
  desc.page_tokens = 96;
  CHECK_REFUSED(pkv_cache_create(world.device(), world.config(), &desc, &cache),
                PKV_INVALID_ARGUMENT, "page_tokens=96");
  desc = world.desc();
  desc.capacity = int64_t{1} << 31;
  CHECK_REFUSED(pkv_cache_create(world.device(), world.config(), &desc, &cache),
                PKV_INVALID_ARGUMENT, "capacity=2147483648, accepted: 1..2147483647");
  CHECK(cache == nullptr);
}

}  // namespace
}  // namespace pkv::test
