#include "tools/rows.h"

#include <algorithm>
#include <utility>

#include "tools/interrupt.h"
#include "tools/status.h"

namespace pkv::cli {

absl::Status check_float_tensor(const TensorInfo& info) {
  if (float_dtype(info.type) == 0) {
    return input_error("{}: elements of {}: accepted are {}", info.source, element_name(info.type),
                       kAcceptedFloats);
  }
  for (size_t axis = 0; axis < info.shape.size(); ++axis) {
    if (info.shape[axis] < 1 || info.shape[axis] > INT32_MAX) {
      return input_error("{}: shape {}: axis {} is {}, accepted are 1..{}", info.source,
                         shape_text(info.shape), axis, info.shape[axis], INT32_MAX);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Rows> Rows::open(const TensorName& name, const std::string& default_tensor) {
  CLI_ASSIGN_OR_RETURN(auto reader, open_tensor(name, default_tensor));
  const TensorInfo& info = reader->info();
  const size_t axes = info.shape.size();
  if (axes != 2 && axes != 3) {
    return input_error("{}: shape {}: accepted are 2 axes [n, d] or 3 axes [h, n, d]", info.source,
                       shape_text(info.shape));
  }
  CLI_RETURN_IF_ERROR(check_float_tensor(info));
  const int64_t outer = axes == 3 ? info.shape[0] : 1;
  const int64_t rows = info.shape[axes - 2];
  const int64_t dim = info.shape[axes - 1];
  return Rows(std::move(reader), outer, rows, dim);
}

absl::Status Rows::read_one(int64_t outer, int64_t begin, int64_t count, void* out) {
  const ElementType type = reader_->info().type;
  const int64_t first = (outer * rows_ + begin) * dim_;
  const int64_t elements = count * dim_;
  if (element_bytes(type) == dtype_bytes(dtype_) && type != ElementType::kU8) {
    return reader_->read(first, elements, out);
  }
  stored_.resize(static_cast<size_t>(elements * element_bytes(type)));
  CLI_RETURN_IF_ERROR(reader_->read(first, elements, stored_.data()));
  convert_elements(type, stored_.data(), elements, out);
  return absl::OkStatus();
}

absl::Status Rows::read(int64_t begin, int64_t count, void* out) {
  auto* target = static_cast<char*>(out);
  for (int64_t i = 0; i < outer_; ++i) {
    CLI_RETURN_IF_ERROR(read_one(i, begin, count, target + i * count * row_bytes()));
  }
  return absl::OkStatus();
}

absl::Status Rows::sample(int64_t count, void* out) {
  if (count == rows_) return read(0, rows_, out);
  auto* target = static_cast<char*>(out);
  for (int64_t outer = 0; outer < outer_; ++outer) {
    for (int64_t i = 0; i < count; ++i) {
      if (i % 1024 == 0) CLI_RETURN_IF_ERROR(check_interrupt());
      CLI_RETURN_IF_ERROR(read_one(outer, i * rows_ / count, 1, target));
      target += row_bytes();
    }
  }
  return absl::OkStatus();
}

}  // namespace pkv::cli
