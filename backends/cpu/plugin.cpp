// The backend as a plug-in: the same table behind the symbol that hosts look for.
#include "backends/cpu/device.h"

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  return pkv_cpu_query(host_max_abi, host);
}
