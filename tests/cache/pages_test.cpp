// K and V in the caller's pages: every page size, pages in any order, bad tables, pages that are
// nobody's.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/cache/fixture.h"

namespace pkv::cache_model {
namespace {

Shape paged_shape() {
  Shape shape;
  shape.options = {{"k", "16"}};
  shape.sink = 256;
  shape.local = 64;
  shape.interval = 128;
  shape.dense_below = 128;
  return shape;
}

// A pool of pages of the caller's, in which one sequence's tokens lie.
class Pool {
 public:
  Pool(World& world, int64_t pages, int64_t page_tokens, int32_t layout, float background)
      : world_(world),
        page_tokens_(page_tokens),
        is_head_first_(layout == PKV_LAYOUT_HND),
        keys_(world.shape().dtype, extents(world, pages, world.shape().head_dim)),
        values_(world.shape().dtype, extents(world, pages, world.shape().value_dim)) {
    keys_.fill(background);
    values_.fill(background);
    auto pool = filled<pkv_cache_pool, pkv_cache_pool_init>();
    pool.layout = layout;
    pool.keys = keys_.view();
    pool.values = values_.view();
    status = pkv_cache_bind_pool(world.cache(), 0, &pool);
  }

  // Writes `tokens` at positions from `begin` on into these pages.
  void write(const std::vector<int32_t>& pages, int64_t begin,
             const std::vector<uint64_t>& tokens) {
    const Shape& shape = world_.shape();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const int64_t position = begin + static_cast<int64_t>(i);
      const int64_t page = pages[static_cast<std::size_t>(position / page_tokens_)];
      for (int32_t h = 0; h < shape.kv_heads; ++h) {
        const int64_t in_page = position % page_tokens_;
        const int64_t row = is_head_first_ ? (page * shape.kv_heads + h) * page_tokens_ + in_page
                                           : (page * page_tokens_ + in_page) * shape.kv_heads + h;
        keys_.set(row * shape.head_dim, world_.content().key(tokens[i], 0, h));
        values_.set(row * shape.value_dim, world_.content().value(tokens[i], 0, h));
      }
    }
  }

  pkv_status append(int32_t sequence, const std::vector<int32_t>& pages, int32_t last_page,
                    const std::vector<uint64_t>& new_tokens) {
    const int64_t indptr[2] = {0, static_cast<int64_t>(pages.size())};
    auto blocks = filled<pkv_cache_blocks, pkv_cache_blocks_init>();
    blocks.batch = 1;
    blocks.sequences = &sequence;
    blocks.indptr = indptr;
    blocks.indices = pages.data();
    blocks.last_page = &last_page;
    const Tensor queries = world_.content().queries(new_tokens, 0);
    const pkv_tensor q = queries.view();
    return pkv_cache_append_pages(world_.cache(), world_.stream(), 0, &blocks,
                                  new_tokens.empty() ? nullptr : &q);
  }

  pkv_status status;  // of binding it

 private:
  std::vector<int64_t> extents(const World& world, int64_t pages, int64_t width) const {
    if (is_head_first_) return {pages, world.shape().kv_heads, page_tokens_, width};
    return {pages, page_tokens_, world.shape().kv_heads, width};
  }

