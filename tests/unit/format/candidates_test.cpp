// docs/algorithm.md, section 5; the schedules, section 1.
#include "core/format/candidates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

namespace pkv::format {
namespace {

constexpr int64_t kLongest = 2147483647;

TEST_CASE("candidates: the default schedule at its boundaries") {
  constexpr pkv_candidate_rule kRule = candidate_rule(kDefaultSchedule, 100);
  CHECK(candidate_ppm(kRule, 0) == 100000);
  CHECK(candidate_ppm(kRule, 16383) == 100000);
  CHECK(candidate_ppm(kRule, 16384) == 50000);
  CHECK(candidate_ppm(kRule, 32767) == 50000);
  CHECK(candidate_ppm(kRule, 32768) == 20000);
  CHECK(candidate_ppm(kRule, 131071) == 20000);
  CHECK(candidate_ppm(kRule, 131072) == 10000);
  CHECK(candidate_ppm(kRule, kLongest) == 10000);
  CHECK(candidate_count(kRule, 16383) == 1639);         // ceil(1638.3)
  CHECK(candidate_count(kRule, 16384) == 820);          // ceil(819.2)
  CHECK(candidate_count(kRule, 32767) == 1639);         // ceil(1638.35)
  CHECK(candidate_count(kRule, 32768) == 656);          // ceil(655.36)
  CHECK(candidate_count(kRule, 131071) == 2622);        // ceil(2621.42)
  CHECK(candidate_count(kRule, 131072) == 1311);        // ceil(1310.72)
  CHECK(candidate_count(kRule, kLongest) == 21474837);  // ceil(21474836.47)
}

TEST_CASE("candidates: the paper's schedule at its boundary") {
  constexpr pkv_candidate_rule kRule = candidate_rule(kPaperSchedule, 100);
  CHECK(candidate_ppm(kRule, 131071) == 100000);
  CHECK(candidate_ppm(kRule, 131072) == 50000);
  CHECK(candidate_count(kRule, 131071) == 13108);  // ceil(13107.1)
  CHECK(candidate_count(kRule, 131072) == 6554);   // ceil(6553.6)
}

TEST_CASE("candidates: never fewer than min(k, n), never more than n") {
  const pkv_candidate_rule rule = candidate_rule(20000, 100);
  CHECK(candidate_count(rule, 0) == 0);
  CHECK(candidate_count(rule, 1) == 1);
  CHECK(candidate_count(rule, 99) == 99);
  CHECK(candidate_count(rule, 100) == 100);
  CHECK(candidate_count(rule, 101) == 100);
  CHECK(candidate_count(rule, 5000) == 100);
  CHECK(candidate_count(rule, 5001) == 101);  // ceil(100.02) passes k
  CHECK(candidate_count(candidate_rule(0, 0), 1000) == 0);
  CHECK(candidate_count(candidate_rule(1000000, 0), 1000) == 1000);
}

TEST_CASE("candidates: the share is rounded up, at every size") {
  const pkv_candidate_rule rule = candidate_rule(1, 0);
  CHECK(candidate_count(rule, 1) == 1);
  CHECK(candidate_count(rule, 1000000) == 1);
  CHECK(candidate_count(rule, 1000001) == 2);
  CHECK(candidate_count(candidate_rule(1000000, 0), kLongest) == kLongest);
  CHECK(candidate_count(candidate_rule(999999, 0), kLongest) == 2147481500);  // ceil(..499.353)
}

TEST_CASE("candidates: anything with the fields of a rule will do") {
  struct Rule {
    int64_t below[1];
    int64_t ppm[1];
    int32_t k;
    int32_t steps;
  };
  CHECK(candidate_count(Rule{{INT64_MAX}, {500000}, 1, 1}, 9) == 5);
}

TEST_CASE("candidates: a share becomes rint(share * 10^6), at least 1") {
  CHECK(share_ppm(1.0) == 1000000);
  CHECK(share_ppm(0.05) == 50000);
  CHECK(share_ppm(1e-12) == 1);
  CHECK(share_ppm(0x1p-64) == 1);
  int ties = 0;
  for (int i = 1; i <= 2000000; ++i) {
    const double share = i * 0.5e-6;  // halves of a millionth: many products are exact ties
    const double exact = share * 1e6;
    ties += exact - std::floor(exact) == 0.5 ? 1 : 0;
    const auto wanted = static_cast<int64_t>(std::rint(exact));
    if (share_ppm(share) != (wanted < 1 ? 1 : wanted)) FAIL("share ", share);
  }
  CHECK(ties > 100000);
}

}  // namespace
}  // namespace pkv::format
