// Refusals shared by the stages. docs/algorithm.md, sections 0, 1, 2 and 9.
#include "backends/host/check.h"

#include "core/format/records.h"
#include "core/format/rotation.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::host {
namespace {

using backend::refuse;

bool is_dimension(int32_t value) {
  return value % format::kSubspace == 0 && value >= format::kMinHeadDim &&
         value <= format::kMaxHeadDim;
}

pkv_status check_values(const pkv_host* host, const pkv_geometry& geometry) {
  if (geometry.v_source == PKV_V_SOURCE_NONE) {
    if (geometry.value_dim == 0 && geometry.sketch_bits == 0 && geometry.sketch_stride == 0 &&
        geometry.value_norm == 0) {
      return PKV_OK;
    }
    return refuse(host, PKV_UNIMPLEMENTED,
                  "v_source=none with value_dim=%d sketch_bits=%d sketch_stride=%d value_norm=%d: "
                  "all must be 0",
                  geometry.value_dim, geometry.sketch_bits, geometry.sketch_stride,
                  geometry.value_norm);
  }
  if (!is_dimension(geometry.value_dim)) {
    return refuse(host, PKV_UNIMPLEMENTED, "value_dim=%d: must be a multiple of 8 from 8 to 576",
                  geometry.value_dim);
  }
  if (geometry.v_source == PKV_V_SOURCE_K_PREFIX && geometry.value_dim > geometry.head_dim) {
    return refuse(host, PKV_UNIMPLEMENTED,
                  "value_dim=%d: v_source=k_prefix allows up to head_dim=%d", geometry.value_dim,
                  geometry.head_dim);
  }
  if (geometry.sketch_bits != 0 && geometry.sketch_bits != 2 && geometry.sketch_bits != 4) {
    return refuse(host, PKV_UNIMPLEMENTED, "sketch_bits=%d: must be 0, 2 or 4",
                  geometry.sketch_bits);
  }
  const pkv_status status =
      geometry.sketch_bits == 0
          ? check_range(host, "without sketch sketch_stride", geometry.sketch_stride, 0, 0)
          : check_range(host, "sketch_stride", geometry.sketch_stride, 1, format::kMaxSketchStride);
  if (status != PKV_OK) return status;
  return check_range(host, "value_norm", geometry.value_norm, 0, 1);
}

}  // namespace

pkv_status check_range(const pkv_host* host, const char* name, int64_t value, int64_t lo,
                       int64_t hi) {
  if (value >= lo && value <= hi) return PKV_OK;
  return refuse(host, PKV_UNIMPLEMENTED, "%s=%lld: must be from %lld to %lld", name,
                static_cast<long long>(value), static_cast<long long>(lo),
                static_cast<long long>(hi));
}

pkv_status check_geometry(const pkv_host* host, const pkv_geometry& geometry) {
  pkv_status status = check_range(host, "kv_heads", geometry.kv_heads, 1, INT32_MAX);
  if (status != PKV_OK) return status;
  if (!is_dimension(geometry.head_dim)) {
    return refuse(host, PKV_UNIMPLEMENTED, "head_dim=%d: must be a multiple of 8 from 8 to 576",
                  geometry.head_dim);
  }
  status = check_range(host, "codec", geometry.codec, PKV_CODEC_POLAR4, PKV_CODEC_SCALAR5);
  if (status != PKV_OK) return status;
  status = check_range(host, "vote", geometry.vote, PKV_VOTE_TIER, PKV_VOTE_GRADED);
  if (status != PKV_OK) return status;
  status = check_range(host, "v_source", geometry.v_source, PKV_V_SOURCE_OWN, PKV_V_SOURCE_NONE);
  if (status != PKV_OK) return status;
  status = check_range(host, "rounds", geometry.rounds, 1, 2);
  if (status != PKV_OK) return status;
  if (geometry.rounds == 2 && !format::rotation_plan(geometry.head_dim, 1).is_power_of_two) {
    return refuse(host, PKV_UNIMPLEMENTED, "rounds=2: head_dim=%d must be a power of two",
                  geometry.head_dim);
  }
  return check_values(host, geometry);
}

pkv_status check_floats(const pkv_host* host, const char* name, const pkv_tensor& tensor) {
  if (tensor.dtype == PKV_DTYPE_F32 || tensor.dtype == PKV_DTYPE_F16 ||
      tensor.dtype == PKV_DTYPE_BF16) {
    return PKV_OK;
  }
  return refuse(host, PKV_UNIMPLEMENTED, "dtype=%d of %s: must be f32 (%d), f16 (%d) or bf16 (%d)",
                tensor.dtype, name, PKV_DTYPE_F32, PKV_DTYPE_F16, PKV_DTYPE_BF16);
}

pkv_status check_group(const pkv_host* host, int32_t query_heads, int32_t kv_heads) {
  if (query_heads >= 1 && query_heads % kv_heads == 0 && query_heads / kv_heads <= 128) {
    return PKV_OK;
  }
  return refuse(host, PKV_UNIMPLEMENTED,
                "query_heads=%d: must be 1 to 128 times kv_heads=%d, a whole multiple", query_heads,
                kv_heads);
}

pkv_status check_logits(const pkv_host* host, float scale, float soft_cap) {
  if (!(scale > 0.0F && scale <= 1e6F)) {
    return refuse(host, PKV_UNIMPLEMENTED, "scale=%g: must be above 0 and at most 1e6",
                  static_cast<double>(scale));
  }
  if (soft_cap >= 0.0F && soft_cap <= 1e6F) return PKV_OK;
  return refuse(host, PKV_UNIMPLEMENTED, "soft_cap=%g: must be 0 (none) or above, at most 1e6",
                static_cast<double>(soft_cap));
}

}  // namespace pkv::host
