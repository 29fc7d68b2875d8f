// What backend hip has of its own (backends/gpu/device.h), for the one architecture that this
// compilation is for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/gpu/gpu_rt.h"
#include "backends/hip/memory.h"
#include "pariskv/pariskv_backend.h"

#if !defined(PKV_HIP_NAME)
#define PKV_HIP_NAME "hip"
#endif

namespace PKV_GPU_NS {

inline constexpr const char* kName = PKV_HIP_NAME;
inline constexpr const char* kVersion = "1";
inline constexpr const char* kAbout = "AMD GPUs; rows in host memory or on the device";
inline constexpr const char* kWholeStepKernel = "";
inline constexpr int kScore = 90;
inline constexpr pkv_device_type kDeviceType = PKV_DEVICE_ROCM;
inline constexpr pkv_status kKernelFault = PKV_UNAVAILABLE;  // the context is lost with it

struct VendorDevice {
  MemoryAttributes has;
  HostMemory host_memory = HostMemory::kPinnedFine;
  std::atomic<int64_t> pieces{0};  // of memory that are allocated
  char name[96] = {};              // of the device, for texts
};

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out);
pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& device);

gpuError_t alloc_memory(VendorDevice& device, bool is_host, void** out, std::size_t bytes);
gpuError_t free_memory(VendorDevice& device, bool is_host, void* data);

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
// host_memory = fine | coarse | shared | managed, before anything is allocated
pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value);

}  // namespace PKV_GPU_NS
