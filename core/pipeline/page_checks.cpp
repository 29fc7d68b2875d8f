#include "core/pipeline/page_checks.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

constexpr int64_t kPointerBytes = sizeof(void*);

// A table of pages, [sequences, stride].
struct Table {
  std::string_view name;
  const void* const* pages;
  int64_t stride;
  int64_t page_tokens;
  int64_t alignment;
};

// The entries of a table that hold a span.
absl::StatusOr<std::vector<const void*>> pages_of(const Stream& stream, const Table& table,
                                                  const Spans& spans, std::size_t i) {
  const int64_t begin = spans.begin(i);
  const int64_t end = spans.ends[i];
  if (begin >= end) return std::vector<const void*>();
  const int64_t first = begin / table.page_tokens;
  const int64_t last = (end - 1) / table.page_tokens;
  if (last >= table.stride) {
    return absl::OutOfRangeError(str_cat(table.name, ": position ", end - 1, " of sequence ",
                                         spans.sequences[i], " lies in page ", last,
                                         ", accepted: pages below ", table.stride));
  }
  PKV_RETURN_IF_ERROR(checked_product(table.name, {{"sequences", int64_t{spans.sequences[i]} + 1},
                                                   {"pages", table.stride},
                                                   {"bytes", kPointerBytes}})
                          .status());
  return read_back(stream, table.pages + spans.sequences[i] * table.stride + first,
                   last - first + 1);
}

absl::Status check_table(const Stream& stream, const Table& table, const Spans& spans) {
  for (std::size_t i = 0; i < spans.ends.size(); ++i) {
    PKV_ASSIGN_OR_RETURN(const auto pages, pages_of(stream, table, spans, i));
    for (std::size_t p = 0; p < pages.size(); ++p) {
      const auto address = reinterpret_cast<uintptr_t>(pages[p]);
      if (address != 0 && address % static_cast<uintptr_t>(table.alignment) == 0) continue;
      const int64_t page = spans.begin(i) / table.page_tokens + static_cast<int64_t>(p);
      return absl::InvalidArgumentError(str_cat(table.name, "[sequence ", spans.sequences[i],
                                                ", page ", page, "]",
                                                address == 0 ? "=NULL" : " is not aligned",
                                                ", accepted: multiples of ", table.alignment));
    }
  }
  return absl::OkStatus();
}

Table table_of(const pkv_store& store) {
  return {"store.pages", store.pages, store.pages_stride, store.capacity, kAlignment};
}

// A step between vectors: of whole elements.
absl::Status check_step(const std::string& name, int64_t bytes, int64_t element_bytes) {
  if (bytes % element_bytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(name, "=", bytes, ", accepted: multiples of ", element_bytes));
}

// Whether every byte that the steps lead to has an offset that fits.
bool fits(const pkv_pages& pages, int64_t kv_heads, int64_t vector_bytes) {
  const std::optional<int64_t> heads = checked_mul(kv_heads - 1, pages.head_bytes);
  const std::optional<int64_t> tokens = checked_mul(pages.page_tokens - 1, pages.token_bytes);
  if (!heads || !tokens) return false;
  const std::optional<int64_t> lowest =
      checked_add(std::min<int64_t>(*heads, 0), std::min<int64_t>(*tokens, 0));
  const std::optional<int64_t> highest =
      checked_add(std::max<int64_t>(*heads, 0), std::max<int64_t>(*tokens, 0));
  if (!lowest || !highest || !checked_add(*lowest, pages.offset)) return false;
  const std::optional<int64_t> end = checked_add(*highest, vector_bytes);
  return end && checked_add(*end, pages.offset);
}

}  // namespace

absl::Status check_store_spans(const Stream& stream, const pkv_geometry& geometry,
                               const pkv_store& store, const Spans& spans) {
  if (store.pages != nullptr) return check_table(stream, table_of(store), spans);
  PKV_RETURN_IF_ERROR(check_lengths(spans.ends, store.capacity));
  PKV_ASSIGN_OR_RETURN(const int64_t rows, rows_of(spans.sequences, geometry.kv_heads));
  return check_store_rows(store, rows);
}

absl::Status check_pages_apart(const Stream& stream, const pkv_store& store, const Spans& spans) {
  if (store.pages == nullptr) return absl::OkStatus();
  std::vector<std::pair<const void*, std::size_t>> written;
  for (std::size_t i = 0; i < spans.ends.size(); ++i) {
    PKV_ASSIGN_OR_RETURN(const auto pages, pages_of(stream, table_of(store), spans, i));
    for (const void* page : pages) written.emplace_back(page, i);
  }
  std::sort(written.begin(), written.end());
  const auto twice =
      std::adjacent_find(written.begin(), written.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice == written.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(
      "store.pages: sequences ", spans.sequences[twice->second], " and ",
      spans.sequences[(twice + 1)->second], " write to one page, accepted: pages of their own"));
}

absl::Status check_codec_sets(const Stream& stream, const pkv_codec_params& codec, int64_t batch) {
  if (codec.set_of == nullptr) return absl::OkStatus();
  PKV_ASSIGN_OR_RETURN(const auto sets, read_back(stream, codec.set_of, batch));
  for (std::size_t i = 0; i < sets.size(); ++i) {
    PKV_RETURN_IF_ERROR(check_index(str_cat("codec.set_of[", i, "]"), sets[i], 0, INT32_MAX));
  }
  return absl::OkStatus();
}

absl::Status check_token_pages(const Stream& stream, std::string_view name, const pkv_pages& pages,
                               const TensorView& view, const Spans& spans) {
  const std::string prefix = str_cat(name, " pages.");
  PKV_RETURN_IF_ERROR(
      check_range(str_cat(prefix, "page_tokens"), pages.page_tokens, 1, format::kMaxTokens));
  PKV_RETURN_IF_ERROR(
      check_range(str_cat(prefix, "table_stride"), pages.table_stride, 0, INT64_MAX));
  const int64_t bytes = view.element_bytes();
  PKV_RETURN_IF_ERROR(check_step(str_cat(prefix, "head_bytes"), pages.head_bytes, bytes));
  PKV_RETURN_IF_ERROR(check_step(str_cat(prefix, "token_bytes"), pages.token_bytes, bytes));
  PKV_RETURN_IF_ERROR(check_step(str_cat(prefix, "offset"), pages.offset, bytes));
  if (!fits(pages, view.extent(1), view.extent(3) * bytes)) {
    return absl::InvalidArgumentError(
        str_cat(prefix, "head_bytes=", pages.head_bytes, " token_bytes=", pages.token_bytes,
                " offset=", pages.offset, ", accepted: offsets up to 2^63-1"));
  }
  const std::string table = str_cat(prefix, "table");
  return check_table(stream, {table, pages.table, pages.table_stride, pages.page_tokens, bytes},
                     spans);
}

}  // namespace pkv
