#include "backends/gpu/device.h"

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  return pkv::backend::accepts_host(host_max_abi, host) ? pkv::gpu_host::table() : nullptr;
}
