#include "backends/gpu/host/runtime.h"

#include <cstdio>

namespace pkv::gpu_host {
namespace {

// Of the last failed launch, as a runtime's error state is.
thread_local char kernel_fault[512];

}  // namespace

gpuError_t run_on_host(gpuStream_t stream, const gpu_exec::Launch& launch,
                       const std::function<void()>& lane) {
  const Reach reach;
  const std::string fault = stream->machine->run(launch, lane);
  if (fault.empty()) return gpuSuccess;
  std::snprintf(kernel_fault, sizeof kernel_fault, "%s", fault.c_str());
  return gpuErrorKernel;
}

const char* gpu_error_text(gpuError_t error) {
  switch (error) {
    case gpuSuccess: return "no error";
    case gpuErrorInvalidValue: return "invalid value";
    case gpuErrorMemoryAllocation: return "out of memory";
    case gpuErrorNoDevice: return "no device";
    case gpuErrorKernel: return kernel_fault;
  }
  return "unknown error";
}

}  // namespace pkv::gpu_host
