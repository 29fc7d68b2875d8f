// Softmax attention over a block of rows of K and V, added to what a group of heads has gathered so
// far. docs/algorithm.md, section 8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/prefetch.h"
#include "backends/cpu/query.h"
#include "backends/cpu/scratch.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cpu {

inline constexpr int64_t kBlockRows = 64;

// What the heads of a group have gathered. Two orders of a vector's elements occur: plain, and
// split, where each run of two SIMD vectors holds its even elements, then its odd ones, as bf16
// rows unpack.
struct AttendState {
  const Isa* isa;
  int32_t group;  // G
  int32_t heads;  // G rounded up to 4; those behind G have queries 0
  int32_t d;
  int32_t dv;
  int32_t padded_d;   // d rounded up to two vectors of any width
  int32_t padded_dv;  // likewise
  float scale;
  float soft_cap;        // 0: none
  float* plain_queries;  // [heads, padded_d]
  float* split_queries;  // [heads, padded_d]
  float* values;         // [heads, padded_dv] sum of exp(logit - max) * v
  double* sums;          // [heads] sum of exp(logit - max)
  float* maxima;         // [heads] largest logit, -inf: nothing yet
  float* weights;        // [4, kBlockRows], temporary
  bool is_split;         // the order of `values`
};

AttendState take_attend_state(Scratch& scratch, const Isa& isa, const pkv_attend_args& args);

// Queries of the row; nothing gathered.
void start_attend(const RowQuery& query, AttendState& state);

// Up to kBlockRows rows.
struct RowBlock {
  const std::byte* keys[kBlockRows];
  const std::byte* values[kBlockRows];
  int64_t count;
  pkv_dtype key_dtype;
  pkv_dtype value_dtype;
};

// `ahead`: rows to ask for meanwhile.
void attend_block(const RowBlock& block, RowsAhead& ahead, AttendState& state);

// Brings `values` into plain order.
void to_plain_order(AttendState& state);

// Brings what head g has to a maximum of at least `logit`, which is finite.
void raise_maximum(float logit, int32_t g, AttendState& state);

// Makes room for a token of head g with this logit (not +inf, and not -inf) and returns its weight
// exp(logit - max), which is added to the sum already; its value, times the weight, is for the
// caller to add.
float add_token(float logit, int32_t g, AttendState& state);

}  // namespace pkv::cpu
