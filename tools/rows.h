// Keys, values or queries in a file as rows of floats, read piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pariskv/pariskv_types.h"
#include "tools/reader.h"

namespace pkv::cli {

// A tensor of two axes [n, d], or three [a, n, d], of floats; two axes read as a = 1.
class Rows {
 public:
  static absl::StatusOr<Rows> open(const TensorName& name, const std::string& default_tensor);

  const std::string& source() const { return reader_->info().source; }
  int64_t outer() const { return outer_; }  // a: KV heads of keys and values
  int64_t rows() const { return rows_; }    // n
  int64_t dim() const { return dim_; }      // d
  size_t axes() const { return reader_->info().shape.size(); }
  pkv_dtype dtype() const { return dtype_; }
  int64_t row_bytes() const { return dim_ * dtype_bytes(dtype_); }

  // Rows [begin, begin + count) of every outer index, [a, count, d].
  absl::Status read(int64_t begin, int64_t count, void* out);
  // `count` <= n rows, floor(i * n / count) for i < count: [a, count, d].
  absl::Status sample(int64_t count, void* out);
  // Rows [begin, begin + count) of one outer index.
  absl::Status read_one(int64_t outer, int64_t begin, int64_t count, void* out);

 private:
  Rows(std::unique_ptr<TensorReader> reader, int64_t outer, int64_t rows, int64_t dim)
      : reader_(std::move(reader)),
        outer_(outer),
        rows_(rows),
        dim_(dim),
        dtype_(float_dtype(reader_->info().type)) {}

  std::unique_ptr<TensorReader> reader_;
  int64_t outer_;
  int64_t rows_;
  int64_t dim_;
  pkv_dtype dtype_;
  std::vector<char> stored_;  // before conversion
};

// The tensor's dtype and the limits that all kinds of rows share.
absl::Status check_float_tensor(const TensorInfo& info);

}  // namespace pkv::cli
