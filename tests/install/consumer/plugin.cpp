// Refuses with a sentence: enough to see that it was built, found and asked.
#include <pariskv/pariskv_backend.h>

#include <string>

#include "core/format/records.h"

extern "C" PKV_API const pkv_backend *pkv_backend_query(uint32_t, const pkv_host *host) {
  const std::string text = "format " + std::to_string(pkv::format::kFormatVersion) + " outside";
  host->report(host, text.c_str());
  return nullptr;
}
