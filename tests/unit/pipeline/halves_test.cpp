// The halves of a retrieve on plans: vote, candidates of the caller's choosing, rerank.
#include <algorithm>
#include <cstring>

#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {
namespace {

absl::Status rerank(Step& step, Array& query) {
  return pkv::rerank(*step.plan, step.machine.stream, query.tensor(), step.scratch_memory(),
                     step.hits);
}

// The `wanted` keys with the best votes of a row of n, ascending.
std::vector<int32_t> best_of(const float* votes, int64_t n, std::size_t wanted) {
  std::vector<int32_t> order(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return votes[a] > votes[b]; });
  order.resize(std::min(wanted, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

TEST_CASE("halves: vote, the best of it, rerank: what retrieve finds, for every tail") {
  Machine machine;
  for (const char* tail : {"drop", "mean", "sampled", "sketch2"}) {
    for (const std::vector<int32_t>& sequences :
         {std::vector<int32_t>{0, 1}, std::vector<int32_t>{3, 0, 0}}) {
      CAPTURE(tail);
      CAPTURE(sequences.size());
      const Config config = config_of({{"head_dim", "16"},
                                       {"value_dim", "8"},
                                       {"tail", tail},
                                       {"k", "7"},
                                       {"candidates", "0.2"}});
      Zone zone({50, 300, 0, 77}, 2, 300, 16, 8);
      const auto index = index_with(machine, config, 2, zone, 300);
      const auto b = static_cast<int64_t>(sequences.size());
      Array query({b, 4, 16});
      fill_random(query.numbers(), 5);
      Step whole(machine, index, config, sequences, 4);
      require_ok(whole.retrieve(query));

      Step halves(machine, index, config, sequences, 4);
      constexpr int64_t kStride = 320;
      Guarded<float> votes(b * 2 * kStride);
      require_ok(pkv::vote(*halves.plan, machine.stream, query.tensor(), halves.scratch_memory(),
                           votes.data(), kStride));
      CHECK(votes.guards_hold());
      const int64_t c = halves.plan->candidates();
      for (int64_t row = 0; row < 2 * b; ++row) {
        const int64_t n =
            zone.lengths[static_cast<std::size_t>(sequences[static_cast<std::size_t>(row / 2)])];
        const int32_t wanted = whole.candidate_counts->values()[static_cast<std::size_t>(row)];
        const auto best =
            best_of(votes.data() + row * kStride, n, static_cast<std::size_t>(wanted));
        std::fill_n(halves.candidates->data() + row * c, c, -1);
        std::copy(best.begin(), best.end(), halves.candidates->data() + row * c);
        halves.candidate_counts->data()[row] = static_cast<int32_t>(best.size());
        if (n < kStride) {  // what lies behind the keys is not written
          uint32_t bits = 0;
          std::memcpy(&bits, votes.data() + row * kStride + n, sizeof bits);
          CHECK(bits == 0xaaaaaaaaU);
        }
      }
      CHECK(halves.candidates->values() == whole.candidates->values());
      require_ok(rerank(halves, query));
      CHECK(halves.guards_hold());
      CHECK(halves.positions->values() == whole.positions->values());
      CHECK(halves.counts->values() == whole.counts->values());
      const auto same = [](Guarded<float>& a, Guarded<float>& z) {
        const auto left = a.values(), right = z.values();
        return std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
      };
      CHECK(same(*halves.scores, *whole.scores));
      if (std::string(tail) == "drop") continue;
      CHECK(same(*halves.rest_lse, *whole.rest_lse));
    }
  }
}

TEST_CASE("halves: candidates may be any, and only what is asked for is written") {
  Machine machine;
  const Config config =
      config_of({{"head_dim", "16"}, {"k", "5"}, {"candidates", "0.1"}, {"tail", "drop"}});
  Zone zone({120}, 2, 120, 16, 16);
  const auto index = index_with(machine, config, 2, zone, 128);
  Array query({1, 4, 16});
  fill_random(query.numbers(), 5);
  Step step(machine, index, config, {0}, 4);
  const int64_t c = step.plan->candidates();
  std::fill_n(step.candidates->data(), 2 * c, -1);
  const int32_t chosen[3] = {3, 64, 119};
  std::copy_n(chosen, 3, step.candidates->data());
  step.candidate_counts->data()[0] = 3;
  step.candidate_counts->data()[1] = 0;
  step.hits.scores = nullptr;
  step.hits.estimates = nullptr;
  step.hits.rest_lse = nullptr;
  step.hits.sample_estimates = nullptr;
  require_ok(rerank(step, query));
  CHECK(step.guards_hold());
  CHECK(step.counts->values() == std::vector<int32_t>{3, 0});
  auto found = step.positions->values();
  CHECK(std::count(found.begin(), found.end(), -1) == 7);
  std::sort(found.begin(), found.begin() + 3);
  CHECK(std::equal(chosen, chosen + 3, found.begin()));
  CHECK(step.estimates->is_untouched());
  CHECK(step.scores->is_untouched());
}

TEST_CASE("halves: what is wrong is named, and nothing is written") {
  Machine machine;
  const Config config =
      config_of({{"head_dim", "16"}, {"k", "5"}, {"candidates", "0.1"}, {"tail", "drop"}});
  Zone zone({120}, 1, 120, 16, 16);
  const auto index = index_with(machine, config, 1, zone, 128);
  Array query({1, 4, 16});
  fill_random(query.numbers(), 5);
  const auto refused = [&](absl::StatusCode code, const char* text, auto change) {
    CAPTURE(text);
    Step step(machine, index, config, {0}, 4);
    std::fill_n(step.candidates->data(), step.plan->candidates(), -1);
    const int32_t chosen[3] = {3, 64, 119};
    std::copy_n(chosen, 3, step.candidates->data());
    step.candidate_counts->data()[0] = 3;
    change(step);
    check_refused(rerank(step, query), code, {text});
    CHECK(step.positions->is_untouched());
    CHECK(step.counts->is_untouched());
  };
  using Code = absl::StatusCode;
  refused(Code::kOutOfRange, "candidates[0, 1]=3, accepted: 4..119",
          [](Step& s) { s.candidates->data()[1] = 3; });
  refused(Code::kOutOfRange, "candidates[0, 2]=120, accepted: 65..119",
          [](Step& s) { s.candidates->data()[2] = 120; });
  refused(Code::kOutOfRange, "candidates[0, 0]=-1", [](Step& s) { s.candidates->data()[0] = -1; });
  refused(Code::kOutOfRange, "candidate_counts[0]=14, accepted: 0..13",
          [](Step& s) { s.candidate_counts->data()[0] = 14; });
  refused(Code::kInvalidArgument, "hits.candidates", [](Step& s) { s.hits.candidates = nullptr; });
  refused(Code::kInvalidArgument, "hits.candidate_counts",
          [](Step& s) { s.hits.candidate_counts = nullptr; });
  refused(Code::kInvalidArgument, "hits.positions", [](Step& s) { s.hits.positions = nullptr; });
  refused(Code::kInvalidArgument, "hits.counts", [](Step& s) { s.hits.counts = nullptr; });
  refused(Code::kInvalidArgument, "hits.flags", [](Step& s) { s.hits.flags = 1; });

  Step step(machine, index, config, {0}, 4);
  Guarded<float> votes(128);
  check_refused(pkv::vote(*step.plan, machine.stream, query.tensor(), step.scratch_memory(),
                          votes.data(), 127),
                Code::kInvalidArgument, {"stride=127, accepted: 128"});
  Array other({2, 4, 16});
  check_refused(pkv::vote(*step.plan, machine.stream, other.tensor(), step.scratch_memory(),
                          votes.data(), 128),
                Code::kInvalidArgument, {"query"});
  CHECK(votes.is_untouched());
}

}  // namespace pkv::test
