// Boundaries of the tier vote. docs/algorithm.md, section 4.3; ParisKV (arXiv:2602.07721).
#pragma once

#include <cstdint>

#include "core/format/config.h"

namespace pkv::format {

inline constexpr int kTiers = 6;                               // points of one subspace: 0..6
inline constexpr int kTau[kTiers] = {5, 15, 30, 50, 75, 100};  // percent of the boundary at rho

// rho, in percent, for a row of n keys.
PKV_HD constexpr int tier_rho_percent(int64_t n) {
  if (n < 5000) return 50;
  if (n < 10000) return 30;
  if (n < 30000) return 25;
  return 20;
}

// ceil(n * rho * tau / 10^4), rho and tau in percent, 0 <= n < 2^31. A pattern with fewer keys
// before it has a point of this tier.
PKV_HD constexpr int64_t tier_boundary(int64_t n, int rho, int tau) {
  constexpr int64_t kWhole = 10000;
  return (n * rho * tau + (kWhole - 1)) / kWhole;
}

}  // namespace pkv::format
