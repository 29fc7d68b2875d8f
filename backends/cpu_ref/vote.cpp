// Stage vote: one number per key from its sign plane and vote factor. docs/algorithm.md, section 4.
// Both votes are a table per subspace, 256 integers each, and a sum over the subspaces.
// Exact: integer sums; fp32 as written.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu_ref/check.h"
#include "backends/cpu_ref/device.h"
#include "backends/cpu_ref/fold8.h"
#include "backends/cpu_ref/query.h"
#include "backends/cpu_ref/stages.h"
#include "backends/cpu_ref/store.h"
#include "core/format/fold.h"
#include "core/format/tier.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu_ref {
namespace {

constexpr int32_t kPatterns = format::kCentroids;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Temporaries {
  RowQuery query;
  int32_t tables_count;  // vectors that vote: G with vote_group = heads, else 1
  int32_t* tables;       // [tables_count, S, 256]
};

Temporaries take_temporaries(Scratch& scratch, const pkv_vote_args& a) {
  const pkv_geometry& geometry = *a.codec.geometry;
  Temporaries result = {};
  result.query = take_row_query(scratch, geometry, a.query_heads);
  result.tables_count = a.vote_group == PKV_VOTE_GROUP_HEADS ? result.query.group : 1;
  result.tables =
      scratch.take<int32_t>(int64_t{result.tables_count} * (geometry.head_dim / 8) * kPatterns);
  return result;
}

pkv_status supports(pkv_backend_device* device, const pkv_vote_args* args) {
  const pkv_host* host = device->host;
  const pkv_geometry& geometry = *args->codec.geometry;
  pkv_status status = check_geometry(host, geometry);
  if (status != PKV_OK) return status;
  status = check_group(host, args->query_heads, geometry.kv_heads);
  if (status != PKV_OK) return status;
  status = check_floats(host, "queries", args->queries);
  if (status != PKV_OK) return status;
  status = check_range(host, "max_length", args->batch.max_length, 0, format::kMaxTokens);
  if (status != PKV_OK) return status;
  if (geometry.vote == PKV_VOTE_TIER) {
    status = check_range(host, "vote=tier with vote_group", args->vote_group, PKV_VOTE_GROUP_SUM,
                         PKV_VOTE_GROUP_SUM);
    if (status != PKV_OK) return status;
    return check_range(host, "rho_of", args->rho_of, PKV_RHO_OF_KEYS, PKV_RHO_OF_CENTROIDS);
  }
  return check_range(host, "vote_group", args->vote_group, PKV_VOTE_GROUP_SUM,
                     PKV_VOTE_GROUP_HEADS);
}

pkv_status scratch_bytes(pkv_backend_device* /*device*/, const pkv_vote_args* args, int64_t* out) {
  Scratch scratch(nullptr);
  take_temporaries(scratch, *args);
  *out = scratch.bytes();
  return PKV_OK;
}

// Plus where the bit of the coordinate is 1, minus where it is 0.
template <class Value>
Value signed_by(int32_t pattern, int32_t j, Value value) {
  return ((pattern >> j) & 1) != 0 ? value : -value;
}

// 4.2: A = max over the vectors and subspaces of fold(|y_j|, j in b).
float largest_subspace(const float* vectors, int32_t count, int32_t d) {
  float A = 0.0F;
  for (int64_t b = 0; b < int64_t{count} * (d / 8); ++b) {
    const float* y = vectors + 8 * b;
    A = std::max(A, fold8([y](int j) { return std::fabs(y[j]); }));
  }
  return A;
}

// 4.2: the table of one subspace, sum_j (+-1) * z_j for each of the 256 patterns.
void graded_table(const float* y, float A, int32_t* table) {
  int32_t z[8];
  for (int32_t j = 0; j < 8; ++j) {
    z[j] = A == 0.0F ? 0 : static_cast<int32_t>(std::rint((123.0F * y[j]) / A));
  }
  for (int32_t p = 0; p < kPatterns; ++p) {
    table[p] = 0;
    for (int32_t j = 0; j < 8; ++j) table[p] += signed_by(p, j, z[j]);
  }
}

// 4.3: the table of one subspace, the points of each pattern. `occupancy` [256].
void tier_table(const float* y, const int32_t* occupancy, int32_t rho_of, int32_t* table) {
  float m[kPatterns];
  int32_t order[kPatterns];
  int64_t n = 0;  // good keys
  for (int32_t p = 0; p < kPatterns; ++p) {
    m[p] = fold8([y, p](int j) { return signed_by(p, j, y[j]); });
    order[p] = p;
    n += occupancy[p];
  }
  std::sort(order, order + kPatterns,
            [&m](int32_t a, int32_t b) { return m[a] != m[b] ? m[a] > m[b] : a < b; });

  const int32_t rho = format::tier_rho_percent(n);
  const bool of_keys = rho_of == PKV_RHO_OF_KEYS;
  int64_t before = 0;  // P_p
  for (const int32_t p : order) {
    table[p] = 0;
    for (const int32_t tau : format::kTau) {
      if (before < format::tier_boundary(of_keys ? n : kPatterns, rho, tau)) ++table[p];
    }
    before += of_keys ? occupancy[p] : 1;
  }
}

// The largest sum of table entries that any of the tables gives the sign bytes of a key.
int32_t look_up(const Temporaries& temporaries, const uint8_t* signs, int32_t S) {
  int32_t t = std::numeric_limits<int32_t>::min();
  for (int32_t g = 0; g < temporaries.tables_count; ++g) {
    const int32_t* tables = temporaries.tables + int64_t{g} * S * kPatterns;
    int32_t sum = 0;
    for (int32_t b = 0; b < S; ++b) sum += tables[b * kPatterns + signs[b]];
    t = std::max(t, sum);
  }
  return t;
}

void vote_row(const pkv_vote_args& a, const Temporaries& temporaries, int64_t i, int32_t head) {
  const pkv_geometry& geometry = *a.codec.geometry;
  const int32_t d = geometry.head_dim;
  const int32_t S = d / 8;
  const int64_t r = int64_t{a.batch.sequences[i]} * geometry.kv_heads + head;
  const int64_t n = a.batch.lengths[i];
  float* votes = a.votes + (i * geometry.kv_heads + head) * a.votes_stride;

  // 4.4
  if (!prepare_query(a.codec, a.queries, i, head, temporaries.query)) {
    std::fill(votes, votes + n, kNan);
    return;
  }

  const bool is_graded = geometry.vote == PKV_VOTE_GRADED;
  const float* vectors =
      a.vote_group == PKV_VOTE_GROUP_HEADS ? temporaries.query.heads : temporaries.query.sum;
  const float A = largest_subspace(vectors, temporaries.tables_count, d);
  for (int64_t b = 0; b < int64_t{temporaries.tables_count} * S; ++b) {
    int32_t* table = temporaries.tables + b * kPatterns;
    if (is_graded) {
      graded_table(vectors + 8 * b, A, table);
    } else {
      tier_table(vectors + 8 * b, a.occupancy + (r * S + b) * kPatterns, a.rho_of, table);
    }
  }

  // 4.2: fp32(t) * f; 4.3: fp32(t); the vote of a bad key is NaN.
  const RecordRow records(geometry, a.store, a.batch.sequences[i], head);
  for (int64_t position = 0; position < n; ++position) {
    if (is_bad(records, position)) {
      votes[position] = kNan;
      continue;
    }
    const auto t = static_cast<float>(look_up(temporaries, records.signs(position), S));
    votes[position] = is_graded ? t * format::bf16_to_float(*records.vote_factor(position)) : t;
  }
}

pkv_status run(pkv_backend_device* /*device*/, pkv_backend_stream* /*stream*/,
               const pkv_vote_args* args, void* scratch) {
  Scratch pieces(scratch);
  const Temporaries temporaries = take_temporaries(pieces, *args);
  for (int64_t i = 0; i < args->batch.batch; ++i) {
    for (int32_t head = 0; head < args->codec.geometry->kv_heads; ++head) {
      vote_row(*args, temporaries, i, head);
    }
  }
  return PKV_OK;
}

}  // namespace

pkv_vote_slots vote_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu_ref
