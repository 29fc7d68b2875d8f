// What single stages refuse of pages, codec sets, soft caps and sink logits.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "tests/unit/pipeline/stage_setup.h"

namespace pkv::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The setup with its store in pages of 64: sequence 0 has page 0, sequence 1 page 1.
struct PagedSetup : Setup {
  explicit PagedSetup(const Options& more = {}) : Setup(more) {
    store.capacity = 64;
    require_ok(machine.device->call("store_row_bytes", machine.device->backend().store_row_bytes,
                                    &index->geometry(), int64_t{64}, &store.row_bytes));
    memory = value_of(Buffer::create(machine.device, PKV_MEMORY_DEVICE, 4 * store.row_bytes));
    require_ok(machine.stream.fill(memory->data(), 0, memory->bytes()));
    table = {page(0), nullptr, page(1), nullptr};
    store.pages = table.data();
    store.pages_stride = 2;
  }
  void* page(int64_t i) const { return memory->as<std::byte>() + i * 2 * store.row_bytes; }

  std::optional<Buffer> memory;
  std::vector<void*> table;
  pkv_store store{};
};

// K/V of the zone, each token a page of its own.
struct TokenTable {
  TokenTable(Array& numbers, int64_t tokens) : pages{} {
    const pkv_tensor view = numbers.tensor();
    const int64_t heads = view.shape[1];
    const int64_t width = view.shape[3];
    for (int64_t sequence = 0; sequence < view.shape[0]; ++sequence) {
      for (int64_t t = 0; t < tokens; ++t) {
        table.push_back(numbers.numbers().data() + (sequence * heads * view.shape[2] + t) * width);
      }
    }
    pages.table = table.data();
    pages.table_stride = tokens;
    pages.page_tokens = 1;
    pages.head_bytes = view.shape[2] * width * int64_t{sizeof(float)};
    pages.token_bytes = width * int64_t{sizeof(float)};
  }
  std::vector<const void*> table;
  pkv_pages pages;
};

pkv_tensor without_data(pkv_tensor tensor) {
  tensor.data = nullptr;
  return tensor;
}

}  // namespace

TEST_CASE("stage vote: a store in pages, and codec sets") {
  PagedSetup s;
  pkv_vote_args good = s.vote();
  good.store = s.store;
  static const int32_t sets[2] = {0, 0};
  static const int32_t negative[2] = {0, -1};
  static const int64_t longer[2] = {129, 3};
  good.codec.set_of = sets;
  static std::vector<void*> holes, odd;
  holes = odd = s.table;
  holes[2] = nullptr;
  odd[2] = static_cast<std::byte*>(odd[2]) + 64;
  using A = pkv_vote_args;
  check_changes<A>(
      s.machine, good, stage_vote_sync,
      {{[&](A& a) { a.store.base = s.memory->data(); }, kInvalid, {"store.base", "store.pages"}},
       {[](A& a) { a.store.capacity = 32; }, kInvalid, {"store.capacity=32", "64.."}},
       {[](A& a) { a.store.capacity = 96; }, kInvalid, {"store.capacity=96", "power of two"}},
       {[](A& a) { a.store.row_bytes += 256; }, kInvalid, {"store.row_bytes="}},
       {[](A& a) { a.store.pages_stride = -1; }, kInvalid, {"store.pages_stride=-1"}},
       {[](A& a) { a.store.pages_stride = 0; }, kOutside, {"store.pages", "page 0", "below 0"}},
       {[](A& a) {
          a.batch.lengths = longer;
          a.batch.max_length = a.votes_stride = 129;
        },
        kOutside,
        {"store.pages", "position 128", "page 2", "below 2"}},
       {[](A& a) { a.store.pages = holes.data(); },
        kInvalid,
        {"store.pages[sequence 1, page 0]=NULL", "256"}},
       {[](A& a) { a.store.pages = odd.data(); },
        kInvalid,
        {"store.pages[sequence 1, page 0]", "not aligned", "256"}},
       {[](A& a) { a.codec.set_of = negative; }, kOutside, {"codec.set_of[1]=-1"}}});
}

TEST_CASE("stage vote: pages hold whole steps of the sketch") {
  PagedSetup s(Options{{"tail", "sampled"}});
  pkv_geometry g = s.index->geometry();
  g.sketch_stride = 48;
  pkv_vote_args args = s.vote();
  args.store = s.store;
  args.codec.geometry = &g;
  check_refused(stage_vote_sync(s.machine.stream, args), kInvalid,
                {"store.capacity=64", "sketch_stride=48"});
}

TEST_CASE("stage encode: pages of the entries are their own") {
  PagedSetup s(Options{{"vote", "graded"}});
  std::vector<double> sums(4 * 8);
  std::vector<int64_t> good(4);
  const int64_t starts[2] = {0, 0};
  static const int32_t negative[2] = {-1, 0};
  static const int64_t late[2] = {0, INT32_MAX - 10};
  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 2;
  args.codec = s.index->codec()->params();
  args.keys = s.zone.keys.tensor();
  args.values = s.zone.values.tensor();
  args.sequences = s.sequences;
  args.starts = starts;
  args.counts = s.lengths;
  args.store = s.store;
  args.value_sums = sums.data();
  args.good_counts = good.data();
  static std::vector<void*> shared;
  shared = s.table;
  shared[2] = shared[0];
  using A = pkv_encode_args;
  check_changes<A>(s.machine, args, stage_encode_sync,
                   {{[](A& a) { a.store.pages = shared.data(); },
                     kInvalid,
                     {"sequences 0 and 1", "pages of their own"}},
                    {[](A& a) { a.starts = late; }, kOutside, {"starts[1]=2147483637"}},
                    {[](A& a) { a.store.pages_stride = 0; }, kOutside, {"store.pages", "page 0"}},
                    {[](A& a) { a.codec.set_of = negative; }, kOutside, {"codec.set_of[0]=-1"}}});
}