  World& world_;
  int64_t page_tokens_;
  bool is_head_first_;
  Tensor keys_, values_;
};

// Every third page of the pool, from the back.
std::vector<int32_t> shuffled_pages(int64_t count) {
  std::vector<int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  std::reverse(pages.begin(), pages.end());
  std::stable_sort(pages.begin(), pages.end(), [](int32_t a, int32_t b) { return a % 3 < b % 3; });
  return pages;
}

int32_t last_page_of(int64_t tokens, int64_t page_tokens) {
  return tokens == 0 ? 0 : static_cast<int32_t>((tokens - 1) % page_tokens + 1);
}

TEST_CASE("pages: any size and order equals rows in one piece, in both layouts") {
  for (const char* backend : backends()) {
    Machine machine(backend);
    for (const int64_t page_tokens : {1, 8, 16, 64, 256}) {
      for (const int32_t layout : {PKV_LAYOUT_HND, PKV_LAYOUT_NHD}) {
        CAPTURE(backend);
        CAPTURE(page_tokens);
        CAPTURE(layout);
        World world(machine, paged_shape());
        const int64_t count = (1000 + page_tokens - 1) / page_tokens;
        const float nan = std::numeric_limits<float>::quiet_NaN();
        Pool pool(world, count + 3, page_tokens, layout, nan);
        check(pool.status);
        const int32_t sequence = world.add();
        const std::vector<int32_t> order = shuffled_pages(count + 3);
        const std::vector<uint64_t> tokens = tokens_from(1, 1000);
        int64_t before = 0;
        for (const int64_t length : {5, 300, 301, 1000}) {  // in pieces
          const std::vector<uint64_t> more(tokens.begin() + before, tokens.begin() + length);
          const auto pages = (length + page_tokens - 1) / page_tokens;
          pool.write(order, before, more);
          check(pool.append(sequence, {order.begin(), order.begin() + pages},
                            last_page_of(length, page_tokens), more));
          before = length;
        }
        check_equals_fresh(world, sequence, tokens);
      }
    }
  }
}

TEST_CASE("pages: a size that is no power of two, or does not divide the sink, is refused") {
  Machine machine("cpu");
  World world(machine, paged_shape());
  const Pool pool(world, 4, 96, PKV_LAYOUT_HND, 0);
  check_refused(pool.status, PKV_INVALID_ARGUMENT, {"96", "256"});
}

TEST_CASE("pages: a wrong last page or page id is named, and nothing is read") {
  Machine machine("cpu");
  World world(machine, paged_shape());
  Pool pool(world, 2, 16, PKV_LAYOUT_HND, 0);
  check(pool.status);
  const int32_t sequence = world.add();
  pool.write({1, 0}, 0, tokens_from(1, 20));
  check(pool.append(sequence, {1, 0}, 4, tokens_from(1, 20)));
  check_refused(pool.append(sequence, {1, 0}, 17, {}), PKV_INVALID_ARGUMENT, {"0", "17", "16"});
  check_refused(pool.append(sequence, {1, 0}, 0, {}), PKV_INVALID_ARGUMENT, {"0", "16"});
  check_refused(pool.append(sequence, {1, 2}, 4, {}), PKV_OUT_OF_RANGE, {"2"});
  check_refused(pool.append(sequence, {-1, 0}, 4, {}), PKV_OUT_OF_RANGE, {"-1", "0..1"});
  check_refused(pool.append(sequence, {1, 0}, 3, {}), PKV_INVALID_ARGUMENT, {"19", "20"});
  check_refused(world.append(0, {{sequence, {1}}}), PKV_FAILED_PRECONDITION, {});
  CHECK(world.length(0, sequence) == 20);
  check_equals_fresh(world, sequence, tokens_from(1, 20));
}

TEST_CASE("pages: a pool is refused once the layer has tokens") {
  Machine machine("cpu");
  World world(machine, paged_shape());
  world.append_all(world.add(), tokens_from(1, 3));
  const Pool pool(world, 2, 16, PKV_LAYOUT_HND, 0);
  check_refused(pool.status, PKV_FAILED_PRECONDITION, {});
}

TEST_CASE("pages: rows of pages that are nobody's change no bit of any output") {
  Machine machine("cpu");
  std::vector<Attended> outputs;
  for (const float background : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
    Shape shape = paged_shape();
    shape.sink = 16;
    World world(machine, shape);
    Pool pool(world, 16, 16, PKV_LAYOUT_NHD, background);
    check(pool.status);
    const int32_t sequence = world.add();
    pool.write({7}, 0, tokens_from(1, 3));  // behind it, and in 15 pages, the background
    check(pool.append(sequence, {7}, 3, tokens_from(1, 3)));
    outputs.emplace_back();
    check(world.attend(0, {{sequence, {5000, 5001}}}, 0, outputs.back()));
  }
  CHECK(same_bits(outputs[0].output, outputs[1].output));
  CHECK(same_bits(outputs[0].lse, outputs[1].lse));
}

TEST_CASE("pages: truncated and appended to again in other pages equals a fresh one") {
  Machine machine("cpu");
  World world(machine, paged_shape());
  Pool pool(world, 60, 16, PKV_LAYOUT_HND, 0);
  check(pool.status);
  const int32_t sequence = world.add();
  std::vector<int32_t> order = shuffled_pages(60);
  const std::vector<uint64_t> tokens = tokens_from(1, 800);
  pool.write(order, 0, tokens);
  check(pool.append(sequence, {order.begin(), order.begin() + 50}, 16, tokens));
  world.truncate(sequence, 500);
  std::reverse(order.begin() + 32, order.end());  // tokens from 512 on lie elsewhere now
  const std::vector<uint64_t> others = tokens_from(5000, 300);
  pool.write(order, 500, others);
  check(pool.append(sequence, {order.begin(), order.begin() + 50}, 16, others));
  check_equals_fresh(world, sequence, joined(tokens_from(1, 500), others));
}

}  // namespace
}  // namespace pkv::cache_model
