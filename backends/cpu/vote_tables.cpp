// Tables of the graded vote. docs/algorithm.md, section 4.2. Exact: fp32 as written, then integers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/rint.h"
#include "backends/cpu/vote.h"
#include "core/format/records.h"

namespace pkv::cpu {
namespace {

constexpr int32_t kPadding = 4;  // subspaces of the widest vector

// 4.2: A = max over the vectors and subspaces of fold(|y_j|, j in b).
float largest_subspace(const float* vectors, int64_t subspaces) {
  float A = 0.0F;
  for (int64_t b = 0; b < subspaces; ++b) {
    const float* y = vectors + 8 * b;
    const auto m = [y](int j) { return std::fabs(y[j]); };
    A = std::max(A, ((m(0) + m(4)) + (m(2) + m(6))) + ((m(1) + m(5)) + (m(3) + m(7))));
  }
  return A;
}

// table[16] = bias + sum_j (+-1) * z_j, plus where bit j is 1
void fill_nibble(const int32_t* z, int32_t bias, uint8_t* table) {
  for (int32_t p = 0; p < 16; ++p) {
    int32_t sum = bias;
    for (int32_t j = 0; j < 4; ++j) sum += ((p >> j) & 1) != 0 ? z[j] : -z[j];
    table[p] = static_cast<uint8_t>(sum);
  }
}

}  // namespace

VoteTables take_vote_tables(Scratch& scratch, const pkv_vote_args& args) {
  const pkv_geometry& geometry = *args.codec.geometry;
  VoteTables tables{};
  tables.subspaces = geometry.head_dim / format::kSubspace;
  tables.padded = static_cast<int32_t>(round_up(tables.subspaces, kPadding));
  tables.vectors =
      args.vote_group == PKV_VOTE_GROUP_HEADS ? args.query_heads / geometry.kv_heads : 1;
  if (geometry.vote == PKV_VOTE_GRADED) {
    const int64_t bytes = int64_t{tables.vectors} * tables.padded * 16;
    tables.low = scratch.take<uint8_t>(bytes);
    tables.high = scratch.take<uint8_t>(bytes);
  } else {
    tables.points = scratch.take<uint8_t>(int64_t{tables.subspaces} * format::kCentroids);
  }
  return tables;
}

void fill_vote_tables(const pkv_vote_args& args, const RowQuery& query, int64_t row,
                      const VoteTables& tables) {
  if (args.codec.geometry->vote == PKV_VOTE_TIER) {
    fill_tier_tables(args, query, row, tables);
    return;
  }
  const float* y = args.vote_group == PKV_VOTE_GROUP_HEADS ? query.heads : query.sum;
  const float A = largest_subspace(y, int64_t{tables.vectors} * tables.subspaces);
  for (int32_t v = 0; v < tables.vectors; ++v) {
    uint8_t* low = tables.low + int64_t{v} * tables.padded * 16;
    uint8_t* high = tables.high + int64_t{v} * tables.padded * 16;
    for (int32_t b = 0; b < tables.padded; ++b, low += 16, high += 16) {
      if (b >= tables.subspaces) {
        std::memset(low, 0, 16);
        std::memset(high, 0, 16);
        continue;
      }
      int32_t z[8];
      for (int32_t j = 0; j < 8; ++j) {
        z[j] = A == 0.0F ? 0 : static_cast<int32_t>(rint_small((123.0F * y[j]) / A));
      }
      fill_nibble(z, 127, low);
      fill_nibble(z + 4, 0, high);
      y += 8;
    }
  }
}

}  // namespace pkv::cpu
