// A tensor of keys in memory of its own, for tests to change.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/tensor.h"

namespace pkv {

inline constexpr pkv_dtype kF32[] = {PKV_DTYPE_F32};

// Keys [h, t, d] of one head, 3 tokens, 8 coordinates, in memory of its own.
struct SampleKeys {
  std::vector<float> memory = std::vector<float>(64);
  std::array<int64_t, 3> shape = {1, 3, 8};
  std::array<int64_t, 3> strides = {24, 8, 1};
  pkv_tensor tensor{};

  SampleKeys() {
    tensor.data = memory.data();
    tensor.device_type = PKV_DEVICE_CPU;
    tensor.ndim = 3;
    tensor.dtype = PKV_DTYPE_F32;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  SampleKeys(const SampleKeys&) = delete;
  SampleKeys& operator=(const SampleKeys&) = delete;

  absl::StatusOr<TensorView> check(Access access = Access::kInput) const {
    return TensorView::check("keys", &tensor,
                             {at_least("h", 0), at_least("t", 0), at_least("d", 0)}, kF32, access);
  }
};

}  // namespace pkv
