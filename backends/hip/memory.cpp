#include "backends/hip/memory.h"

#include <cstring>

#include "pariskv/pariskv_backend.hpp"

namespace pkv::hip {
namespace {

using backend::refuse;

// The best first.
constexpr HostMemory kKinds[] = {HostMemory::kShared, HostMemory::kPinnedFine,
                                 HostMemory::kPinnedCoarse, HostMemory::kManaged};

// What a runtime does not tell of pinned memory is taken as there: HIP promises it for all devices.
// What it does not tell of managed memory and of APUs is taken as missing.
const char* lacks(const MemoryAttributes& has, HostMemory kind) {
  if (has.unified_addressing == 0) return "hipDeviceAttributeUnifiedAddressing";
  switch (kind) {
    case HostMemory::kPinnedFine:
      if (has.fine_grain_support == 0) return "hipDeviceAttributeFineGrainSupport";
      [[fallthrough]];
    case HostMemory::kPinnedCoarse:
      return has.can_map_host_memory == 0 ? "hipDeviceAttributeCanMapHostMemory" : nullptr;
    case HostMemory::kShared:
      if (has.integrated != 1) return "hipDeviceAttributeIntegrated";
      return has.can_map_host_memory == 0 ? "hipDeviceAttributeCanMapHostMemory" : nullptr;
    case HostMemory::kManaged:
      return has.concurrent_managed_access == 1 ? nullptr
                                                : "hipDeviceAttributeConcurrentManagedAccess";
  }
  return nullptr;
}

}  // namespace

const char* name_of(HostMemory kind) {
  switch (kind) {
    case HostMemory::kPinnedFine: return "fine";
    case HostMemory::kPinnedCoarse: return "coarse";
    case HostMemory::kShared: return "shared";
    case HostMemory::kManaged: return "managed";
  }
  return "?";
}

pkv_status choose_memory(const pkv_host* host, const char* device, const MemoryAttributes& has,
                         HostMemory* out) {
  if (has.unified_addressing == 0) {
    return refuse(host, PKV_UNAVAILABLE,
                  "%s: hipDeviceAttributeUnifiedAddressing=0, needed: 1, since kernels read host "
                  "memory at the host's address; backend cpu needs no device",
                  device);
  }
  for (const HostMemory kind : kKinds) {
    if (lacks(has, kind) != nullptr) continue;
    *out = kind;
    return PKV_OK;
  }
  return refuse(host, PKV_UNAVAILABLE,
                "%s: hipDeviceAttributeCanMapHostMemory=%d and "
                "hipDeviceAttributeConcurrentManagedAccess=%d, needed: one of them 1, or no kernel "
                "reads host memory; HSA_XNACK=1 turns the second on where the device can (docs/"
                "hip.md, section 3)",
                device, has.can_map_host_memory, has.concurrent_managed_access);
}

pkv_status memory_named(const pkv_host* host, const char* device, const MemoryAttributes& has,
                        const char* name, HostMemory* out) {
  for (const HostMemory kind : kKinds) {
    if (std::strcmp(name, name_of(kind)) != 0) continue;
    const char* attribute = lacks(has, kind);
    if (attribute == nullptr) {
      *out = kind;
      return PKV_OK;
    }
    HostMemory best{};
    const pkv_status status = choose_memory(host, device, has, &best);
    if (status != PKV_OK) return status;
    return refuse(host, PKV_FAILED_PRECONDITION,
                  "host_memory=%s: %s does not report %s; host_memory=%s is what it has", name,
                  device, attribute, name_of(best));
  }
  return refuse(host, PKV_INVALID_ARGUMENT,
                "host_memory=%.64s, accepted: fine, coarse, shared, managed", name);
}

}  // namespace pkv::hip
