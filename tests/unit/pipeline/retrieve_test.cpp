// retrieve: the path from query to hits, on plans. docs/algorithm.md, sections 4 to 6.
#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "core/pipeline/stages.h"
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {

TEST_CASE("retrieve: any sequences, several times too, equal each alone, for every vote and tail") {
  Machine machine;
  for (const char* vote : {"tier", "graded"}) {
    for (const char* tail : {"drop", "mean", "sketch2", "sampled"}) {
      CAPTURE(vote);
      CAPTURE(tail);
      const Config config = config_of({{"head_dim", "16"},
                                       {"value_dim", "8"},
                                       {"vote", vote},
                                       {"tail", tail},
                                       {"k", "7"},
                                       {"candidates", "0.2"}});
      Zone zone({50, 300, 0, 77}, 2, 300, 16, 8);
      const auto index = index_with(machine, config, 2, zone, 300);
      const std::vector<int32_t> sequences = {3, 0, 0, 1, 0};
      Step together(machine, index, config, sequences, 4);
      Array query({5, 4, 16});
      fill_random(query.numbers(), 5);
      require_ok(together.retrieve(query));
      CHECK(together.guards_hold());
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        CAPTURE(i);
        Step alone(machine, index, config, {sequences[i]}, 4);
        Array one({1, 4, 16});
        one.numbers() = part_of(query.numbers(), i, 5);
        require_ok(alone.retrieve(one));
        CHECK(part_of(together.positions->values(), i, 5) == alone.positions->values());
        CHECK(part_of(together.counts->values(), i, 5) == alone.counts->values());
        CHECK(part_of(together.candidates->values(), i, 5) == alone.candidates->values());
        CHECK(part_of(together.candidate_counts->values(), i, 5) ==
              alone.candidate_counts->values());
        const auto scores = part_of(together.scores->values(), i, 5);
        const auto own_scores = alone.scores->values();
        CHECK(std::memcmp(scores.data(), own_scores.data(), scores.size() * sizeof(float)) == 0);
        if (std::string(tail) != "drop") {
          const auto rest = part_of(together.rest_lse->values(), i, 5);
          const auto own_rest = alone.rest_lse->values();
          CHECK(std::memcmp(rest.data(), own_rest.data(), rest.size() * sizeof(float)) == 0);
          const auto samples = part_of(together.sample_estimates->values(), i, 5);
          const auto own_samples = alone.sample_estimates->values();
          CHECK(std::memcmp(samples.data(), own_samples.data(), samples.size() * sizeof(float)) ==
                0);
        }
      }
    }
  }
}

TEST_CASE("retrieve: equals the three stages called one by one") {
  Machine machine;
  const Config config = config_of({{"head_dim", "24"},
                                   {"value_dim", "8"},
                                   {"vote", "tier"},
                                   {"k", "9"},
                                   {"candidates", "0.1"}});
  Zone zone({200, 31}, 1, 200, 24, 8);
  const auto index = index_with(machine, config, 1, zone, 256);
  Step step(machine, index, config, {0, 1}, 2);
  Array query({2, 2, 24});
  fill_random(query.numbers(), 5);
  require_ok(step.retrieve(query));

  const int32_t sequences[2] = {0, 1};
  const int64_t lengths[2] = {200, 31};
  const int64_t c = step.plan->candidates();
  std::vector<float> votes(2 * 200);
  std::vector<int32_t> candidates(static_cast<std::size_t>(2 * c)), candidate_counts(2);
  std::vector<int32_t> positions(18), counts(2);
  std::vector<float> scores(18);
  pkv_vote_args vote = step.plan->vote_args();
  vote.batch = {2, 0, sequences, lengths, 200};
  vote.queries = query.tensor();
  vote.votes = votes.data();
  vote.votes_stride = 200;
  require_ok(stage_vote_sync(machine.stream, vote));
  pkv_select_args select = step.plan->select_args();
  select.batch = vote.batch;
  select.votes = votes.data();
  select.votes_stride = 200;
  select.candidates = candidates.data();
  select.candidate_counts = candidate_counts.data();
  require_ok(stage_select_sync(machine.stream, select));
  pkv_rerank_args rerank = step.plan->rerank_args();
  rerank.batch = vote.batch;
  rerank.queries = query.tensor();
  rerank.candidates = candidates.data();
  rerank.candidate_counts = candidate_counts.data();
  rerank.positions = positions.data();
  rerank.scores = scores.data();
  rerank.counts = counts.data();
  require_ok(stage_rerank_sync(machine.stream, rerank));
  CHECK(step.candidates->values() == candidates);
  CHECK(step.candidate_counts->values() == candidate_counts);
  CHECK(step.positions->values() == positions);
  CHECK(step.counts->values() == counts);
  CHECK(candidate_counts == std::vector<int32_t>{20, 9});
}

