// What backend cuda has of its own (backends/gpu/device.h).
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cuda {

inline constexpr const char* kName = "cuda";
inline constexpr const char* kVersion = "1";
inline constexpr const char* kAbout = "NVIDIA GPUs; rows in pinned host memory or on the device";
inline constexpr int kScore = 100;
inline constexpr pkv_device_type kDeviceType = PKV_DEVICE_CUDA;
inline constexpr pkv_status kKernelFault = PKV_UNAVAILABLE;  // the context is lost with it

struct VendorDevice {};

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out);
inline pkv_status open_vendor(const pkv_host* /*host*/, int /*ordinal*/, VendorDevice& /*device*/) {
  return PKV_OK;
}
inline gpuError_t alloc_memory(const VendorDevice& /*device*/, bool is_host, void** out,
                               std::size_t bytes) {
  return is_host ? gpu_host_alloc(out, bytes) : gpuMalloc(out, bytes);
}
inline gpuError_t free_memory(const VendorDevice& /*device*/, bool is_host, void* data) {
  return is_host ? gpu_host_free(data) : gpuFree(data);
}

inline gpuError_t create_stream(VendorDevice& /*device*/, gpuStream_t* out) {
  return gpu_stream_create(out);
}
// Borrowed; 0 is the default stream.
inline bool wrap_stream(VendorDevice& /*device*/, uintptr_t native, gpuStream_t* out,
                        bool* is_owned) {
  *out = reinterpret_cast<gpuStream_t>(native);
  *is_owned = false;
  return true;
}
pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value);

}  // namespace pkv::cuda
