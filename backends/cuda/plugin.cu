// Backend cuda as a plug-in. A machine without a driver still loads it: cuda is then absent, with
// the runtime's reason.
#include "backends/gpu/device.h"

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  if (!pkv::backend::accepts_host(host_max_abi, host)) return nullptr;
  const pkv_backend* table = pkv::cuda::table();
  int32_t count = 0;
  if (table->device_count(host, &count) != PKV_OK) return nullptr;
  if (count > 0) return table;
  pkv::backend::refuse(host, PKV_UNAVAILABLE, "cuda: no device");
  return nullptr;
}
