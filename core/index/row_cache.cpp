#include "core/index/row_cache.h"

#include <algorithm>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

constexpr int64_t kWays = PKV_ROW_CACHE_WAYS;
constexpr int64_t kVectorAlignment = 16;
constexpr int64_t kCounts = 4;  // of a row, in pkv_row_cache_args.counts
constexpr int64_t kWord = sizeof(uint64_t);

}  // namespace

absl::StatusOr<std::unique_ptr<RowCache>> RowCache::create(std::shared_ptr<const Index> index,
                                                           const Stream& stream, pkv_dtype dtype,
                                                           int32_t rows) {
  PKV_RETURN_IF_ERROR(check_range("rows", rows, kWays, PKV_ROW_CACHE_LINES));
  if (std::find(std::begin(kFloatTypes), std::end(kFloatTypes), dtype) == std::end(kFloatTypes)) {
    return absl::InvalidArgumentError(
        str_cat("dtype=", dtype_name(dtype), ", accepted: f32, f16, bf16"));
  }
  std::unique_ptr<RowCache> cache(new RowCache(std::move(index), dtype));
  PKV_RETURN_IF_ERROR(cache->check_stream(stream));
  const std::shared_ptr<const Device>& device = cache->index_->device();
  if (device->backend().has_row_cache == 0) return cache;

  const pkv_geometry& geometry = cache->index_->geometry();
  const int64_t lines = round_up(rows, kWays);
  const int64_t width = std::max(geometry.head_dim, geometry.value_dim) * dtype_bytes(dtype);
  const int64_t line_bytes = 2 * round_up(width, kVectorAlignment);
  PKV_ASSIGN_OR_RETURN(
      const int64_t data_bytes,
      checked_product("row cache",
                      {{"rows", cache->rows()}, {"lines", lines}, {"line_bytes", line_bytes}}));
  const int64_t tag_words = cache->rows() * lines;
  const int64_t mark_bytes = (tag_words + cache->rows() * kCounts) * kWord;
  PKV_ASSIGN_OR_RETURN(cache->data_, Buffer::create(device, PKV_MEMORY_DEVICE, data_bytes));
  PKV_ASSIGN_OR_RETURN(cache->marks_, Buffer::create(device, PKV_MEMORY_DEVICE, mark_bytes));
  PKV_RETURN_IF_ERROR(stream.fill(cache->marks_.data(), 0, mark_bytes));
  cache->args_.data = cache->data_.data();
  cache->args_.tags = cache->marks_.as<uint64_t>();
  cache->args_.counts = cache->args_.tags + tag_words;
  cache->args_.line_bytes = line_bytes;
  cache->args_.lines = static_cast<int32_t>(lines);
  for (int32_t s = 0; s < cache->index_->sequences(); ++s) {
    cache->generations_.push_back(cache->index_->generation(s));
  }
  return cache;
}

absl::Status RowCache::drop(const Stream& stream, int32_t sequence) {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(index_->check_sequence(sequence));
  return forget(stream, sequence);
}

absl::StatusOr<pkv_row_cache_args> RowCache::args(const Stream& stream,
                                                  std::span<const int32_t> sequences) {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  if (args_.data == nullptr) return args_;
  for (const int32_t sequence : sequences) {
    const int64_t generation = index_->generation(sequence);
    if (generations_[sequence] == generation) continue;
    PKV_RETURN_IF_ERROR(forget(stream, sequence));
    generations_[sequence] = generation;
  }
  return args_;
}

absl::StatusOr<pkv_row_cache_stats> RowCache::stats_sync(const Stream& stream) const {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  pkv_row_cache_stats stats{};
  stats.struct_size = sizeof stats;
  stats.rows = args_.lines;
  stats.device_bytes = data_.bytes() + marks_.bytes();
  if (args_.data == nullptr) return stats;
  std::vector<uint64_t> counts(static_cast<std::size_t>(rows() * kCounts));
  PKV_RETURN_IF_ERROR(stream.copy(counts.data(), args_.counts, rows() * kCounts * kWord));
  PKV_RETURN_IF_ERROR(stream.sync());
  for (std::size_t i = 0; i < counts.size(); i += kCounts) {
    stats.looked_up += static_cast<int64_t>(counts[i + 1]);
    stats.found += static_cast<int64_t>(counts[i + 2]);
  }
  return stats;
}

absl::Status RowCache::check_stream(const Stream& stream) const {
  return stream.check_device(index_->device(), "of the row cache");
}

// The tags of a sequence's rows are neighbours.
absl::Status RowCache::forget(const Stream& stream, int32_t sequence) const {
  if (args_.data == nullptr) return absl::OkStatus();
  const int64_t words = int64_t{index_->geometry().kv_heads} * args_.lines;
  return stream.fill(args_.tags + sequence * words, 0, words * kWord);
}

}  // namespace pkv
