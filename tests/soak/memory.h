// Memory of the program that a device's kernels can read: from use_device_memory on, operator new
// takes it from one block that the device allocated. Before it, and with backends on the CPU, from
// the system.
#pragma once

#include <cstddef>

#include "pariskv/pariskv.h"

namespace pkv::soak {

void use_device_memory(pkv_device* device, std::size_t bytes);
// Resident bytes of the process.
std::size_t resident_bytes();

}  // namespace pkv::soak
