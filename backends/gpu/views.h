// Arguments of the seam as kernels take them: by value, without pointers to host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/gpu/gpu_rt.h"
#include "backends/gpu/layout.h"
#include "core/format/pages.h"
#include "core/format/rotation.h"
#include "pariskv/pariskv_backend.h"

namespace PKV_GPU_NS {

constexpr int64_t dtype_bytes(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_U8: return 1;
    case PKV_DTYPE_F16:
    case PKV_DTYPE_BF16: return 2;
    case PKV_DTYPE_F32:
    case PKV_DTYPE_I32: return 4;
    case PKV_DTYPE_I64: return 8;
    default: return 0;
  }
}

inline constexpr int kMaxAxes = 4;

// A tensor; its rows lie along the last axis.
struct TensorView {
  std::byte* data;  // NULL: none
  int64_t stride_bytes[kMaxAxes - 1];
  pkv_dtype dtype;

  PKV_HD std::byte* row(int64_t i) const { return data + i * stride_bytes[0]; }
  PKV_HD std::byte* row(int64_t i, int64_t j) const { return row(i) + j * stride_bytes[1]; }
  PKV_HD std::byte* row(int64_t i, int64_t j, int64_t k) const {
    return row(i, j) + k * stride_bytes[2];
  }
};

inline TensorView view_of(const pkv_tensor& tensor) {
  TensorView view{};
  if (tensor.ndim == 0) return view;
  view.dtype = tensor.dtype;
  if (tensor.data != nullptr) view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  int64_t dense = 1;
  for (int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
    const int64_t stride = tensor.strides != nullptr ? tensor.strides[axis] : dense;
    if (axis < kMaxAxes - 1) view.stride_bytes[axis] = stride * dtype_bytes(tensor.dtype);
    dense *= tensor.shape[axis];
  }
  return view;
}

// Parameters of the codec sets (docs/algorithm.md, section 2).
struct CodecView {
  pkv_geometry geometry;
  pkv_codec_params params;  // its geometry is NULL
  format::RotationPlan key_plan;
  format::RotationPlan value_plan;

  PKV_HD int64_t set(int64_t entry) const {
    return params.set_of == nullptr ? 0 : params.set_of[entry];
  }
  // Row `head` of set `set` of center, balance or inv_balance.
  PKV_HD const float* key_row(const float* values, int64_t set, int32_t head) const {
    return values + (set * geometry.kv_heads + head) * geometry.head_dim;
  }
  PKV_HD const float* value_row(const float* values, int64_t set, int32_t head) const {
    return values + (set * geometry.kv_heads + head) * geometry.value_dim;
  }
};

inline CodecView view_of(const pkv_codec_params& codec) {
  CodecView view{};
  view.geometry = *codec.geometry;
  view.params = codec;
  view.params.geometry = nullptr;
  view.key_plan = format::rotation_plan(view.geometry.head_dim, view.geometry.rounds);
  if (view.geometry.value_dim > 0)
    view.value_plan = format::rotation_plan(view.geometry.value_dim, 1);
  return view;
}

// The records of all sequences.
struct StoreView {
  pkv_store store;
  gpu::Layout layout;
  int32_t kv_heads;

  PKV_HD format::StoreRow row(int64_t sequence, int32_t head) const {
    return format::store_row(store, kv_heads, sequence, head);
  }
};

inline StoreView view_of(const pkv_store& store, const pkv_geometry& geometry) {
  return {store, gpu::make_layout(geometry, store.capacity), geometry.kv_heads};
}

// A row of a call: entry i of the batch and KV head.
struct RowIndex {
  int64_t entry;
  int32_t head;
};
PKV_HD constexpr RowIndex row_index(int64_t row, int32_t kv_heads) {
  return {row / kv_heads, static_cast<int32_t>(row % kv_heads)};
}

}  // namespace PKV_GPU_NS
