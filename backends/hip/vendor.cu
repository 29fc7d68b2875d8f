#include "backends/hip/vendor.h"

#include <cstdio>
#include <cstring>

#include "backends/gpu/device.h"

namespace PKV_GPU_NS {
namespace {

// An APU has one kind of memory for both.
bool is_shared(const VendorDevice& device, bool is_host) {
  return is_host || device.host_memory == HostMemory::kShared;
}

}  // namespace

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out) {
  gpuDeviceProp prop;
  gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) return status_of(host, "device properties", error);
  int runtime = 0;
  error = gpuRuntimeGetVersion(&runtime);
  if (error != gpuSuccess) return status_of(host, "runtime version", error);
  out->lanes = prop.warpSize;
  out->memory_bytes = static_cast<int64_t>(prop.totalGlobalMem);
  std::snprintf(out->name, sizeof out->name, "%.60s (%.30s), runtime %d.%d", prop.name,
                prop.gcnArchName, runtime / 10000000, runtime / 100000 % 100);
  return PKV_OK;
}

pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& device) {
  gpuDeviceProp prop;
  const gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) return status_of(host, "device properties", error);
  std::snprintf(device.name, sizeof device.name, "device %d (%.60s)", ordinal, prop.name);
  if (prop.warpSize != PKV_HIP_LANES) {
    return backend::refuse(host, PKV_UNAVAILABLE,
                           "%s: hipDeviceAttributeWarpSize=%d, but its code is for %d lanes: build "
                           "without -mwavefrontsize64",
                           device.name, prop.warpSize, PKV_HIP_LANES);
  }
  device.has = gpu_memory_attributes(ordinal);
  return choose_memory(host, device.name, device.has, &device.host_memory);
}

gpuError_t alloc_memory(VendorDevice& device, bool is_host, void** out, std::size_t bytes) {
  const gpuError_t error = is_shared(device, is_host)
                               ? gpu_host_alloc(out, bytes, device.host_memory)
                               : gpuMalloc(out, bytes);
  if (error == gpuSuccess) device.pieces.fetch_add(1, std::memory_order_relaxed);
  return error;
}

gpuError_t free_memory(VendorDevice& device, bool is_host, void* data) {
  device.pieces.fetch_sub(1, std::memory_order_relaxed);
  return is_shared(device, is_host) ? gpu_host_free(data, device.host_memory) : gpuFree(data);
}

pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value) {
  if (std::strcmp(name, "host_memory") != 0) {
    return backend::refuse(host, PKV_INVALID_ARGUMENT, "device option %.64s: %s has host_memory",
                           name, kName);
  }
  if (device.pieces.load(std::memory_order_relaxed) != 0) {
    return backend::refuse(host, PKV_FAILED_PRECONDITION,
                           "host_memory=%.64s: %s has memory already; set it first", value,
                           device.name);
  }
  return memory_named(host, device.name, device.has, value, &device.host_memory);
}

}  // namespace PKV_GPU_NS
