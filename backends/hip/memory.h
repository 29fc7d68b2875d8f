// Which memory a HIP device gets where the host reads and writes too, from what the device reports.
// Plain C++, so that every kind of device can be tested without one. docs/hip.md, section 3.
#pragma once

#include "backends/gpu/host_memory.h"
#include "pariskv/pariskv_backend.h"

namespace pkv::hip {

using gpu::HostMemory;
using gpu::MemoryAttributes;

// "fine", "coarse", "shared", "managed".
const char* name_of(HostMemory kind);

// The best kind that the device has. What it lacks is refused with the attribute and the way out;
// `device` names it in the text.
pkv_status choose_memory(const pkv_host* host, const char* device, const MemoryAttributes& has,
                         HostMemory* out);

// The kind that the device option host_memory names, if the device has it.
pkv_status memory_named(const pkv_host* host, const char* device, const MemoryAttributes& has,
                        const char* name, HostMemory* out);

}  // namespace pkv::hip
