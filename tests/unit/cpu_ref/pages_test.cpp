// Stores and K/V in pages, codec sets, several query tokens of one sequence: the same bits as the
// plain calls. pariskv_backend.h; docs/algorithm.md, section 8.2.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::Candidates;
using test::Hits;
using test::Oracle;
using test::Tensor;

constexpr int32_t kD = 24;
constexpr int32_t kDv = 16;
constexpr int32_t kKv = 2;
constexpr int32_t kHeads = 6;
constexpr int32_t kSequences = 3;
constexpr int64_t kN = 200;
constexpr int64_t kPage = 64;
constexpr int32_t kK = 9;

pkv_geometry geometry() {
  pkv_geometry g =
      test::with_sketch(test::geometry_of(kD, kDv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kKv), 4, 16);
  g.value_norm = 1;
  return g;
}

// Puts an oracle's store into pages, in an order of their own, until it goes.
class InPages {
 public:
  explicit InPages(Oracle& oracle) : oracle_(oracle), piece_(oracle.store) {
    pkv_store store = {};
    store.capacity = kPage;
    oracle.expect(
        oracle.table->store_row_bytes(oracle.device, &oracle.geometry, kPage, &store.row_bytes));
    page_bytes_ = kKv * store.row_bytes;
    bytes_ = kSequences * kPages * page_bytes_;
    oracle.expect(oracle.table->memory_alloc(oracle.device, PKV_MEMORY_DEVICE, bytes_, &memory_));
    std::memset(memory_, 0xA5, static_cast<size_t>(bytes_));
    for (int64_t page = 0; page < kSequences * kPages; ++page) {
      table_.push_back(static_cast<std::byte*>(memory_) +
                       (7 * page + 3) % (kSequences * kPages) * page_bytes_);
      if (page % kPages == kPages - 1) table_.push_back(nullptr);  // not read
    }
    store.pages = table_.data();
    store.pages_stride = kPages + 1;
    oracle.store = store;
  }
  ~InPages() {
    oracle_.table->memory_free(oracle_.device, PKV_MEMORY_DEVICE, memory_, bytes_);
    oracle_.store = piece_;
  }
  InPages(const InPages&) = delete;
  InPages& operator=(const InPages&) = delete;

  // From now on two sequences have one page.
  void share(int64_t sequence, int64_t other, int64_t page) {
    table_[static_cast<size_t>(other * (kPages + 1) + page)] =
        table_[static_cast<size_t>(sequence * (kPages + 1) + page)];
  }

 private:
  static constexpr int64_t kPages = (kN + kPage - 1) / kPage;
  Oracle& oracle_;
  pkv_store piece_;
  void* memory_ = nullptr;
  int64_t page_bytes_ = 0;
  int64_t bytes_ = 0;
  std::vector<void*> table_;
};

// What the entries of a batch get from vote, select, rerank and attend.
struct Results {
  std::vector<float> votes;  // [b * h, kN]; NaN beyond the lengths
  Candidates candidates;
  Hits hits;
  std::vector<float> output;
  std::vector<float> lse;
};

struct Scene {
  Oracle oracle{geometry(), kN, kSequences};
  Tensor keys = Tensor::random({kSequences, kKv, kN, kD}, 1);
  Tensor values = Tensor::random({kSequences, kKv, kN, kDv}, 2);
  Tensor queries = Tensor::random({6, kHeads, kD}, 3);
  std::vector<int32_t> set_of;  // of the batch's entries; empty: none

  Scene() {
    // The first page of sequences 0 and 2 holds the same tokens.
    for (int32_t head = 0; head < kKv; ++head) {
      std::copy_n(keys.row(0, head, 0), kPage * kD, keys.row(2, head, 0));
      std::copy_n(values.row(0, head, 0), kPage * kDv, values.row(2, head, 0));
    }
    randomise(4);
  }

  // Another fit.
  void randomise(uint32_t seed) {
    test::Random random(seed);
    for (float& mu : oracle.center) mu = 0.5F * random.bell();
    for (float& s : oracle.balance) s = 1.0F + 0.5F * random.uniform();
    for (float& mu : oracle.value_center) mu = 0.5F * random.bell();
  }

  pkv_codec_params codec() {
    pkv_codec_params codec = oracle.codec();
    if (!set_of.empty()) codec.set_of = set_of.data();
    return codec;
  }

  void clear_sums() {
    std::fill(oracle.value_sums.begin(), oracle.value_sums.end(), 0.0);
    std::fill(oracle.good_counts.begin(), oracle.good_counts.end(), 0);
  }

