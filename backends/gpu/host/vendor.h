// What backend gpu-host has of its own (backends/gpu/device.h).
#pragma once

#include "backends/gpu/gpu_rt.h"
#include "backends/gpu/host/work.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::gpu_host {

inline constexpr const char* kName = "gpu-host";
inline constexpr const char* kVersion = "1";
inline constexpr const char* kAbout = "the GPU kernels, run lane by lane on the host: for tests";
inline constexpr const char* kWholeStepKernel = "";
inline constexpr int kScore = 0;  // `auto` takes any other
inline constexpr pkv_device_type kDeviceType = PKV_DEVICE_CPU;
inline constexpr pkv_status kKernelFault = PKV_INTERNAL;

struct VendorDevice {
  gpu_exec::Machine machine;
  WorkMode mode;
};

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out);
// PKV_GPU_HOST_LACKS=UnifiedAddressing, CanMapHostMemory or CanUseHostPointerForRegisteredMem: a
// device that reports 0 for it.
pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& device);
inline gpuError_t alloc_memory(const VendorDevice& /*device*/, bool is_host, void** out,
                               std::size_t bytes) {
  return is_host ? gpu_host_alloc(out, bytes) : gpuMalloc(out, bytes);
}
inline gpuError_t free_memory(const VendorDevice& /*device*/, bool is_host, void* data) {
  return is_host ? gpu_host_free(data) : gpuFree(data);
}
gpuError_t create_stream(VendorDevice& device, gpuStream_t* out);
bool wrap_stream(VendorDevice& device, uintptr_t native, gpuStream_t* out, bool* is_owned);
// lanes = 32 | 64, seed = 0 .., streams and graph (work.h).
pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value);

}  // namespace pkv::gpu_host
