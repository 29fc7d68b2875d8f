// Queries in a file: [m, hq, d], or [m, d] for one query head.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/rows.h"

namespace pkv::cli {

class Queries {
 public:
  // Checks d and that the query heads are a multiple of the KV heads.
  static absl::StatusOr<Queries> open(const TensorName& name, int64_t head_dim, int64_t kv_heads);

  int64_t count() const { return is_flat_ ? rows_.rows() : rows_.outer(); }  // m
  int64_t heads() const { return is_flat_ ? 1 : rows_.rows(); }              // hq
  int64_t dim() const { return rows_.dim(); }                                // d
  pkv_dtype dtype() const { return rows_.dtype(); }
  int64_t bytes() const { return heads() * rows_.row_bytes(); }  // of one query
  const std::string& source() const { return rows_.source(); }
  // Query i, [hq, d].
  absl::Status read(int64_t i, void* out) {
    return is_flat_ ? rows_.read_one(0, i, 1, out) : rows_.read_one(i, 0, heads(), out);
  }

 private:
  explicit Queries(Rows rows) : rows_(std::move(rows)), is_flat_(rows_.axes() == 2) {}

  Rows rows_;
  bool is_flat_;
};

}  // namespace pkv::cli
