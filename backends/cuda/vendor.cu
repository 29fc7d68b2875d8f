#include "backends/cuda/vendor.h"

#include <cstdio>

#include "backends/gpu/device.h"

namespace pkv::cuda {

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out) {
  gpuDeviceProp prop;
  gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) return status_of(host, "device properties", error);
  int driver = 0;  // 1000 major + 10 minor
  error = cudaDriverGetVersion(&driver);
  if (error != gpuSuccess) return status_of(host, "driver version", error);
  out->lanes = prop.warpSize;
  out->memory_bytes = static_cast<int64_t>(prop.totalGlobalMem);
  std::snprintf(out->name, sizeof out->name, "%.80s (sm_%d%d), driver for CUDA %d.%d", prop.name,
                prop.major, prop.minor, driver / 1000, driver % 1000 / 10);
  return PKV_OK;
}

pkv_status set_device_option(const pkv_host* host, VendorDevice& /*device*/, const char* name,
                             const char* /*value*/) {
  return backend::refuse(host, PKV_INVALID_ARGUMENT, "device option %.64s: cuda has none", name);
}

}  // namespace pkv::cuda
