// The tier vote's tables: points of each pattern. docs/algorithm.md, section 4.3; ParisKV
// (arXiv:2602.07721). Exact: fp32 as written, then integers.
#include <algorithm>

#include "backends/cpu/vote.h"
#include "core/format/tier.h"

namespace pkv::cpu {
namespace {

constexpr int32_t kPatterns = format::kCentroids;

// m[p] = fold(+-y_j), plus where bit j of p is 1.
void pattern_sums(const float* y, float* m) {
  for (int32_t p = 0; p < kPatterns; ++p) {
    const auto x = [y, p](int32_t j) { return ((p >> j) & 1) != 0 ? y[j] : -y[j]; };
    m[p] = ((x(0) + x(4)) + (x(2) + x(6))) + ((x(1) + x(5)) + (x(3) + x(7)));
  }
}

// `occupancy` and `points` [256], one subspace.
void fill_points(const float* y, const int32_t* occupancy, int32_t rho_of, uint8_t* points) {
  float m[kPatterns];
  uint8_t order[kPatterns];
  pattern_sums(y, m);
  int64_t n = 0;  // good keys
  for (int32_t p = 0; p < kPatterns; ++p) {
    order[p] = static_cast<uint8_t>(p);
    n += occupancy[p];
  }
  std::sort(order, order + kPatterns,
            [&m](uint8_t a, uint8_t b) { return m[a] != m[b] ? m[a] > m[b] : a < b; });

  const int32_t rho = format::tier_rho_percent(n);
  const bool of_keys = rho_of == PKV_RHO_OF_KEYS;
  int64_t boundaries[format::kTiers];
  for (int32_t i = 0; i < format::kTiers; ++i) {
    boundaries[i] = format::tier_boundary(of_keys ? n : kPatterns, rho, format::kTau[i]);
  }
  int64_t before = 0;  // P_p
  for (const uint8_t p : order) {
    int32_t count = 0;
    for (const int64_t boundary : boundaries) count += before < boundary ? 1 : 0;
    points[p] = static_cast<uint8_t>(count);
    before += of_keys ? occupancy[p] : 1;
  }
}

}  // namespace

void fill_tier_tables(const pkv_vote_args& args, const RowQuery& query, int64_t row,
                      const VoteTables& tables) {
  for (int32_t b = 0; b < tables.subspaces; ++b) {
    fill_points(query.sum + 8 * b, args.occupancy + (row * tables.subspaces + b) * kPatterns,
                args.rho_of, tables.points + int64_t{b} * kPatterns);
  }
}

void tier_group(const VoteTables& tables, const uint8_t* group, uint16_t* sums) {
  std::fill_n(sums, kGroupKeys, uint16_t{0});
  for (int32_t b = 0; b < tables.subspaces; ++b) {
    const uint8_t* points = tables.points + int64_t{b} * kPatterns;
    const uint8_t* bytes = group + b * kGroupKeys;
    for (int64_t key = 0; key < kGroupKeys; ++key) {
      sums[key] = static_cast<uint16_t>(sums[key] + points[bytes[key]]);
    }
  }
}

}  // namespace pkv::cpu