  // Entry i: query `entries[i]` about sequence sequences[i].
  Results run(const std::vector<int64_t>& entries, std::vector<int32_t> sequences,
              const std::vector<int64_t>& lengths) {
    Tensor q({static_cast<int64_t>(entries.size()), kHeads, kD});
    for (size_t i = 0; i < entries.size(); ++i) {
      std::copy_n(queries.row(entries[i], 0), kHeads * kD, q.row(i, 0));
    }
    pkv_batch batch = oracle.batch_of(lengths);
    batch.sequences = sequences.data();
    Results results;
    pkv_vote_args vote = {};
    vote.struct_size = sizeof vote;
    vote.queries = q.view();
    vote.query_heads = kHeads;
    vote.vote_group = PKV_VOTE_GROUP_SUM;
    vote.rho_of = PKV_RHO_OF_KEYS;
    vote.codec = codec();
    vote.batch = batch;
    vote.store = oracle.store;
    vote.votes_stride = kN;
    results.votes.assign(entries.size() * kKv * kN, test::kNan);
    vote.votes = results.votes.data();
    oracle.run(oracle.table->vote, vote);

    // One selection serves all, so that entries may be compared across batches.
    results.candidates.stride = 30;
    for (size_t i = 0; i < entries.size(); ++i) {
      const int64_t n = std::min<int64_t>(lengths[i], 90);
      for (int32_t head = 0; head < kKv; ++head) {
        for (int32_t c = 0; c < 30; ++c) {
          results.candidates.positions.push_back(3 * c < n ? 3 * c : -1);
        }
        results.candidates.counts.push_back(static_cast<int32_t>((n + 2) / 3));
      }
    }
    pkv_rerank_args rerank = oracle.rerank_args(q, lengths, results.candidates, kK);
    rerank.tail_samples = 11;
    rerank.codec = codec();
    rerank.batch = batch;
    rerank.weigh_norms = 1;
    results.hits = oracle.rerank(rerank);

    Tensor row_keys = Tensor::random({static_cast<int64_t>(entries.size()), kKv, kK, kD}, 5);
    Tensor row_values = Tensor::random({static_cast<int64_t>(entries.size()), kKv, kK, kDv}, 6);
    for (size_t i = 1; i < entries.size(); ++i) {  // the same for all
      std::copy_n(row_keys.row(0, 0, 0), kKv * kK * kD, row_keys.row(i, 0, 0));
      std::copy_n(row_values.row(0, 0, 0), kKv * kK * kDv, row_values.row(i, 0, 0));
    }
    Tensor output({static_cast<int64_t>(entries.size()), kHeads, kDv});
    results.lse.assign(entries.size() * kHeads, test::kNan);
    pkv_attend_args attend = {};
    attend.struct_size = sizeof attend;
    attend.query_heads = kHeads;
    attend.tail = PKV_TAIL_SAMPLED;
    attend.tail_samples = 11;
    attend.scale = rerank.scale;
    attend.k = kK;
    attend.codec = codec();
    attend.batch = batch;
    attend.queries = q.view();
    attend.row_keys = row_keys.view();
    attend.row_values = row_values.view();
    attend.positions = results.hits.positions.data();
    attend.counts = results.hits.counts.data();
    attend.candidates = results.candidates.positions.data();
    attend.candidates_stride = results.candidates.stride;
    attend.candidate_counts = results.candidates.counts.data();
    attend.estimates = results.hits.estimates.data();
    attend.rest_lse = results.hits.rest_lse.data();
    attend.sample_estimates = results.hits.sample_estimates.data();
    attend.value_sums = oracle.value_sums.data();
    attend.good_counts = oracle.good_counts.data();
    attend.store = oracle.store;
    attend.output = output.view();
    attend.lse = results.lse.data();
    oracle.run(oracle.table->attend, attend);
    results.output = output.data();
    return results;
  }
};

// NaN equals NaN.
template <class Number>
void check_bits(const std::vector<Number>& a, const std::vector<Number>& b) {
  REQUIRE(a.size() == b.size());
  CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(Number)) == 0);
}

void check_same(const Results& a, const Results& b) {
  check_bits(a.votes, b.votes);
  check_bits(a.hits.positions, b.hits.positions);
  check_bits(a.hits.scores, b.hits.scores);
  check_bits(a.hits.counts, b.hits.counts);
  check_bits(a.hits.rest_lse, b.hits.rest_lse);
  check_bits(a.hits.sample_estimates, b.hits.sample_estimates);
  check_bits(a.output, b.output);
  check_bits(a.lse, b.lse);
}

