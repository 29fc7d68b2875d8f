// K and V in the caller's pages, and what calls refuse about them.
#include <algorithm>
#include <numeric>

#include "tests/unit/cache/naive.h"

namespace pkv::test {
namespace {

// A pool of pages in shuffled order; what no token wrote is NaN.
class Pool {
 public:
  Pool(const Shape& shape, int32_t layout, int64_t page_tokens, int64_t pages)
      : shape_(shape), layout_(layout), page_tokens_(page_tokens) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const int64_t h = shape.kv_heads;
    const std::vector<int64_t> extents = layout == PKV_LAYOUT_HND
                                             ? std::vector<int64_t>{pages, h, page_tokens, shape.d}
                                             : std::vector<int64_t>{pages, page_tokens, h, shape.d};
    keys_ = Tensor(extents, nan);
    values_ = Tensor(extents, nan);
    order_.resize(static_cast<std::size_t>(pages));
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t i = order_.size(); i-- > 1;) std::swap(order_[i], order_[i * 7919 % (i + 1)]);
  }
  pkv_cache_pool desc() const {
    pkv_cache_pool pool{};
    REQUIRE_OK(pkv_cache_pool_init(&pool, sizeof pool));
    pool.layout = layout_;
    pool.keys = keys_.view();
    pool.values = values_.view();
    return pool;
  }
  void write(int64_t position, uint64_t id) {
    const int64_t page = order_[static_cast<std::size_t>(position / page_tokens_)];
    const int64_t token = position % page_tokens_;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const int64_t row = layout_ == PKV_LAYOUT_HND
                              ? (page * shape_.kv_heads + head) * page_tokens_ + token
                              : (page * page_tokens_ + token) * shape_.kv_heads + head;
      fill_token(id, Role::kKey, head, shape_.d, keys_.data() + row * shape_.d);
      fill_token(id, Role::kValue, head, shape_.d, values_.data() + row * shape_.d);
    }
  }
  pkv_status append(const World& world, int32_t sequence, int64_t tokens,
                    const std::vector<uint64_t>& fresh) {
    pkv_cache_blocks blocks{};
    REQUIRE_OK(pkv_cache_blocks_init(&blocks, sizeof blocks));
    const int64_t pages = (tokens + page_tokens_ - 1) / page_tokens_;
    const int64_t indptr[] = {0, pages};
    const auto last = static_cast<int32_t>(tokens - (pages - 1) * page_tokens_);
    blocks.batch = 1;
    blocks.sequences = &sequence;
    blocks.indptr = indptr;
    blocks.indices = order_.data();
    blocks.last_page = &last;
    const Tensor queries = tokens_of(fresh, Role::kQuery, shape_.query_heads, shape_.d);
    const pkv_tensor view = queries.view();
    return pkv_cache_append_pages(world.cache(), world.stream(), 0, &blocks, &view);
  }
  std::vector<int32_t>& order() { return order_; }

 private:
  const Shape& shape_;
  int32_t layout_;
  int64_t page_tokens_;
  Tensor keys_, values_;
  std::vector<int32_t> order_;
};

TEST_CASE("pages: the caller's, of any size and layout, are as the cache's own") {
  const Shape shape;
  const std::vector<uint64_t> ids = ids_from(40, 400);
  World own(shape);
  own.append(own.add(), ids);
  const std::vector<uint8_t> wanted = own.state(0);
  const Answer answer = own.attend(0, {ids.end() - 3, ids.end()});
  for (const int32_t layout : {PKV_LAYOUT_HND, PKV_LAYOUT_NHD}) {
    for (const int64_t page_tokens : {1, 2, 4, 8}) {
      CAPTURE(layout);
      CAPTURE(page_tokens);
      Pool pool(shape, layout, page_tokens, 450 / page_tokens + 1);
      World world(shape);
      const pkv_cache_pool desc = pool.desc();
      REQUIRE_OK(pkv_cache_bind_pool(world.cache(), 0, &desc));
      const int32_t sequence = world.add();
      int64_t tokens = 0;
      for (const int64_t until : {5, 131, 397, 400}) {
        const std::vector<uint64_t> fresh(ids.begin() + tokens, ids.begin() + until);
        for (; tokens < until; ++tokens) pool.write(tokens, ids[static_cast<std::size_t>(tokens)]);
        REQUIRE_OK(pool.append(world, sequence, tokens, fresh));
      }
      CHECK(world.state(sequence) == wanted);
      check_close(world.attend(sequence, {ids.end() - 3, ids.end()}), answer, 1e-5);
      const int32_t child = world.fork(sequence, 300);
      own.truncate(0, 300);
      CHECK(world.state(child) == own.state(0));
      own.append(0, {ids.begin() + 300, ids.end()});
    }
  }
}

