#include "core/base/tensor.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_join.h"
#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/text.h"

namespace pkv {

absl::Status refuse_tensor(std::string_view name, std::string_view reason) {
  return absl::InvalidArgumentError(str_cat(name, ": ", reason));
}

namespace {

// "[b, h, t, d]"
std::string axis_names(std::initializer_list<Axis> axes) {
  const auto append = [](std::string* out, const Axis& axis) { *out += axis.name; };
  return str_cat("[", absl::StrJoin(axes, ", ", append), "]");
}

std::string accepted(const Axis& axis) {
  if (axis.min == axis.max) return str_cat(axis.min);
  if (axis.max == INT64_MAX) return str_cat(">= ", axis.min);
  return str_cat(axis.min, "..", axis.max);
}

}  // namespace

absl::StatusOr<TensorView> TensorView::check(std::string_view name, const pkv_tensor* tensor,
                                             std::initializer_list<Axis> axes,
                                             std::span<const pkv_dtype> dtypes, Access access) {
  PKV_DCHECK(axes.size() >= 1 && axes.size() <= kMaxAxes);
  if (tensor == nullptr) return refuse_tensor(name, "tensor=NULL, accepted: a pointer to a tensor");
  if (tensor->ndim != static_cast<int32_t>(axes.size())) {
    return refuse_tensor(
        name, str_cat("ndim=", tensor->ndim, ", accepted: ", axes.size(), " ", axis_names(axes)));
  }
  if (dtype_bytes(tensor->dtype) == 0 ||
      std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end()) {
    return refuse_tensor(name, str_cat("dtype=", dtype_name(tensor->dtype),
                                       ", accepted: ", join_choices(dtypes, dtype_name)));
  }
  if (tensor->shape == nullptr) {
    return refuse_tensor(name,
                         str_cat("shape=NULL, accepted: a pointer to ", axes.size(), " extents"));
  }

  TensorView view;
  view.ndim_ = tensor->ndim;
  view.dtype_ = tensor->dtype;
  view.device_type_ = tensor->device_type;
  view.device_id_ = tensor->device_id;
  view.element_bytes_ = dtype_bytes(tensor->dtype);
  view.data_ = tensor->data;
  std::copy_n(tensor->shape, axes.size(), view.shape_.begin());
  PKV_RETURN_IF_ERROR(view.check_extents(name, axes));
  if (access == Access::kElsewhere) {
    if (view.data_ != nullptr)
      return refuse_tensor(name, "data is given, accepted: NULL with pages");
    view.set_dense_strides();
    return view;
  }
  if (tensor->strides == nullptr || view.is_empty()) {  // numpy gives empty arrays strides of 0
    view.set_dense_strides();
  } else {
    std::copy_n(tensor->strides, axes.size(), view.strides_.begin());
  }
  const int last = view.ndim_ - 1;
  if (view.stride(last) != 1 && view.extent(last) > 1) {
    return refuse_tensor(
        name, str_cat("stride of the last axis=", view.stride(last), ", accepted: 1 (contiguous)"));
  }
  if (access == Access::kOutput) PKV_RETURN_IF_ERROR(view.check_disjoint(name));
  PKV_RETURN_IF_ERROR(view.check_span(name, tensor->byte_offset));
  return view;
}

absl::Status TensorView::check_extents(std::string_view name, std::initializer_list<Axis> axes) {
  int axis = 0;
  for (const Axis& wanted : axes) {
    const int64_t value = extent(axis);
    // Negative extents are refused whatever the range says.
    if (value < 0 || value < wanted.min || value > wanted.max) {
      return refuse_tensor(name, str_cat("axis ", axis, " (", wanted.name, ") has extent ", value,
                                         ", accepted: ", accepted(wanted)));
    }
    ++axis;
  }
  const auto shape = std::span(shape_).first(axes.size());
  element_count_ = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) element_count_ = 0;
  for (const int64_t value : shape) {
    const std::optional<int64_t> count = checked_mul(element_count_, value);
    const std::optional<int64_t> bytes = count ? checked_mul(*count, element_bytes_) : std::nullopt;
    if (!bytes) {
      return refuse_tensor(name, str_cat("shape=[", absl::StrJoin(shape, ", "), "] of ",
                                         dtype_name(dtype_), ", accepted: up to 2^63-1 bytes"));
    }
    element_count_ = *count;
  }
  return absl::OkStatus();
}