TEST_CASE("stage rerank and attend: soft cap, sink logits") {
  Setup s;
  for (const float cap : {-1.0F, kNan, kInfinity, 2e6F}) {
    CAPTURE(cap);
    pkv_rerank_args rerank = s.rerank();
    rerank.soft_cap = cap;
    check_refused(stage_rerank_sync(s.machine.stream, rerank), kInvalid,
                  {"soft_cap=", "0 (none) up to 1000000"});
    pkv_attend_args attend = s.attend();
    attend.soft_cap = cap;
    check_refused(stage_attend_sync(s.machine.stream, attend), kInvalid,
                  {"soft_cap=", "0 (none) up to 1000000"});
  }
  std::vector<float> sinks = {1.0F, -kInfinity, 0.0F, -2.0F};
  pkv_attend_args args = s.attend();
  args.sink_logits = sinks.data();
  require_ok(stage_attend_sync(s.machine.stream, args));
  for (const float bad : {kNan, kInfinity}) {
    sinks[2] = bad;
    check_refused(stage_attend_sync(s.machine.stream, args), kInvalid,
                  {"sink_logits[2]=", "finite"});
  }
}

TEST_CASE("stage fetch: a source in pages") {
  Setup s;
  TokenTable keys(s.zone.keys, 40);
  TokenTable values(s.zone.values, 40);
  pkv_fetch_args good = s.fetch();
  good.source_keys = without_data(good.source_keys);
  good.source_values = without_data(good.source_values);
  good.key_pages = keys.pages;
  good.value_pages = values.pages;
  static std::vector<const void*> holes;
  holes = keys.table;
  holes[40 + 24] = nullptr;
  using A = pkv_fetch_args;
  check_changes<A>(
      s.machine, good, stage_fetch_sync,
      {{[&](A& a) { a.source_keys.data = s.zone.keys.numbers().data(); },
        kInvalid,
        {"source keys", "NULL with pages"}},
       {[](A& a) { a.key_pages.page_tokens = 0; }, kInvalid, {"page_tokens=0", "1..2147483647"}},
       {[](A& a) { a.key_pages.page_tokens = -3; }, kInvalid, {"page_tokens=-3"}},
       {[](A& a) { a.value_pages.table_stride = -1; },
        kInvalid,
        {"source values pages.table_stride=-1"}},
       {[](A& a) { a.value_pages.table_stride = 39; },
        kOutside,
        {"source values pages.table", "position 39", "below 39"}},
       {[](A& a) { a.key_pages.token_bytes = 6; }, kInvalid, {"token_bytes=6", "multiples of 4"}},
       {[](A& a) { a.key_pages.head_bytes = -2; }, kInvalid, {"head_bytes=-2", "multiples of 4"}},
       {[](A& a) { a.key_pages.offset = 1; }, kInvalid, {"offset=1", "multiples of 4"}},
       {[](A& a) { a.key_pages.head_bytes = INT64_MAX - 3; }, kInvalid, {"head_bytes=", "2^63-1"}},
       {[](A& a) { a.key_pages.table = holes.data(); },
        kInvalid,
        {"source keys pages.table[sequence 1, page 24]=NULL"}}});
}

TEST_CASE("stage attend: parts in pages") {
  Setup s;
  TokenTable keys(s.zone.keys, 40);
  TokenTable values(s.zone.values, 40);
  static const int64_t lengths[2] = {30, 20};
  static const int64_t starts[2] = {10, 5};
  static const int64_t negative[2] = {0, -1};
  static const int64_t late[2] = {INT32_MAX, 0};
  static const int64_t beyond[2] = {11, 5};
  pkv_attend_args good = s.attend();
  pkv_part& part = good.parts[0];
  part.keys = without_data(part.keys);
  part.values = without_data(part.values);
  part.lengths = lengths;
  part.starts = starts;
  part.key_pages = keys.pages;
  part.value_pages = values.pages;
  using A = pkv_attend_args;
  check_changes<A>(
      s.machine, good, stage_attend_sync,
      {{[](A& a) { a.parts[0].value_pages.table = nullptr; },
        kInvalid,
        {"dense[0]", "both or none"}},
       {[](A& a) {
          a.parts[0].value_pages.table = nullptr;
          a.parts[0].key_pages.table = nullptr;
        },
        kInvalid,
        {"dense[0].keys", "data=NULL"}},
       {[](A& a) { a.parts[0].starts = negative; }, kOutside, {"dense[0].starts[1]=-1"}},
       {[](A& a) { a.parts[0].starts = late; }, kOutside, {"dense[0].starts[0]=2147483647"}},
       {[](A& a) { a.parts[0].starts = beyond; },
        kOutside,
        {"dense[0].keys pages.table", "position 40 of sequence 0", "below 40"}},
       {[](A& a) { a.parts[0].key_pages.page_tokens = 0; }, kInvalid, {"page_tokens=0"}},
       {[](A& a) { a.parts[0].keys.dtype = PKV_DTYPE_U8; }, kInvalid, {"dense[0].keys", "u8"}}});
  pkv_attend_args whole = s.attend();
  whole.parts[0].starts = starts;
  check_refused(stage_attend_sync(s.machine.stream, whole), kInvalid,
                {"dense[0].starts", "in pages"});
}

}  // namespace pkv::test
