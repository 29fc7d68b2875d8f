#include "core/base/dtype.h"

#include "absl/strings/str_cat.h"

namespace pkv {

std::string dtype_name(pkv_dtype dtype) {
  switch (dtype) {
    case PKV_DTYPE_F32: return "f32";
    case PKV_DTYPE_F16: return "f16";
    case PKV_DTYPE_BF16: return "bf16";
    case PKV_DTYPE_U8: return "u8";
    case PKV_DTYPE_I32: return "i32";
    case PKV_DTYPE_I64: return "i64";
    default: return absl::StrCat(dtype);
  }
}

std::string device_type_name(pkv_device_type type) {
  switch (type) {
    case PKV_DEVICE_CPU: return "cpu";
    case PKV_DEVICE_CUDA: return "cuda";
    case PKV_DEVICE_CUDA_HOST: return "cuda_host";
    case PKV_DEVICE_ROCM: return "rocm";
    case PKV_DEVICE_ROCM_HOST: return "rocm_host";
    case PKV_DEVICE_CUDA_MANAGED: return "cuda_managed";
    default: return absl::StrCat(type);
  }
}

}  // namespace pkv
