// The device of the reference backend: the host itself, one thread, everything done when a slot
// returns.
#pragma once

#include <cstdint>

#include "pariskv/pariskv_backend.h"

struct pkv_backend_device {
  const pkv_host* host;
};

extern "C" const pkv_backend* pkv_cpu_ref_query(uint32_t host_max_abi, const pkv_host* host);
