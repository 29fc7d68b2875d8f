// The arithmetic of eval and inspect on cases that can be counted by hand.
#include <doctest/doctest.h>

#include <vector>

#include "tools/eval_options.h"
#include "tools/exact.h"
#include "tools/inspect_trace.h"
#include "tools/judge.h"
#include "tools/zone.h"

namespace pkv::cli {
namespace {

TEST_CASE("zone: sink, zone and window never overlap, and cover what the query sees") {
  for (const int64_t position : {0, 3, 4, 5, 11, 12, 13, 1000}) {
    const Regions regions = regions_at(position, /*sink=*/4, /*local=*/8);
    CHECK(regions.tokens == position + 1);
    CHECK(0 <= regions.sink_end);
    CHECK(regions.sink_end <= regions.zone_end);
    CHECK(regions.zone_end <= regions.tokens);
  }
  CHECK(regions_at(10, 4, 8).zone_tokens() == 0);
  CHECK(regions_at(11, 4, 8).zone_tokens() == 0);
  CHECK(regions_at(12, 4, 8).zone_tokens() == 1);
  CHECK(regions_at(12, 4, 8).sink_end == 4);
  CHECK(regions_at(2, 4, 8).sink_end == 3);
  CHECK(regions_at(9, 0, 0).zone_tokens() == 10);
}

TEST_CASE("exact: the best first, equal scores by the smaller position") {
  const std::vector<double> scores = {1, 3, 2, 3, -5, 3};
  CHECK(best_positions(scores, 4) == std::vector<int32_t>{1, 3, 5, 2});
  CHECK(best_positions(scores, 2) == std::vector<int32_t>{1, 3});
  CHECK(best_positions(scores, 0).empty());
  CHECK(best_positions(scores, 99).size() == 6);
  CHECK(best_positions({}, 3).empty());
}

TEST_CASE("judge: the share of the wanted that was found") {
  const std::vector<int32_t> wanted = {9, 2, 5, 7};
  CHECK(share_found(wanted, std::vector<int32_t>{2, 3, 4, 9}) == 0.5);
  CHECK(share_found(wanted, std::vector<int32_t>{}) == 0);
  CHECK(share_found(wanted, wanted) == 1);
}

TEST_CASE("judge: a mean over nothing is nothing") {
  Mean mean;
  CHECK(!mean.value());
  mean.add(1);
  mean.add(4);
  CHECK(mean.value() == 2.5);
}

TEST_CASE("inspect: ties count where the cut goes through them") {
  const std::vector<float> votes = {5, 3, 3, 3, 1};
  CHECK(tied_share(votes, std::vector<int32_t>{0, 1}) == 0.5);  // 3 was taken once of three times
  CHECK(tied_share(votes, std::vector<int32_t>{0, 1, 2}) == doctest::Approx(2.0 / 3));
  CHECK(tied_share(votes, std::vector<int32_t>{0, 1, 2, 3}) == 0);  // all of them: no choice
  CHECK(tied_share(votes, std::vector<int32_t>{0}) == 0);
  CHECK(tied_share(votes, {}) == 0);
  CHECK(tied_share(std::vector<float>(6, 2.0F), std::vector<int32_t>{0, 1}) == 1);
}

TEST_CASE("inspect: how many patterns occur, and the share of the most frequent") {
  std::vector<int32_t> counts(512, 0);
  counts[3] = 10;
  counts[256 + 7] = 6;
  counts[256 + 8] = 4;
  const PatternFigures figures = pattern_figures(counts, 10);
  CHECK(figures.used == doctest::Approx(3.0 / 512));
  CHECK(figures.largest == 1);
  CHECK(pattern_figures(counts, 0).largest == 0);
}

TEST_CASE("eval: ranges of seeds") {
  CHECK(*parse_seeds("7") == std::vector<std::string>{"7"});
  CHECK(*parse_seeds("7..9") == std::vector<std::string>{"7", "8", "9"});
  CHECK(parse_seeds("9223372036854775807")->size() == 1);
  CHECK(parse_seeds("0..999")->size() == 1000);
  for (const char* text : {"", "9..7", "0..1000", "-1", "1..", "..2", "1...3", "1-2", "a..b",
                           "0..18446744073709551615"}) {
    CHECK(!parse_seeds(text).ok());
  }
}

}  // namespace
}  // namespace pkv::cli
