// Estimates of the products of a row's queries with keys, from their records. docs/algorithm.md,
// section 6.1. Not here: scores and hits (rerank.h).
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/layout.h"
#include "backends/cpu/query.h"
#include "backends/cpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr float kEstimateLimit = 1e30F;
inline constexpr int32_t kSegment = 256;  // coordinates whose integer dot fits 32 bits
inline constexpr int32_t kSegments = 3;
inline constexpr int32_t kEstimateStep = 4;  // keys estimated together

// One row's keys and its prepared query. Entries are coordinates in the order in which a record
// unpacks, padded by zeros to a multiple of 128.
struct Estimator {
  const Isa* isa;
  RecordRow records;
  int32_t codec;
  int32_t d;
  int32_t group;     // G
  int32_t padded;    // entries
  float gain;        // g of the rotation
  int16_t* c;        // scalar codecs [G, padded]: the integer query
  uint32_t* c_sums;  // [G, kSegments]: 255 * the sum of c over a segment, mod 2^32
  float* q;          // polar4 [G, padded]: q'_g
  float* unit;       // [G]
  float* bias;       // [G] b_g
  int16_t* levels;   // scalar codecs [4, padded], temporary: (sign * v + 255) / 2
  float* products;   // polar4 [4, padded], temporary: w * sign * a
};

Estimator take_estimator(Scratch& scratch, const Isa& isa, const pkv_geometry& geometry,
                         int32_t query_heads);

// Sets all that depends on the row, that of entry i of the batch; `query` is good.
void prepare_estimator(const pkv_codec_params& codec, const RowQuery& query, int64_t i,
                       int32_t kv_head, const RecordRow& records, Estimator& estimator);

// order [padded]: the coordinate of each entry of a record, -1 for none; scalar codecs.
void find_entry_order(const Estimator& estimator, int32_t* order);

// What the estimate of a bad key is.
enum class BadKeys { kLowest, kNan };

// out[g * stride + i] = est_g of the key at positions[i], 0 <= i < count.
void estimate(const Estimator& estimator, const int32_t* positions, int64_t count, BadKeys bad_keys,
              float* out, int64_t stride);

}  // namespace pkv::cpu
