// docs/algorithm.md, section 4.3.
#include "core/format/tier.h"

#include <doctest/doctest.h>

#include <cstdint>

namespace pkv::format {
namespace {

TEST_CASE("tier: rho at its boundaries") {
  CHECK(tier_rho_percent(0) == 50);
  CHECK(tier_rho_percent(4999) == 50);
  CHECK(tier_rho_percent(5000) == 30);
  CHECK(tier_rho_percent(9999) == 30);
  CHECK(tier_rho_percent(10000) == 25);
  CHECK(tier_rho_percent(29999) == 25);
  CHECK(tier_rho_percent(30000) == 20);
  CHECK(tier_rho_percent(2147483647) == 20);
}

TEST_CASE("tier: boundaries are rounded up") {
  CHECK(tier_boundary(0, 50, 100) == 0);
  CHECK(tier_boundary(1, 50, 5) == 1);       // 0.025
  CHECK(tier_boundary(400, 50, 5) == 10);    // exact
  CHECK(tier_boundary(401, 50, 5) == 11);    // 10.025
  CHECK(tier_boundary(256, 20, 100) == 52);  // centroids: 51.2
  CHECK(tier_boundary(256, 50, 5) == 7);     // 6.4
}

TEST_CASE("tier: the longest row fits") {
  CHECK(tier_boundary(2147483647, 50, 100) == 1073741824);  // ceil(1073741823.5)
  CHECK(tier_boundary(2147483647, 20, 5) == 21474837);      // ceil(21474836.47)
}

TEST_CASE("tier: six shares of rho, ascending to the whole") {
  const int wanted[] = {5, 15, 30, 50, 75, 100};
  for (int i = 0; i < kTiers; ++i) CHECK(kTau[i] == wanted[i]);
  // 30,000 keys, rho 20: 6,000 keys in the last tier.
  const int64_t boundaries[] = {300, 900, 1800, 3000, 4500, 6000};
  for (int i = 0; i < kTiers; ++i) {
    CHECK(tier_boundary(30000, tier_rho_percent(30000), kTau[i]) == boundaries[i]);
  }
}

}  // namespace
}  // namespace pkv::format
