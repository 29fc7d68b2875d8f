// RowCache: device memory for the K and V rows that steps on an index fetched last. What is in it a
// backend decides (pkv_row_cache_args); here are its memory, and which sequences it must forget.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/index/index.h"
#include "core/runtime/buffer.h"
#include "core/runtime/stream.h"
#include "pariskv/pariskv.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

class RowCache {
 public:
  // As pkv_row_cache_create.
  static absl::StatusOr<std::unique_ptr<RowCache>> create(std::shared_ptr<const Index> index,
                                                          const Stream& stream, pkv_dtype dtype,
                                                          int32_t rows);

  const Index& index() const { return *index_; }
  pkv_dtype dtype() const { return dtype_; }

  absl::Status drop(const Stream& stream, int32_t sequence);
  // What a step on these sequences passes on; forgets first what the index has forgotten.
  absl::StatusOr<pkv_row_cache_args> args(const Stream& stream, std::span<const int32_t> sequences);
  absl::StatusOr<pkv_row_cache_stats> stats_sync(const Stream& stream) const;

 private:
  RowCache(std::shared_ptr<const Index> index, pkv_dtype dtype)
      : index_(std::move(index)), dtype_(dtype) {}

  absl::Status check_stream(const Stream& stream) const;
  absl::Status forget(const Stream& stream, int32_t sequence) const;
  int64_t rows() const { return int64_t{index_->sequences()} * index_->geometry().kv_heads; }

  std::shared_ptr<const Index> index_;
  pkv_dtype dtype_;
  pkv_row_cache_args args_{};  // all 0: the backend has no use for it
  Buffer data_;
  Buffer marks_;                      // tags, then counts
  std::vector<int64_t> generations_;  // of the index's sequences, as last seen
};

}  // namespace pkv
