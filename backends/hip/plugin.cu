// Backend hip as a plug-in. A machine without a driver, or with devices that this build has no code
// for, still loads it: hip is then absent, with the reason.
#include <cstdio>

#include "backends/gpu/gpu_rt.h"
#include "backends/hip/router.h"
#include "pariskv/pariskv_backend.hpp"

// PKV_HIP_ARCHITECTURES is a list of PKV_HIP_ARCHITECTURE(name), set by the build.
#define PKV_HIP_ARCHITECTURE(name) \
  namespace pkv::hip::name {       \
  const pkv_backend* table();      \
  }
PKV_HIP_ARCHITECTURES
#undef PKV_HIP_ARCHITECTURE

namespace pkv::hip {

std::span<const Architecture> architectures() {
#define PKV_HIP_ARCHITECTURE(name) {#name, name::table()},
  static const Architecture all[] = {PKV_HIP_ARCHITECTURES};
#undef PKV_HIP_ARCHITECTURE
  return all;
}

pkv_status name_architecture(const pkv_host* host, int32_t ordinal, char* out, int32_t bytes) {
  gpuDeviceProp prop;
  const gpuError_t error = gpuGetDeviceProperties(&prop, ordinal);
  if (error != gpuSuccess) {
    return backend::refuse(host, PKV_UNAVAILABLE, "device properties: %s",
                           PKV_GPU_NS::gpu_error_text(error));
  }
  std::snprintf(out, static_cast<std::size_t>(bytes), "%s", prop.gcnArchName);
  return PKV_OK;
}

namespace {

// A device that nothing stands against; the last reason is left with the host.
bool is_usable(const pkv_host* host, const pkv_backend& table, int32_t ordinal) {
  pkv_backend_device* device = nullptr;
  if (table.device_open(host, ordinal, &device) != PKV_OK) return false;
  table.device_close(device);
  return true;
}

}  // namespace
}  // namespace pkv::hip

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  if (!pkv::backend::accepts_host(host_max_abi, host)) return nullptr;
  static const pkv_backend table = pkv::hip::route(*pkv::hip::architectures().front().table);
  int32_t count = 0;
  if (table.device_count(host, &count) != PKV_OK) return nullptr;
  for (int32_t ordinal = 0; ordinal < count; ++ordinal) {
    if (pkv::hip::is_usable(host, table, ordinal)) return &table;
  }
  if (count == 0) pkv::backend::refuse(host, PKV_UNAVAILABLE, "%s: no device", table.name);
  return nullptr;
}
