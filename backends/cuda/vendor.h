// What backend cuda has of its own (backends/gpu/device.h).
#pragma once

#include <atomic>

#include "backends/gpu/gpu_rt.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::cuda {

inline constexpr const char* kName = "cuda";
inline constexpr const char* kVersion = "1";
inline constexpr const char* kAbout = "NVIDIA GPUs; rows in pinned host memory or on the device";
inline constexpr const char* kWholeStepKernel = "fused_step";
inline constexpr int kScore = 100;
inline constexpr pkv_device_type kDeviceType = PKV_DEVICE_CUDA;
inline constexpr pkv_status kKernelFault = PKV_UNAVAILABLE;  // the context is lost with it

// How a decode step runs: option `step`.
enum class StepPath {
  kAuto,   // in one kernel where that serves it, else by stages
  kFused,  // in one kernel, or refused
  kStages,
};

struct VendorDevice {
  std::atomic<StepPath> step_path = StepPath::kAuto;

  // backends/gpu/step.cu: a step in one go. Scratch for it; 0: never.
  int64_t whole_step_bytes(int ordinal, const pkv_step_args& args) const;
  // Refuses what the option does not allow.
  pkv_status check_whole_step(const pkv_host* host, int ordinal, const pkv_step_args& args) const;
  // False: the step is to run by stages.
  bool run_whole_step(int ordinal, const pkv_step_args& args, void* scratch, gpuStream_t stream,
                      gpuError_t* error) const;
};

pkv_status describe_device(const pkv_host* host, int ordinal, pkv_backend_device_info* out);
// Refuses a device that the build has no code for, or whose kernels do not read host memory.
pkv_status open_vendor(const pkv_host* host, int ordinal, VendorDevice& device);
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
// step = auto | fused | stages
pkv_status set_device_option(const pkv_host* host, VendorDevice& device, const char* name,
                             const char* value);

}  // namespace pkv::cuda
