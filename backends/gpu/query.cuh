// Query preparation: rotated heads and their sum, for vote and rerank. docs/algorithm.md, sections
// 4.1 and 4.4. Exact. Traffic: the queries once, their rotations once.
#pragma once

#include "backends/gpu/fold.cuh"
#include "backends/gpu/rotate.cuh"
#include "backends/gpu/views.h"

namespace PKV_GPU_NS {

// Prepared queries of all rows of a call, in scratch.
struct PreparedQueries {
  float* heads;   // [rows, G, d] q'_g
  float* sum;     // [rows, d] Q'
  int32_t* bad;   // [rows] 1 where any of them is bad (4.4)
  int32_t group;  // G
};

struct QueryArgs {
  CodecView codec;
  TensorView queries;  // [b, hq, d]
  int64_t rows;        // b * h
  PreparedQueries out;
};

// Vector `index` of a row into v: q_g, or for index = G their sum in ascending order (4.1). Four
// elements of a lane are under way at once.
PKV_DEVICE void load_query(const GroupVector& v, const TensorView& queries, int64_t entry,
                           int32_t first_head, int32_t group, int32_t index) {
  constexpr int kAtOnce = 4;
  const bool is_sum = index == group;
  const int32_t begin = is_sum ? 0 : index;
  const int32_t end = is_sum ? group : index + 1;
  for (int first = GroupVector::Group::rank(); first < v.dim; first += 32 * kAtOnce) {
    float sum[kAtOnce] = {};
#pragma unroll 4
    for (int32_t g = begin; g < end; ++g) {
      const std::byte* q = queries.row(entry, first_head + g);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + 32 * i;
        if (j >= v.dim) continue;
        const float x = load_element(queries.dtype, q, j);
        sum[i] = g == begin ? x : fadd_rn(sum[i], x);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < v.dim) v.x[first + 32 * i] = sum[i];
    }
  }
}

// v = rotate(v * r); returns whether its square is finite.
PKV_DEVICE bool rotate_query(const GroupVector& v, const CodecView& codec, const float* r) {
  v.each([r](int j, float q) { return fmul_rn(q, r[j]); });
  rotate(v, codec.key_plan, codec.params.signs_1, codec.params.signs_2);
  return is_finite(fold_group(v.dim, [&v](int j) { return fmul_rn(v.x[j], v.x[j]); }));
}

// Shared memory of prepare_row.
template <int kThreads>
struct QueryShared {
  int32_t bad[kThreads / 32];
};

// Rotated heads and sum of a row, and whether it is bad, by a block; what it wrote to global memory
// its threads may read behind it. Group of 32 lanes: every count-th vector of the row, in `memory`,
// d floats per group.
template <int kThreads>
PKV_DEVICE bool prepare_row(const QueryArgs& a, int64_t row, float* memory,
                            QueryShared<kThreads>& shared) {
  using Group = LaneGroup<32>;
  const int32_t d = a.codec.geometry.head_dim;
  const int32_t G = a.out.group;
  const GroupVector v = {memory + Group::index() * d, d};
  const RowIndex at = row_index(row, a.codec.geometry.kv_heads);
  const float* r = a.codec.key_row(a.codec.params.inv_balance, a.codec.set(at.entry), at.head);
  int32_t bad = 0;
  for (int32_t index = Group::index(); index <= G; index += Group::count()) {
    load_query(v, a.queries, at.entry, at.head * G, G, index);
    if (!rotate_query(v, a.codec, r)) bad = 1;
    float* target = index == G ? a.out.sum + row * d : a.out.heads + (row * G + index) * d;
    v.each([target](int j, float y) { return target[j] = y; });
  }
  if (Group::rank() == 0) shared.bad[Group::index()] = bad;
  sync_block();
  for (int32_t i = 0; i < Group::count(); ++i) bad |= shared.bad[i];
  if (thread_index() == 0) a.out.bad[row] = bad;
  sync_block();  // shared.bad is read
  return bad != 0;
}

// Block: one row at a time. Dynamic shared memory: d floats per group of 32 lanes.
template <class Traits>
PKV_KERNEL(Traits::kQueryThreads)
prepare_queries(QueryArgs a) {
  PKV_SHARED(QueryShared<Traits::kQueryThreads>, shared);
  PKV_DYNAMIC_SHARED(memory);
  for (int64_t row = block_y(); row < a.rows; row += grid_y()) {
    prepare_row<Traits::kQueryThreads>(a, row, reinterpret_cast<float*>(memory), shared);
  }
}

}  // namespace PKV_GPU_NS
