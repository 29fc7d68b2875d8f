// Where the memory of tensors may be: on which device, and apart from which other tensor.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include "core/base/dtype.h"
#include "core/base/tensor.h"
#include "core/base/text.h"

namespace pkv {
namespace {

bool is_device_memory(pkv_device_type type) {
  return type == PKV_DEVICE_CUDA || type == PKV_DEVICE_ROCM;
}

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

// An empty view has no origin and no bytes: {0, 0}, which lies before everything.
Range range_of(const TensorView& view) {
  const auto origin = reinterpret_cast<uintptr_t>(view.origin());
  return {origin + static_cast<uintptr_t>(view.byte_span().begin),
          origin + static_cast<uintptr_t>(view.byte_span().end)};
}

// Whether two views interleave, as K and V do in rows that hold both. Every run of a view (its last
// axis) begins a multiple of `step` bytes from its first one, so it is enough to look at one step.
bool interleave(const TensorView& view, const TensorView& other) {
  uint64_t step = 0;
  for (const TensorView* v : {&view, &other}) {
    for (int axis = 0; axis + 1 < v->ndim(); ++axis) {
      // The span check has shown that an axis with two elements or more has a stride that fits.
      const int64_t bytes = v->extent(axis) > 1 ? v->stride(axis) * v->element_bytes() : 0;
      step = std::gcd(step, static_cast<uint64_t>(std::abs(bytes)));
    }
  }
  if (step == 0) return false;
  const auto run = [](const TensorView& v) {
    return static_cast<uint64_t>(v.extent(v.ndim() - 1) * v.element_bytes());
  };
  const auto origin = reinterpret_cast<uintptr_t>(view.origin());
  const auto other_origin = reinterpret_cast<uintptr_t>(other.origin());
  const uint64_t distance = (other_origin % step + step - origin % step) % step;
  return run(view) <= distance && run(other) <= step - distance;
}

}  // namespace

absl::Status check_device(std::string_view name, const pkv_tensor& tensor,
                          std::span<const pkv_device_type> types, int32_t device_id) {
  if (std::find(types.begin(), types.end(), tensor.device_type) == types.end()) {
    return refuse_tensor(name, str_cat("device_type=", device_type_name(tensor.device_type),
                                       ", accepted: ", join_choices(types, device_type_name)));
  }
  const bool is_cpu = tensor.device_type == PKV_DEVICE_CPU;
  if (!is_cpu && !is_device_memory(tensor.device_type)) return absl::OkStatus();
  const int32_t wanted = is_cpu ? 0 : device_id;
  if (tensor.device_id == wanted) return absl::OkStatus();
  return refuse_tensor(name, str_cat("device_id=", tensor.device_id, ", accepted: ", wanted,
                                     " for ", device_type_name(tensor.device_type)));
}

absl::Status check_apart(std::string_view name, const TensorView& view, std::string_view other_name,
                         const TensorView& other) {
  const Range a = range_of(view);
  const Range b = range_of(other);
  if (a.end <= b.begin || b.end <= a.begin || interleave(view, other)) return absl::OkStatus();
  return refuse_tensor(name,
                       str_cat("shares memory with ", other_name, ", accepted: memory of its own"));
}

}  // namespace pkv