// Entry `i` of `all` against a batch of its own.
void check_entry(const Results& all, size_t i, const Results& alone) {
  const auto part = [i](const auto& whole, const auto& one) {
    check_bits({whole.begin() + static_cast<ptrdiff_t>(i * one.size()),
                whole.begin() + static_cast<ptrdiff_t>((i + 1) * one.size())},
               one);
  };
  CAPTURE(i);
  part(all.votes, alone.votes);
  part(all.hits.positions, alone.hits.positions);
  part(all.hits.scores, alone.hits.scores);
  part(all.hits.estimates, alone.hits.estimates);
  part(all.hits.rest_lse, alone.hits.rest_lse);
  part(all.output, alone.output);
  part(all.lse, alone.lse);
}

TEST_CASE("pages: a store in pages, some shared, gives the bits of one in one piece") {
  Scene scene;
  scene.oracle.encode(scene.keys, scene.values);
  const std::vector<int64_t> entries = {0, 1, 2};
  const std::vector<int32_t> sequences = {2, 0, 1};
  const std::vector<int64_t> lengths = {kN, 65, 128};
  const Results expected = scene.run(entries, sequences, lengths);
  std::vector<Oracle::Record> records;
  for (int64_t row = 0; row < kSequences * kKv; ++row) {
    for (int64_t t = 0; t < kN; ++t) records.push_back(scene.oracle.record(row, t));
  }
  const std::vector<double> sums = scene.oracle.value_sums;

  InPages pages(scene.oracle);
  scene.clear_sums();
  // In two pieces, the second of which begins within a page.
  Tensor first({kSequences, kKv, 70, kD});
  Tensor first_values({kSequences, kKv, 70, kDv});
  Tensor second({kSequences, kKv, kN - 70, kD});
  Tensor second_values({kSequences, kKv, kN - 70, kDv});
  for (int32_t s = 0; s < kSequences; ++s) {
    for (int32_t head = 0; head < kKv; ++head) {
      std::copy_n(scene.keys.row(s, head, 0), 70 * kD, first.row(s, head, 0));
      std::copy_n(scene.values.row(s, head, 0), 70 * kDv, first_values.row(s, head, 0));
      std::copy_n(scene.keys.row(s, head, 70), (kN - 70) * kD, second.row(s, head, 0));
      std::copy_n(scene.values.row(s, head, 70), (kN - 70) * kDv, second_values.row(s, head, 0));
    }
  }
  scene.oracle.encode(first.view(), first_values.view());
  scene.oracle.encode(second.view(), second_values.view(), 70);
  CHECK(scene.oracle.value_sums == sums);
  for (const bool is_shared : {false, true}) {
    CAPTURE(is_shared);
    if (is_shared) pages.share(0, 2, 0);
    size_t i = 0;
    for (int64_t row = 0; row < kSequences * kKv; ++row) {
      for (int64_t t = 0; t < kN; ++t, ++i) {
        const Oracle::Record record = scene.oracle.record(row, t);
        CHECK(record.signs == records[i].signs);
        CHECK(record.codes == records[i].codes);
        CHECK(record.factors == records[i].factors);
        CHECK(record.vote_factor == records[i].vote_factor);
        CHECK(record.value_codes == records[i].value_codes);
        CHECK(record.value_factor == records[i].value_factor);
        CHECK(record.value_norm == records[i].value_norm);
      }
    }
    check_same(expected, scene.run(entries, sequences, lengths));
  }
}

