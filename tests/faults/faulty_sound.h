// The backend that the faulty plug-in is made of.
#pragma once

#include "pariskv/pariskv_backend.h"

#ifdef PKV_FAULTY_GPU_HOST
#include "backends/gpu/device.h"

inline const pkv_backend* pkv_sound_query(uint32_t host_max_abi, const pkv_host* host) {
  return pkv::backend::accepts_host(host_max_abi, host) ? pkv::gpu_host::table() : nullptr;
}
#else
#include "backends/cpu/device.h"

inline const pkv_backend* pkv_sound_query(uint32_t host_max_abi, const pkv_host* host) {
  return pkv_cpu_query(host_max_abi, host);
}
#endif