TEST_CASE("retrieve: each optional pointer may be NULL without a change to the rest") {
  Machine machine;
  const Config config = config_of({{"head_dim", "16"}, {"k", "5"}, {"tail", "drop"}});
  Zone zone({120}, 2, 120, 16, 16);
  const auto index = index_with(machine, config, 2, zone, 128);
  Array query({1, 4, 16});
  fill_random(query.numbers(), 5);
  Step all(machine, index, config, {0}, 4);
  require_ok(all.retrieve(query));
  const auto same = [&](auto clear) {
    Step some(machine, index, config, {0}, 4);
    clear(some.hits);
    require_ok(some.retrieve(query));
    CHECK(some.positions->values() == all.positions->values());
    CHECK(some.counts->values() == all.counts->values());
    CHECK(some.guards_hold());
  };
  same([](pkv_hits& h) { h.scores = nullptr; });
  same([](pkv_hits& h) { h.candidates = nullptr; });
  same([](pkv_hits& h) { h.candidate_counts = nullptr; });
  same([](pkv_hits& h) { h.estimates = nullptr; });
  same([](pkv_hits& h) { h.rest_lse = nullptr; });
  same([](pkv_hits& h) { h.sample_estimates = nullptr; });
  same([](pkv_hits& h) {
    h = {h.struct_size, 0,       h.positions, nullptr, h.counts,
         nullptr,       nullptr, nullptr,     nullptr, nullptr};
  });
}

TEST_CASE("retrieve: a pointer that is needed is named, and nothing is written") {
  Machine machine;
  Zone zone({120}, 2, 120, 16, 16);
  for (const char* tail : {"drop", "mean", "sampled", "sketch2"}) {
    const Config config = config_of({{"head_dim", "16"}, {"k", "5"}, {"tail", tail}});
    const auto index = index_with(machine, config, 2, zone, 128);
    Array query({1, 4, 16});
    const auto refused = [&](const char* name, auto clear) {
      Step step(machine, index, config, {0}, 4);
      clear(step.hits);
      check_refused(step.retrieve(query), absl::StatusCode::kInvalidArgument,
                    {std::string("hits.") + name});
      CHECK(step.positions->is_untouched());
      CHECK(step.counts->is_untouched());
    };
    refused("positions", [](pkv_hits& h) { h.positions = nullptr; });
    refused("counts", [](pkv_hits& h) { h.counts = nullptr; });
    refused("flags", [](pkv_hits& h) { h.flags = 1; });
    if (std::string(tail) == "drop") continue;
    refused("candidates", [](pkv_hits& h) { h.candidates = nullptr; });
    refused("candidate_counts", [](pkv_hits& h) { h.candidate_counts = nullptr; });
    refused("estimates", [](pkv_hits& h) { h.estimates = nullptr; });
    refused("rest_lse", [](pkv_hits& h) { h.rest_lse = nullptr; });
    if (std::string(tail) == "mean") {
      Step step(machine, index, config, {0}, 4);
      step.hits.sample_estimates = nullptr;
      require_ok(step.retrieve(query));
      continue;
    }
    refused("sample_estimates", [](pkv_hits& h) { h.sample_estimates = nullptr; });
  }
}

TEST_CASE("retrieve: the query is checked by name") {
  Machine machine;
  const Config config = config_of({{"head_dim", "16"}, {"k", "5"}});
  Zone zone({20}, 2, 20, 16, 16);
  Step step(machine, index_with(machine, config, 2, zone, 32), config, {0}, 4);
  Array batch({2, 4, 16}), heads({1, 2, 16}), dim({1, 4, 24});
  for (Array* wrong : {&batch, &heads, &dim}) {
    check_refused(step.retrieve(*wrong), absl::StatusCode::kInvalidArgument, {"query: axis"});
  }
  Array query({1, 4, 16});
  pkv_tensor tensor = query.tensor();
  tensor.ndim = 2;
  check_refused(retrieve(*step.plan, machine.stream, tensor, step.scratch_memory(), step.hits),
                absl::StatusCode::kInvalidArgument, {"query", "ndim=2"});
  Machine other;
  check_refused(
      retrieve(*step.plan, other.stream, query.tensor(), step.scratch_memory(), step.hits),
      absl::StatusCode::kInvalidArgument, {"stream", "another device"});
}