TEST_CASE("pages: records move between a store in pages and canonical planes across pages") {
  Scene scene;
  scene.oracle.encode(scene.keys, scene.values);
  const std::vector<int32_t> sequences = {0, 1, 2};
  const Results expected = scene.run({0, 1, 2}, sequences, {kN, kN, kN});
  const pkv_geometry& g = scene.oracle.geometry;
  const format::RecordSizes sizes = format::record_sizes(g);
  const pkv_store piece = scene.oracle.store;
  InPages pages(scene.oracle);
  const pkv_backend& table = *scene.oracle.table;
  for (int64_t row = 0; row < kSequences * kKv; ++row) {
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, int64_t{70}), std::pair(int64_t{70}, kN)}) {
      const auto count = static_cast<size_t>(end - begin);
      std::vector<std::vector<uint8_t>> planes;
      for (const int32_t size :
           {sizes.signs, sizes.vote_factors, sizes.codes, sizes.factors, sizes.value_signs,
            sizes.value_codes, sizes.value_factors, sizes.value_norms}) {
        planes.emplace_back(count * static_cast<size_t>(size));
      }
      pkv_records records = {};
      records.struct_size = sizeof records;
      records.row_tokens = end - begin;
      records.signs = planes[0].data();
      records.vote_factors = reinterpret_cast<uint16_t*>(planes[1].data());
      records.codes = planes[2].data();
      records.factors = reinterpret_cast<uint16_t*>(planes[3].data());
      records.value_signs = planes[4].data();
      records.value_codes = planes[5].data();
      records.value_factors = reinterpret_cast<uint16_t*>(planes[6].data());
      records.value_norms = reinterpret_cast<uint16_t*>(planes[7].data());
      scene.oracle.expect(table.store_export(scene.oracle.device, nullptr, &g, &piece, row, begin,
                                             end - begin, &records));
      scene.oracle.expect(table.store_import(scene.oracle.device, nullptr, &g, &scene.oracle.store,
                                             row, begin, end - begin, &records));
    }
  }
  check_same(expected, scene.run({0, 1, 2}, sequences, {kN, kN, kN}));
}

TEST_CASE("codec sets: a batch with a set per entry gives what each gives with its set alone") {
  const std::vector<int64_t> starts(kSequences, 0);
  const std::vector<int64_t> counts(kSequences, kN);
  // Sets 1, 0, 1 of sequences 0, 1, 2.
  Scene scene;
  Scene zeroth;
  Scene first;
  first.randomise(99);
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(scene.oracle.center, first.oracle.center);
  append(scene.oracle.balance, first.oracle.balance);
  append(scene.oracle.value_center, first.oracle.value_center);
  scene.set_of = {1, 0, 1};
  zeroth.oracle.encode(zeroth.keys, zeroth.values);
  first.oracle.encode(first.keys, first.values);
  pkv_encode_args encode = {};
  const std::vector<int32_t> sequences = {0, 1, 2};
  encode.struct_size = sizeof encode;
  encode.batch = kSequences;
  encode.codec = scene.codec();
  encode.keys = scene.keys.view();
  encode.values = scene.values.view();
  encode.sequences = sequences.data();
  encode.starts = starts.data();
  encode.counts = counts.data();
  encode.store = scene.oracle.store;
  encode.value_sums = scene.oracle.value_sums.data();
  encode.good_counts = scene.oracle.good_counts.data();
  scene.oracle.run(scene.oracle.table->encode, encode);

  const Results all = scene.run({0, 1, 2}, sequences, {kN, kN, kN});
  for (size_t i = 0; i < 3; ++i) {
    Scene& alone = scene.set_of[i] == 1 ? first : zeroth;
    check_entry(all, i, alone.run({static_cast<int64_t>(i)}, {static_cast<int32_t>(i)}, {kN}));
  }
}

TEST_CASE("query tokens: entries that name one sequence give what each gives alone") {
  Scene scene;
  scene.oracle.encode(scene.keys, scene.values);
  const std::vector<int64_t> entries = {0, 1, 2, 3, 4, 5};
  const std::vector<int32_t> sequences = {1, 1, 1, 0, 1, 0};
  const std::vector<int64_t> lengths = {kN, 100, 101, 3, kN, 0};
  const Results all = scene.run(entries, sequences, lengths);
  for (size_t i = 0; i < entries.size(); ++i) {
    Results alone = scene.run({entries[i]}, {sequences[i]}, {lengths[i]});
    check_entry(all, i, alone);
  }
}

