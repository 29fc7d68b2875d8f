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

// Up to `count` rows from token `begin` on, as far as they lie evenly.
RowsAhead rows_ahead(const TokenRows& keys, const TokenRows& values, int64_t begin, int64_t count) {
  if (count <= 0) return {};
  const TokenRun k = keys.run(begin);
  const TokenRun v = values.run(begin);
  return {k.first,
          v.first,
          k.stride,
          v.stride,
          keys.lines(),
          values.lines(),
          std::min({count, k.count, v.count}),
          0};
}

// The rows of `count` tokens from `begin` on.
void list_rows(const TokenRows& rows, int64_t begin, int64_t count, const std::byte** out) {
  for (int64_t m = 0; m < count;) {
    const TokenRun run = rows.run(begin + m);
    const int64_t end = std::min(count, m + run.count);
    for (const std::byte* row = run.first; m < end; ++m, row += run.stride) out[m] = row;
  }
}

// The tokens of a dense part that an entry of the batch attends to.
struct DenseRows {
  TokenRows keys;
  TokenRows values;
  int64_t begin;
  int64_t end;

  // Its first block, or none.
  RowsAhead start() const {
    return rows_ahead(keys, values, begin, std::min(kBlockRows, end - begin));
  }
};

DenseRows dense_rows(const pkv_part& part, const pkv_batch& batch, int64_t i, int32_t kv_head) {
  const int64_t length = part.lengths != nullptr ? part.lengths[i] : part.keys.shape[2];
  if (length <= 0) return {};
  const int64_t leading = part.key_pages.table != nullptr ? batch.sequences[i] : i;
  const int64_t begin = part.starts != nullptr ? part.starts[i] : 0;
  return {TokenRows(part.keys, part.key_pages, leading, kv_head),
          TokenRows(part.values, part.value_pages, leading, kv_head), begin, begin + length};
}

// `following`: rows to ask for when all of these have been asked for.
void attend_dense(const DenseRows& rows, RowsAhead following, AttendState& state) {
  RowBlock block{};
  block.key_dtype = rows.keys.dtype();
  block.value_dtype = rows.values.dtype();
  for (int64_t first = rows.begin; first < rows.end; first += kBlockRows) {
    block.count = std::min(kBlockRows, rows.end - first);
    const int64_t next = first + block.count;
    RowsAhead ahead = next < rows.end ? rows_ahead(rows.keys, rows.values, next,
                                                   std::min(kBlockRows, rows.end - next))
                                      : following;
    list_rows(rows.keys, first, block.count, block.keys);
    list_rows(rows.values, first, block.count, block.values);
    attend_block(block, ahead, state);
  }
}

void attend_fetched(const FetchedRows& rows, AttendState& state) {
  RowBlock block{};
  block.key_dtype = rows.keys.dtype();
  block.value_dtype = rows.values.dtype();
  for (int64_t first = 0; first < rows.count; first += kBlockRows) {
    block.count = std::min(kBlockRows, rows.count - first);
    for (int64_t m = 0; m < block.count; ++m) {
      block.keys[m] = rows.keys.at(rows.token(first + m));
      block.values[m] = rows.values.at(rows.token(first + m));
    }
    RowsAhead none{};
    attend_block(block, none, state);
  }
}

// A token of value 0 (8.1).
void add_sinks(const pkv_attend_args& a, int32_t kv_head, AttendState& state) {
  if (a.sink_logits == nullptr) return;
  for (int32_t g = 0; g < state.group; ++g) {
    const float logit = a.sink_logits[kv_head * state.group + g];
    if (logit > -std::numeric_limits<float>::infinity()) add_token(logit, g, state);
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

void prefetch_rows(const FetchedRows& rows) {
  for (int64_t slot = 0; slot < rows.count; ++slot) {
    prefetch_range(rows.keys.at(rows.token(slot)), rows.keys.bytes());
    prefetch_range(rows.values.at(rows.token(slot)), rows.values.bytes());
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
  DenseRows rows = a.part_count > 0 ? dense_rows(a.parts[0], a.batch, i, kv_head) : DenseRows{};
  for (int32_t p = 0; p < a.part_count; ++p) {
    const DenseRows following =
        p + 1 < a.part_count ? dense_rows(a.parts[p + 1], a.batch, i, kv_head) : DenseRows{};
    attend_dense(rows, following.start(), state);
    rows = following;
  }
  attend_fetched(fetched, state);
  if (tail != nullptr) add_tail(a, *tail, room, state);
  add_sinks(a, kv_head, state);
  to_plain_order(state);
  for (int32_t g = 0; g < state.group; ++g) {
    write_head(a, i, kv_head * state.group + g, state.values + int64_t{g} * state.padded_dv,
               state.sums[g], state.maxima[g]);
  }
}

}  // namespace pkv::cpu
