#include "backends/cuda/vendor.h"

#include <cstdio>
#include <string_view>

#include "backends/cuda/architectures.h"
#include "backends/cuda/fused.h"
#include "backends/gpu/device.h"
#include "backends/gpu/mapped_memory.h"

namespace pkv::cuda {
namespace {

pkv_status check_code(const pkv_host* host, int ordinal, const gpuDeviceProp& prop) {
  if (has_code_for(PKV_CUDA_BUILT, prop.major, prop.minor)) return PKV_OK;
  char text[384];
  write_missing_code(text, sizeof text, PKV_CUDA_BUILT, ordinal, prop.name, prop.major, prop.minor);
  return backend::refuse(host, PKV_UNAVAILABLE, "%s", text);
}

}  // namespace

pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& /*device*/) {
  gpuDeviceProp prop;
  const gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) return status_of(host, "device properties", error);
  const pkv_status status = check_code(host, ordinal, prop);
  if (status != PKV_OK) return status;
  char name[128];
  std::snprintf(name, sizeof name, "device %d (%.80s)", ordinal, prop.name);
  return gpu::check_mapped(host, name, "cudaDevAttr", gpu_mapped_memory(ordinal));
}

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out) {
  gpuDeviceProp prop;
  gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) return status_of(host, "device properties", error);
  const pkv_status status = check_code(host, ordinal, prop);
  if (status != PKV_OK) return status;
  int driver = 0;  // 1000 major + 10 minor
  error = cudaDriverGetVersion(&driver);
  if (error != gpuSuccess) return status_of(host, "driver version", error);
  out->lanes = prop.warpSize;
  out->memory_bytes = static_cast<int64_t>(prop.totalGlobalMem);
  std::snprintf(out->name, sizeof out->name, "%.80s (sm_%d%d), driver for CUDA %d.%d", prop.name,
                prop.major, prop.minor, driver / 1000, driver % 1000 / 10);
  return PKV_OK;
}

pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value) {
  if (std::string_view(name) != "step") {
    return backend::refuse(host, PKV_INVALID_ARGUMENT, "device option %.64s: cuda has step", name);
  }
  const std::string_view path = value;
  if (path == "auto") {
    device.step_path = StepPath::kAuto;
  } else if (path == "fused") {
    device.step_path = StepPath::kFused;
  } else if (path == "stages") {
    device.step_path = StepPath::kStages;
  } else {
    return backend::refuse(host, PKV_INVALID_ARGUMENT, "step=%.64s: must be auto, fused or stages",
                           value);
  }
  return PKV_OK;
}

int64_t VendorDevice::whole_step_bytes(int ordinal, const pkv_step_args& args) const {
  return why_not_fused_shape(args, ordinal) == nullptr ? fused_scratch_bytes(args, ordinal) : 0;
}

pkv_status VendorDevice::check_whole_step(const pkv_host* host, int ordinal,
                                          const pkv_step_args& args) const {
  if (step_path != StepPath::kFused) return PKV_OK;
  const char* why = why_not_fused_shape(args, ordinal);
  if (why == nullptr) why = why_not_fused_types(args, ordinal);
  return why == nullptr ? PKV_OK : backend::refuse(host, PKV_UNIMPLEMENTED, "step=fused: %s", why);
}

bool VendorDevice::run_whole_step(int ordinal, const pkv_step_args& args, void* scratch,
                                  gpuStream_t stream, gpuError_t* error) const {
  if (step_path == StepPath::kStages || why_not_fused_shape(args, ordinal) != nullptr ||
      why_not_fused_types(args, ordinal) != nullptr) {
    return false;
  }
  *error = launch_fused(args, ordinal, scratch, stream);
  return true;
}

}  // namespace pkv::cuda
