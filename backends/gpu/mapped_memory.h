// Whether kernels of a device read host memory where the host has it, as K and V rows, positions
// and lengths need: asked when the device is opened, so that no fetch comes to harm. Backends
// allocate such memory and register none. Plain C++, so that it is tested without a device.
#pragma once

#include <cstdint>
#include <cstdio>

#include "backends/gpu/host_memory.h"
#include "pariskv/pariskv_backend.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::gpu {

inline constexpr int32_t kLogWarning = 1;

// Refuses a device that lacks one of the first two. The third one matters to callers alone, who are
// told. `prefix` of the attributes' names, as cudaDevAttr; `device` names it in the texts.
inline pkv_status check_mapped(const pkv_host* host, const char* device, const char* prefix,
                               const MappedMemory& has) {
  const char* missing = has.unified_addressing == 0    ? "UnifiedAddressing"
                        : has.can_map_host_memory == 0 ? "CanMapHostMemory"
                                                       : nullptr;
  if (missing != nullptr) {
    return backend::refuse(host, PKV_UNAVAILABLE,
                           "%.120s: %s%s=0, needed: 1, since kernels read rows in host memory at "
                           "the host's address; backend cpu needs no device",
                           device, prefix, missing);
  }
  if (has.reads_registered == 0 && host != nullptr && host->log != nullptr) {
    char text[384];
    std::snprintf(
        text, sizeof text,
        "%.120s: %sCanUseHostPointerForRegisteredMem=0: pass host memory of "
        "pkv_device_alloc, or that the runtime allocated pinned, none that was registered",
        device, prefix);
    host->log(host, kLogWarning, text);
  }
  return PKV_OK;
}

}  // namespace pkv::gpu
