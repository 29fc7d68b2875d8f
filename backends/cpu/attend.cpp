// docs/algorithm.md, section 8. Not here: the arithmetic on a block of rows (attend_block.cpp), the
// tail (tail.cpp).
#include "backends/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/prefetch.h"
#include "backends/cpu/tensor.h"

namespace pkv::cpu {
namespace {

// Rows of one (leading, kv_head) of a tensor [.., h, t, width].
struct RowRange {
  RowRange(const pkv_tensor& tensor, int64_t leading, int32_t kv_head)
      : base(row_at(tensor, leading, kv_head, int64_t{0})),
        stride(stride_of(tensor, 2) * dtype_bytes(tensor.dtype)),
        lines((tensor.shape[3] * dtype_bytes(tensor.dtype) + 63) / 64) {}
  const std::byte* base;
  int64_t stride;  // bytes
  int64_t lines;   // of a row
};

RowsAhead rows_ahead(const RowRange& k, const RowRange& v, int64_t begin, int64_t count) {
  return {k.base + begin * k.stride,
          v.base + begin * v.stride,
          k.stride,
          v.stride,
          k.lines,
          v.lines,
          count,
          0};
}

// Attends to `count` tokens, token_of(m) for m = 0, 1, .. `is_dense`: these are m, and nobody has
// asked for them yet.
template <class TokenOf>
void attend_tokens(const pkv_tensor& keys, const pkv_tensor& values, int64_t leading,
                   int32_t kv_head, int64_t count, bool is_dense, TokenOf token_of,
                   AttendState& state) {
  if (count <= 0) return;
  const RowRange k(keys, leading, kv_head);
  const RowRange v(values, leading, kv_head);
  RowBlock block{};
  block.key_dtype = keys.dtype;
  block.value_dtype = values.dtype;
  for (int64_t begin = 0; begin < count; begin += kBlockRows) {
    block.count = std::min(kBlockRows, count - begin);
    const int64_t end = begin + block.count;
    RowsAhead ahead{};
    if (is_dense) ahead = rows_ahead(k, v, end, std::min(kBlockRows, count - end));
    for (int64_t m = 0; m < block.count; ++m) {
      const int64_t token = token_of(begin + m);
      block.keys[m] = k.base + token * k.stride;
      block.values[m] = v.base + token * v.stride;
    }
    attend_block(block, ahead, state);
  }
}

void write_head(const pkv_attend_args& a, int64_t i, int32_t query_head, const float* values,
                double sum, float max) {
  // Nothing to attend to: a maximum of -inf and no NaN. Output 0, lse -inf.
  const bool is_empty = max == -std::numeric_limits<float>::infinity() && sum == 0.0;
  std::byte* output = row_at(a.output, i, query_head);
  const auto unit = static_cast<float>(1.0 / sum);
  for (int32_t j = 0; j < a.codec.geometry->value_dim; ++j) {
    store_element(a.output.dtype, output, j, is_empty ? 0.0F : values[j] * unit);
  }
  if (a.lse == nullptr) return;
  a.lse[i * a.query_heads + query_head] =
      is_empty ? max : static_cast<float>(static_cast<double>(max) + std::log(sum));
}

}  // namespace

void prefetch_rows(const FetchedRows& rows, int32_t kv_head) {
  if (rows.count == 0) return;
  const RowRange k(*rows.keys, rows.leading, kv_head);
  const RowRange v(*rows.values, rows.leading, kv_head);
  const int64_t key_bytes = rows.keys->shape[3] * dtype_bytes(rows.keys->dtype);
  const int64_t value_bytes = rows.values->shape[3] * dtype_bytes(rows.values->dtype);
  for (int64_t slot = 0; slot < rows.count; ++slot) {
    const int64_t token = rows.index == nullptr ? slot : rows.index[slot];
    prefetch_range(k.base + token * k.stride, key_bytes);
    prefetch_range(v.base + token * v.stride, value_bytes);
  }
}

void write_empty(const pkv_attend_args& a, int64_t i, int32_t kv_head) {
  const int32_t G = a.query_heads / a.codec.geometry->kv_heads;
  for (int32_t g = 0; g < G; ++g) {
    write_head(a, i, kv_head * G + g, nullptr, 0.0, -std::numeric_limits<float>::infinity());
  }
}

void attend_row(const pkv_attend_args& a, int64_t i, int32_t kv_head, const RowQuery& query,
                const FetchedRows& fetched, const TailRow* tail, const TailRoom& room,
                AttendState& state) {
  start_attend(query, state);
  for (int32_t p = 0; p < a.part_count; ++p) {
    const pkv_part& part = a.parts[p];
    const int64_t length = part.lengths != nullptr ? part.lengths[i] : part.keys.shape[2];
    attend_tokens(
        part.keys, part.values, i, kv_head, length, true, [](int64_t m) { return m; }, state);
  }
  if (fetched.count > 0) {
    attend_tokens(
        *fetched.keys, *fetched.values, fetched.leading, kv_head, fetched.count, false,
        [&](int64_t m) { return fetched.index == nullptr ? m : int64_t{fetched.index[m]}; }, state);
  }
  if (tail != nullptr) add_tail(a, *tail, room, state);
  to_plain_order(state);
  for (int32_t g = 0; g < state.group; ++g) {
    write_head(a, i, kv_head * state.group + g, state.values + int64_t{g} * state.padded_dv,
               state.sums[g], state.maxima[g]);
  }
}

}  // namespace pkv::cpu