TEST_CASE("retrieve: k above n, the result ends in filler and nothing lies behind it") {
  Machine machine;
  for (const int64_t n : {1, 8, 100}) {
    for (const int64_t k : {n, n + 1, int64_t{100}}) {
      CAPTURE(n);
      CAPTURE(k);
      const Config config = config_of({{"head_dim", "8"}, {"k", std::to_string(k)}});
      Zone zone({n}, 1, n, 8, 8);
      Step step(machine, index_with(machine, config, 1, zone, n), config, {0}, 1);
      Array query({1, 1, 8});
      fill_random(query.numbers(), 5);
      require_ok(step.retrieve(query));
      CHECK(step.guards_hold());
      const int64_t count = std::min(n, k);
      CHECK(step.counts->values()[0] == count);
      const auto positions = step.positions->values();
      const auto scores = step.scores->values();
      const std::set<int32_t> found(positions.begin(), positions.begin() + count);
      CHECK(static_cast<int64_t>(found.size()) == count);
      CHECK(*found.begin() == 0);
      CHECK(*found.rbegin() == n - 1);
      for (int64_t i = count; i < k; ++i) {
        CHECK(positions[static_cast<std::size_t>(i)] == -1);
        CHECK(scores[static_cast<std::size_t>(i)] == -kInf);
      }
    }
  }
}

TEST_CASE("retrieve: no entries, no hits, no keys: success with counts of 0") {
  Machine machine;
  for (const char* vote : {"tier", "graded"}) {
    const Config none =
        config_of({{"head_dim", "8"}, {"k", "0"}, {"vote", vote}, {"tail", "drop"}});
    Zone zone({20, 0}, 1, 20, 8, 8);
    const auto index = index_with(machine, none, 1, zone, 32);
    // k = 0: no positions, no scores.
    Step no_hits(machine, index, none, {0, 1}, 2);
    Array query({2, 2, 8});
    fill_random(query.numbers(), 5);
    no_hits.hits.positions = nullptr;
    no_hits.hits.scores = nullptr;
    require_ok(no_hits.retrieve(query));
    CHECK(no_hits.counts->values() == std::vector<int32_t>{0, 0});
    require_ok(no_hits.fetch(zone));

    // n = 0: an index without a single token.
    const Config some = config_of({{"head_dim", "8"}, {"k", "5"}, {"vote", vote}});
    const auto empty = value_of(Index::create(machine.device, codec_of(machine, some, 1), 2, 32));
    Step no_keys(machine, empty, some, {0, 1}, 2);
    require_ok(no_keys.retrieve(query));
    CHECK(no_keys.counts->values() == std::vector<int32_t>{0, 0});
    CHECK(no_keys.candidate_counts->values() == std::vector<int32_t>{0, 0});
    CHECK(no_keys.positions->values() == std::vector<int32_t>(10, -1));
    for (const float rest : no_keys.rest_lse->values()) CHECK(rest == -kInf);

    // b = 0: nothing to write, nothing to give.
    Step no_entries(machine, index, none, {}, 2);
    pkv_tensor nothing{};
    const int64_t shape[3] = {0, 2, 8};
    nothing.ndim = 3;
    nothing.dtype = PKV_DTYPE_F32;
    nothing.shape = shape;
    const pkv_hits no_memory{};
    require_ok(retrieve(*no_entries.plan, machine.stream, nothing, no_entries.scratch_memory(),
                        no_memory));
  }
}

TEST_CASE("retrieve: a plan that was outgrown says so, and writes nothing") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"k", "5"}});
  Zone zone({20}, 1, 20, 8, 8);
  const auto index = index_with(machine, config, 1, zone, 32);
  pkv_plan_desc desc{};
  desc.batch = 1;
  desc.query_heads = 1;
  desc.max_tokens = 19;
  Step step(machine, index, config, {0}, 1);
  step.plan = value_of(Plan::create(index, config, desc));
  Array query({1, 1, 8});
  check_refused(step.retrieve(query), absl::StatusCode::kFailedPrecondition,
                {"sequence 0", "20", "max_tokens=19"});
  CHECK(step.counts->is_untouched());
}

