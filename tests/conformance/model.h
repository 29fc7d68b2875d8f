// What judges need to know of the numbers, in double: sizes of terms, and where samples lie. The
// rotation and the levels stand here once more, from docs/algorithm.md, sections 2.3 and 3.4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/conformance/world.h"

namespace pkv::conformance {

// g of <rotate(a), rotate(b)> = g <a, b>.
double rotation_gain(const pkv_geometry& geometry);

// rotate(x) with the key streams.
std::vector<double> rotate(const Codec& codec, std::span<const double> x);

// unrotate(y) with the value streams: the inverse, gain included.
std::vector<double> unrotate_value(const Codec& codec, std::vector<double> y);

// Positions of the samples of a row of n keys (6.4); `most` is T.
std::vector<int32_t> sample_positions(const pkv_geometry& geometry, int64_t n, int32_t most);

// Whether the queries of a row's heads are bad (4.4): [G, d] of the KV head.
bool is_bad_query(const Codec& codec, int32_t kv_head, std::span<const float> queries);

// Whether a key is bad: its first factor is NaN (3.6).
bool is_bad(const pkv_geometry& geometry, const Records& row, int64_t position);
// Factors of a key.
int32_t factors_per_key(const pkv_geometry& geometry);

// For one KV head and one query head: sum |terms| of the estimate of each key (numerics.md, 3).
class EstimateSizes {
 public:
  EstimateSizes(const Codec& codec, int32_t kv_head, std::span<const float> query);

  // polar4: A_g of a key.
  double polar(const Records& row, int64_t position) const;

 private:
  const Codec& codec_;
  std::vector<double> rotated_;  // |q'_g,j|
  double base_ = 0.0;            // sum |q_j mu_j|
};

// Of the value sketch at a position that has one: w_v * sign * a[code], still rotated.
std::vector<double> sketch_of(const Codec& codec, const Records& row, int64_t position);
// No element of its unrotated value is larger: ||w_v a|| / sqrt(g).
double sketch_size(const Codec& codec, const std::vector<double>& sketch);

}  // namespace pkv::conformance