void TensorView::set_dense_strides() {
  // Of an empty tensor no element is ever addressed; large extents beside the 0 may not overflow.
  int64_t stride = 1;
  for (int axis = ndim_ - 1; axis >= 0; --axis) {
    strides_[static_cast<std::size_t>(axis)] = stride;
    if (!is_empty()) stride *= extent(axis);
  }
}

absl::Status TensorView::check_span(std::string_view name, uint64_t byte_offset) {
  if (is_empty()) return absl::OkStatus();
  if (data_ == nullptr) {
    return refuse_tensor(name, "data=NULL, accepted: a pointer, or NULL where an extent is 0");
  }
  std::optional<int64_t> begin = 0;
  std::optional<int64_t> end = element_bytes_;
  for (int axis = 0; axis < ndim_ && begin && end; ++axis) {
    const std::optional<int64_t> steps = checked_mul(extent(axis) - 1, stride(axis));
    const std::optional<int64_t> reach = steps ? checked_mul(*steps, element_bytes_) : std::nullopt;
    std::optional<int64_t>& side = reach && *reach < 0 ? begin : end;
    side = reach ? checked_add(*side, *reach) : std::nullopt;
  }
  // The addresses may not wrap either, on both sides of the origin.
  const uint64_t base = reinterpret_cast<uintptr_t>(data_);
  const uint64_t address = base + byte_offset;
  const bool fits = begin && end && address >= base && static_cast<uint64_t>(*end) <= ~address &&
                    uint64_t{0} - static_cast<uint64_t>(*begin) <= address;
  if (!fits) {
    const auto axes = static_cast<std::size_t>(ndim_);
    return refuse_tensor(
        name, str_cat("shape=[", absl::StrJoin(std::span(shape_).first(axes), ", "), "] strides=[",
                      absl::StrJoin(std::span(strides_).first(axes), ", "), "] byte_offset=",
                      byte_offset, ", accepted: elements within the address space"));
  }
  if (address % static_cast<uint64_t>(element_bytes_) != 0) {
    return refuse_tensor(
        name, str_cat("data + byte_offset=0x", absl::StrCat(absl::Hex(address)),
                      ", accepted: a multiple of ", element_bytes_, " for ", dtype_name(dtype_)));
  }
  span_ = {*begin, *end};
  origin_ = static_cast<char*>(data_) + byte_offset;
  return absl::OkStatus();
}

absl::Status TensorView::check_disjoint(std::string_view name) const {
  if (is_empty()) return absl::OkStatus();
  std::array<int, kMaxAxes> order{};
  int axes = 0;
  for (int axis = 0; axis < ndim_; ++axis) {
    if (extent(axis) > 1) order[static_cast<std::size_t>(axes++)] = axis;
  }
  const auto end = order.begin() + axes;
  std::sort(order.begin(), end, [this](int a, int b) { return stride(a) < stride(b); });
  int64_t covered = 1;  // elements from the first to the last of the axes seen, both included
  for (auto axis = order.begin(); axis != end; ++axis) {
    if (stride(*axis) < covered) {
      return refuse_tensor(
          name, str_cat("stride of axis ", *axis, "=", stride(*axis), ", accepted: >= ", covered,
                        " (elements of an output do not overlap)"));
    }
    const std::optional<int64_t> steps = checked_mul(extent(*axis) - 1, stride(*axis));
    const std::optional<int64_t> reach = steps ? checked_add(covered, *steps) : std::nullopt;
    if (!reach) return absl::OkStatus();  // larger than memory: check_span says so
    covered = *reach;
  }
  return absl::OkStatus();
}

bool TensorView::is_dense() const {
  if (is_empty()) return true;
  int64_t wanted = 1;
  for (int axis = ndim_ - 1; axis >= 0; --axis) {
    if (extent(axis) > 1 && stride(axis) != wanted) return false;
    wanted *= extent(axis);
  }
  return true;
}

pkv_tensor TensorView::tensor() const {
  pkv_tensor out{};
  out.data = origin_;
  out.device_type = device_type_;
  out.device_id = device_id_;
  out.ndim = ndim_;
  out.dtype = dtype_;
  out.shape = shape_.data();
  out.strides = strides_.data();
  return out;
}

}  // namespace pkv
