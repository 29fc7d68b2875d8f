// The device of the CPU backend: the host's memory, its threads, its instruction set. Slots are
// done when they return.
#pragma once

#include "backends/cpu/isa.h"
#include "backends/cpu/pool.h"
#include "pariskv/pariskv_backend.h"

struct pkv_backend_device {
  explicit pkv_backend_device(const pkv_host* owner) : host(owner), pool(owner) {}

  const pkv_host* host;
  pkv::cpu::Pool pool;
  pkv::cpu::Isa isa;
};

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);
