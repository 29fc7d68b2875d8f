#include "core/pipeline/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/element.h"
#include "core/format/records.h"
#include "core/pipeline/checks.h"
#include "pariskv/pariskv.h"

namespace pkv {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

std::byte* row_of(const TensorView& view, int64_t token, int64_t head) {
  return static_cast<std::byte*>(view.origin()) +
         view.element_offset(token, head, 0) * view.element_bytes();
}

// One head of one token. Reads all before it writes, since the output may be an input.
class HeadMerge {
 public:
  HeadMerge(const std::vector<TensorView>& parts, const float* const* lses, const TensorView& to)
      : parts_(parts), lses_(lses), to_(to) {}

  double run(int64_t token, int64_t head) {
    const int64_t at = token * to_.extent(1) + head;
    double most = kNothing;
    std::size_t last = 0;
    int32_t with_mass = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const double lse = lses_[i][at];
      if (!(lse > kNothing)) continue;
      most = std::max(most, lse);
      last = i;
      ++with_mass;
    }
    const int64_t width = to_.extent(2);
    std::byte* out = row_of(to_, token, head);
    if (with_mass == 1 && parts_[last].dtype() == to_.dtype()) {
      std::memmove(out, row_of(parts_[last], token, head),
                   static_cast<std::size_t>(width * to_.element_bytes()));
      return most;
    }
    std::fill_n(sums_.begin(), width, 0.0);
    double mass = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const double lse = lses_[i][at];
      if (!(lse > kNothing)) continue;
      const double weight = std::exp(lse - most);
      mass += weight;
      const std::byte* row = row_of(parts_[i], token, head);
      for (int64_t j = 0; j < width; ++j) {
        sums_[static_cast<std::size_t>(j)] +=
            weight * double{format::load_element(parts_[i].dtype(), row, j)};
      }
    }
    for (int64_t j = 0; j < width; ++j) {
      const double value = mass > 0 ? sums_[static_cast<std::size_t>(j)] / mass : 0;
      format::store_element(to_.dtype(), out, j, static_cast<float>(value));
    }
    return mass > 0 ? most + std::log(mass) : kNothing;
  }

 private:
  const std::vector<TensorView>& parts_;
  const float* const* lses_;
  const TensorView& to_;
  std::array<double, format::kMaxHeadDim> sums_{};
};

}  // namespace

absl::Status merge(const Stream& stream, int32_t count, const pkv_tensor* outputs,
                   const float* const* lses, const pkv_tensor& output, float* lse) {
  const Device& device = *stream.device();
  PKV_RETURN_IF_ERROR(check_range("count", count, 1, PKV_MERGE_PARTS));
  PKV_ASSIGN_OR_RETURN(const TensorView to, check_tensor(device, "output", output,
                                                         {at_least("n", 0), at_least("hq", 0),
                                                          between("dv", 0, format::kMaxHeadDim)},
                                                         kFloatTypes, Access::kOutput));
  std::vector<TensorView> parts;
  for (int32_t i = 0; i < count; ++i) {
    PKV_ASSIGN_OR_RETURN(const TensorView part,
                         check_tensor(device, str_cat("outputs[", i, "]"), outputs[i],
                                      {exactly("n", to.extent(0)), exactly("hq", to.extent(1)),
                                       exactly("dv", to.extent(2))},
                                      kFloatTypes));
    PKV_RETURN_IF_ERROR(
        check_pointer(str_cat("lses[", i, "]"), lses[i], to.extent(0) * to.extent(1)));
    if (part.dtype() != outputs[0].dtype) {
      return absl::InvalidArgumentError(
          str_cat("outputs[", i, "]: dtype ", dtype_name(part.dtype()),
                  ", accepted: ", dtype_name(outputs[0].dtype), " as outputs[0]"));
    }
    parts.push_back(part);
  }
  const pkv_backend& backend = device.backend();
  if (backend.merge != nullptr) {
    pkv_merge_args args{};
    args.struct_size = sizeof args;
    args.count = count;
    args.outputs = outputs;
    args.lses = lses;
    args.output = to.tensor();
    args.lse = lse;
    return device.call("merge", backend.merge, stream.handle(), &args);
  }
  if (device.info().device_type != PKV_DEVICE_CPU) {
    return absl::UnimplementedError(
        str_cat("merge: ", backend.name, " has none, accepted: backends on the CPU"));
  }
  PKV_RETURN_IF_ERROR(stream.sync());
  HeadMerge head_merge(parts, lses, to);
  for (int64_t token = 0; token < to.extent(0); ++token) {
    for (int64_t head = 0; head < to.extent(1); ++head) {
      const double merged = head_merge.run(token, head);
      if (lse != nullptr) lse[token * to.extent(1) + head] = static_cast<float>(merged);
    }
  }
  return absl::OkStatus();
}

}  // namespace pkv