TEST_CASE("pages: a wrong page, last page or size is refused and nothing is read") {
  const Shape shape;
  World world(shape);
  Pool pool(shape, PKV_LAYOUT_HND, 4, 20);
  for (int64_t t = 0; t < 20; ++t) pool.write(t, static_cast<uint64_t>(t));
  Pool large(shape, PKV_LAYOUT_HND, 16, 4);
  pkv_cache_pool desc = large.desc();
  CHECK_REFUSED(pkv_cache_bind_pool(world.cache(), 0, &desc), PKV_INVALID_ARGUMENT,
                "page_tokens=16, accepted: 1, 2, 4, 8");
  desc = pool.desc();
  REQUIRE_OK(pkv_cache_bind_pool(world.cache(), 0, &desc));
  const int32_t sequence = world.add();
  REQUIRE_OK(pool.append(world, sequence, 10, ids_from(0, 10)));
  const std::vector<uint8_t> before = world.state(sequence);
  pkv_cache_blocks blocks{};
  REQUIRE_OK(pkv_cache_blocks_init(&blocks, sizeof blocks));
  const int64_t indptr[] = {0, 3};
  std::vector<int32_t> indices = {pool.order()[0], pool.order()[1], pool.order()[2]};
  int32_t last = 5;
  blocks.batch = 1;
  blocks.sequences = &sequence;
  blocks.indptr = indptr;
  blocks.indices = indices.data();
  blocks.last_page = &last;
  CHECK_REFUSED(pkv_cache_append_pages(world.cache(), world.stream(), 0, &blocks, nullptr),
                PKV_INVALID_ARGUMENT, "last_page[0] of sequence 0=5, accepted: 1..4");
  last = 3;
  indices[2] = 20;
  CHECK_REFUSED(pkv_cache_append_pages(world.cache(), world.stream(), 0, &blocks, nullptr),
                PKV_OUT_OF_RANGE, "indices[2]=20, accepted: 0..19");
  indices[2] = pool.order()[2];
  last = 1;
  CHECK_REFUSED(pkv_cache_append_pages(world.cache(), world.stream(), 0, &blocks, nullptr),
                PKV_INVALID_ARGUMENT, "at least the 10");
  CHECK(world.try_append(0, {sequence}, {ids_from(0, 1)}) == PKV_FAILED_PRECONDITION);
  CHECK(world.state(sequence) == before);
}

TEST_CASE("pages: a row that is not finite is refused by position, or left out") {
  std::vector<uint64_t> ids = ids_from(40, 150);
  ids[3] |= kNanKey;
  ids[140] |= kInfiniteValue;
  for (const bool is_isolated : {false, true}) {
    Shape shape;
    shape.options = {{"k", "2000"}, {"candidates", "1"}};
    if (is_isolated) shape.options.emplace_back("nonfinite", "isolate");
    Pool pool(shape, PKV_LAYOUT_NHD, 8, 40);
    World world(shape);
    const Naive naive(world);
    const pkv_cache_pool desc = pool.desc();
    REQUIRE_OK(pkv_cache_bind_pool(world.cache(), 0, &desc));
    const int32_t sequence = world.add();
    for (std::size_t i = 0; i < ids.size(); ++i) pool.write(static_cast<int64_t>(i), ids[i]);
    if (!is_isolated) {
      CHECK_REFUSED(pool.append(world, sequence, 150, ids), PKV_INVALID_ARGUMENT,
                    "position 3, KV head 0");
      CHECK(world.length(sequence) == 0);
      REQUIRE_OK(pool.append(world, sequence, 3, {ids.begin(), ids.begin() + 3}));
      CHECK(world.length(sequence) == 3);
      continue;
    }
    REQUIRE_OK(pool.append(world, sequence, 150, ids));
    const Answer wanted = naive.full(ids, 2);
    Answer got = world.attend(sequence, {ids.end() - 2, ids.end()});
    got.positions = wanted.positions;
    got.counts = wanted.counts;
    check_close(got, wanted, 2e-5);
  }
}

}  // namespace
}  // namespace pkv::test