TEST_CASE("pages: K/V in pages of any size give what tensors give, in fetch and attend") {
  constexpr int32_t kBatch = 2;
  Scene scene;
  Oracle& oracle = scene.oracle;
  oracle.encode(scene.keys, scene.values);
  const std::vector<int32_t> sequences = {2, 0};
  const std::vector<int64_t> starts = {5, 64};
  const std::vector<int64_t> lengths = {40, 33};
  for (const int64_t page : {1, 7, 16, 300}) {
    CAPTURE(page);
    // Pages of all sequences backwards; K and V of a token beside each other.
    const int64_t count = (kN + page - 1) / page;
    const int64_t token_floats = kKv * (kD + kDv);
    std::vector<float> memory(static_cast<size_t>(kSequences * count * page * token_floats),
                              test::kNan);
    std::vector<const void*> table;
    for (int64_t s = 0; s < kSequences; ++s) {
      for (int64_t p = 0; p < count; ++p) {
        table.push_back(memory.data() +
                        (kSequences * count - 1 - (s * count + p)) * page * token_floats);
      }
      for (int64_t t = 0; t < kN; ++t) {
        auto* token = const_cast<float*>(static_cast<const float*>(
                          table[static_cast<size_t>(s * count + t / page)])) +
                      t % page * token_floats;
        for (int32_t head = 0; head < kKv; ++head) {
          std::copy_n(scene.keys.row(s, head, t), kD, token + head * kD);
          std::copy_n(scene.values.row(s, head, t), kDv, token + kKv * kD + head * kDv);
        }
      }
    }
    pkv_pages key_pages = {};
    key_pages.table = table.data();
    key_pages.table_stride = count;
    key_pages.page_tokens = page;
    key_pages.head_bytes = kD * 4;
    key_pages.token_bytes = token_floats * 4;
    pkv_pages value_pages = key_pages;
    value_pages.head_bytes = kDv * 4;
    value_pages.offset = kKv * kD * 4;

    pkv_fetch_args fetch = {};
    fetch.struct_size = sizeof fetch;
    fetch.kv_heads = kKv;
    fetch.batch = oracle.batch_of({kN, kN});
    fetch.batch.sequences = sequences.data();
    fetch.source_keys = scene.keys.view();
    fetch.source_values = scene.values.view();
    std::vector<int32_t> positions;
    for (int32_t slot = 0; slot < kBatch * kKv * kK; ++slot) {
      positions.push_back(slot % 4 == 3 ? -1 : slot * 37 % static_cast<int32_t>(kN));
    }
    fetch.positions = positions.data();
    fetch.k = kK;
    Tensor keys({kBatch, kKv, kK, kD});
    Tensor values({kBatch, kKv, kK, kDv});
    fetch.keys = keys.view();
    fetch.values = values.view();
    oracle.run(oracle.table->fetch, fetch);
    Tensor paged_keys({kBatch, kKv, kK, kD});
    Tensor paged_values({kBatch, kKv, kK, kDv});
    fetch.source_keys.data = fetch.source_values.data = nullptr;
    fetch.key_pages = key_pages;
    fetch.value_pages = value_pages;
    fetch.keys = paged_keys.view();
    fetch.values = paged_values.view();
    oracle.run(oracle.table->fetch, fetch);
    check_bits(keys.data(), paged_keys.data());
    check_bits(values.data(), paged_values.data());

    Tensor part_keys({kBatch, kKv, 40, kD});
    Tensor part_values({kBatch, kKv, 40, kDv});
    for (int32_t i = 0; i < kBatch; ++i) {
      const auto at = static_cast<size_t>(i);
      for (int32_t head = 0; head < kKv; ++head) {
        std::copy_n(scene.keys.row(sequences[at], head, starts[at]), lengths[at] * kD,
                    part_keys.row(i, head, 0));
        std::copy_n(scene.values.row(sequences[at], head, starts[at]), lengths[at] * kDv,
                    part_values.row(i, head, 0));
      }
    }
    Tensor queries = Tensor::random({kBatch, kHeads, kD}, 8);
    Tensor output({kBatch, kHeads, kDv});
    std::vector<float> lse(kBatch * kHeads);
    pkv_attend_args attend = {};
    attend.struct_size = sizeof attend;
    attend.query_heads = kHeads;
    attend.tail = PKV_TAIL_DROP;
    attend.part_count = 1;
    attend.scale = 0.3F;
    attend.codec = oracle.codec();
    attend.batch = oracle.batch_of({kN, kN});
    attend.batch.sequences = sequences.data();
    attend.queries = queries.view();
    attend.parts[0].keys = part_keys.view();
    attend.parts[0].values = part_values.view();
    attend.parts[0].lengths = lengths.data();
    attend.output = output.view();
    attend.lse = lse.data();
    oracle.run(oracle.table->attend, attend);
    Tensor paged_output({kBatch, kHeads, kDv});
    std::vector<float> paged_lse(kBatch * kHeads);
    attend.parts[0].keys.data = attend.parts[0].values.data = nullptr;
    attend.parts[0].starts = starts.data();
    attend.parts[0].key_pages = key_pages;
    attend.parts[0].value_pages = value_pages;
    attend.output = paged_output.view();
    attend.lse = paged_lse.data();
    oracle.run(oracle.table->attend, attend);
    check_bits(output.data(), paged_output.data());
    check_bits(lse, paged_lse);
  }
}

}  // namespace
}  // namespace pkv
