// TensorView: a pkv_tensor that has been checked, so that what follows may rely on it.
// Refusals are INVALID_ARGUMENT; their text names the argument, the value and what is accepted:
// "keys: axis 3 (d) has extent 64, accepted: 128".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/check.h"
#include "pariskv/pariskv_types.h"

namespace pkv {

// What one axis may be: its letter and the extents accepted.
struct Axis {
  std::string_view name;
  int64_t min;
  int64_t max;
};
constexpr Axis exactly(std::string_view name, int64_t extent) { return {name, extent, extent}; }
constexpr Axis at_least(std::string_view name, int64_t min) { return {name, min, INT64_MAX}; }
constexpr Axis between(std::string_view name, int64_t min, int64_t max) { return {name, min, max}; }

// Inputs may repeat or reverse elements (strides of 0, negative strides). Of outputs, every axis
// with more than one element has a positive stride that steps over all that lies within smaller
// strides. kElsewhere: shape and dtype of what lies in pages; data is NULL, strides are not read.
enum class Access { kInput, kOutput, kElsewhere };

class TensorView {
 public:
  static constexpr int kMaxAxes = 8;

  // The bytes that elements occupy, counted from origin(): [begin, end), begin <= 0. {0, 0} if
  // empty.
  struct ByteSpan {
    int64_t begin;
    int64_t end;
  };

  // Copies shape and strides; of the tensor only the elements stay borrowed. `axes`: 1..kMaxAxes.
  static absl::StatusOr<TensorView> check(std::string_view name, const pkv_tensor* tensor,
                                          std::initializer_list<Axis> axes,
                                          std::span<const pkv_dtype> dtypes,
                                          Access access = Access::kInput);

  int ndim() const { return ndim_; }
  int64_t extent(int axis) const { return shape_[static_cast<std::size_t>(axis)]; }
  int64_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }  // elements
  pkv_dtype dtype() const { return dtype_; }
  int64_t element_bytes() const { return element_bytes_; }
  int64_t element_count() const { return element_count_; }
  bool is_empty() const { return element_count_ == 0; }
  bool is_dense() const;  // row-major without gaps; extents of 1 do not matter
  ByteSpan byte_span() const { return span_; }

  // The element with all indices 0: data and byte_offset together. NULL only if empty.
  void* origin() const { return origin_; }

  // Elements from origin() to the element with these indices, one per axis.
  template <class... Index>
  int64_t element_offset(Index... index) const {
    PKV_DCHECK(sizeof...(Index) == static_cast<std::size_t>(ndim_));
    int64_t offset = 0;
    std::size_t axis = 0;
    ((offset += int64_t{index} * strides_[axis++]), ...);
    return offset;
  }

  // The C struct, with pointers into this view: valid while this view stays where it is.
  pkv_tensor tensor() const;

 private:
  TensorView() = default;
  absl::Status check_extents(std::string_view name, std::initializer_list<Axis> axes);
  absl::Status check_span(std::string_view name, uint64_t byte_offset);
  absl::Status check_disjoint(std::string_view name) const;
  void set_dense_strides();

  std::array<int64_t, kMaxAxes> shape_{};
  std::array<int64_t, kMaxAxes> strides_{};
  int ndim_ = 0;
  pkv_dtype dtype_ = 0;
  pkv_device_type device_type_ = 0;
  int32_t device_id_ = 0;
  int64_t element_bytes_ = 0;
  int64_t element_count_ = 0;
  ByteSpan span_{0, 0};
  void* data_ = nullptr;
  void* origin_ = nullptr;
};

// INVALID_ARGUMENT: "keys: reason".
absl::Status refuse_tensor(std::string_view name, std::string_view reason);

// Refuses a tensor whose memory is not of one of `types`. The id of CPU memory must be 0, that of
// device memory `device_id`; pinned and managed memory belongs to all devices of its vendor.
absl::Status check_device(std::string_view name, const pkv_tensor& tensor,
                          std::span<const pkv_device_type> types, int32_t device_id);

// Refuses two views that share bytes, at least one of which is written. Views that interleave, such
// as K and V halves of common rows, are apart. Irregular strides may be refused without sharing.
absl::Status check_apart(std::string_view name, const TensorView& view, std::string_view other_name,
                         const TensorView& other);

}  // namespace pkv