TEST_CASE(
    "retrieve: the lengths are those of the call, also for a plan made before the keys came") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"k", "50"}, {"tail", "mean"}});
  Zone zone({20, 20, 20}, 1, 20, 8, 8);
  const auto index = value_of(Index::create(machine.device, codec_of(machine, config, 1), 3, 32));
  for (const std::vector<int32_t>& sequences :
       {std::vector<int32_t>{0, 1, 2}, std::vector<int32_t>{2, 0, 1}}) {
    Step step(machine, index, config, sequences, 1);
    Array query({3, 1, 8});
    fill_random(query.numbers(), 5);
    for (int32_t s = 0; s < 3; ++s) {
      require_ok(index->reset(machine.stream, s));
      Zone::View keys;
      Zone::view(zone.keys, static_cast<std::size_t>(s), 0, 5 + s, keys);
      require_ok(index->append(machine.stream, s, keys.tensor, nullptr, Index::Mode::kEnqueue));
    }
    require_ok(step.retrieve(query));
    const auto counts = step.counts->values();
    for (std::size_t i = 0; i < 3; ++i) CHECK(counts[i] == 5 + sequences[i]);
  }
}

TEST_CASE("retrieve: a bad query empties its row and leaves the others alone") {
  Machine machine;
  const Config config = config_of({{"head_dim", "8"}, {"k", "5"}, {"tail", "drop"}});
  Zone zone({20, 20, 20}, 1, 20, 8, 8);
  const auto index = index_with(machine, config, 1, zone, 32);
  Array query({3, 2, 8});
  fill_random(query.numbers(), 5);
  Step good(machine, index, config, {0, 1, 2}, 2);
  require_ok(good.retrieve(query));
  query.numbers()[16 + 3] = kNan;
  Step bad(machine, index, config, {0, 1, 2}, 2);
  require_ok(bad.retrieve(query));
  CHECK(bad.counts->values() == std::vector<int32_t>{5, 0, 5});
  for (const std::size_t i : {0, 2}) {
    CHECK(part_of(bad.positions->values(), i, 3) == part_of(good.positions->values(), i, 3));
  }
}

TEST_CASE("retrieve: one plan serves several threads, each with scratch of its own") {
  Machine machine;
  const Config config = config_of({{"head_dim", "16"}, {"k", "7"}, {"vote", "tier"}});
  Zone zone({150, 20}, 2, 150, 16, 16);
  const auto index = index_with(machine, config, 2, zone, 300);
  Array query({2, 4, 16});
  fill_random(query.numbers(), 5);
  Step reference(machine, index, config, {1, 0}, 4);
  require_ok(reference.retrieve(query));
  std::atomic<int> equal = 0;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    steps.push_back(std::make_unique<Step>(machine, index, config, std::vector<int32_t>{1, 0}, 4));
  }
  for (const auto& step : steps) {
    threads.emplace_back([&, own = step.get()] {
      const auto stream = Stream::create(machine.device);
      for (int i = 0; i < 20; ++i) {
        const absl::Status status =
            retrieve(*reference.plan, *stream, query.tensor(), own->scratch_memory(), own->hits);
        if (status.ok() && own->positions->values() == reference.positions->values()) ++equal;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(equal == 80);
}

TEST_CASE("retrieve: what lies in scratch before does not matter") {
  Machine machine;
  const Config config = config_of({{"head_dim", "16"}, {"k", "7"}, {"vote", "tier"}});
  Zone zone({150, 20}, 2, 150, 16, 16);
  const auto index = index_with(machine, config, 2, zone, 300);
  Array query({2, 4, 16});
  fill_random(query.numbers(), 5);
  std::vector<std::vector<int32_t>> results;
  for (const char poison : {'\x00', '\xff', '\x7f'}) {
    Step step(machine, index, config, {1, 0}, 4);
    std::fill(step.scratch.begin(), step.scratch.end(), poison);
    require_ok(step.retrieve(query));
    results.push_back(step.positions->values());
    // Nothing behind the bytes announced.
    const auto* end = static_cast<char*>(step.scratch_memory()) + step.plan->scratch_bytes();
    CHECK(std::all_of(end, static_cast<const char*>(step.scratch.data() + step.scratch.size()),
                      [poison](char c) { return c == poison; }));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

}  // namespace pkv::test
