// Memory that the host and a device both read and write: its kinds with HIP, and what a device
// reports that decides on one (backends/hip/memory.h does; docs/hip.md, section 3), or, with CUDA,
// on whether it is of use (mapped_memory.h).
#pragma once

#include <cstdint>

namespace pkv::gpu {

enum class HostMemory : int32_t {
  kPinnedFine,    // discrete: what the CPU writes is seen by the next kernel, replayed graphs too
  kPinnedCoarse,  // discrete: seen after a wait for the stream
  kShared,        // APU: one allocation for both kinds of memory; nothing is copied
  kManaged,       // moves to whoever touches it
};

// Values of hipDeviceAttribute..; -1: the runtime does not tell.
struct MemoryAttributes {
  int unified_addressing = -1;
  int can_map_host_memory = -1;
  int integrated = -1;
  int concurrent_managed_access = -1;
  int fine_grain_support = -1;
};

// Values of cudaDevAttr..; -1: the runtime does not tell.
struct MappedMemory {
  int unified_addressing = -1;
  int can_map_host_memory = -1;
  int reads_registered = -1;  // CanUseHostPointerForRegisteredMem
};

}  // namespace pkv::gpu
