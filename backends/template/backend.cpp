// The table, and the one symbol that a host looks for. Start here: docs/backend-guide.md.
#include "backends/template/device.h"
#include "backends/template/stages.h"
#include "core/format/records.h"
#include "pariskv/pariskv_backend.hpp"

extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

namespace pkv::template_backend {
namespace {

pkv_backend make_table() {
  pkv_backend table = {};
  table.struct_size = sizeof table;
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.abi_minor = PKV_BACKEND_ABI_MINOR;
  table.build_flags = backend::build_flags();
  table.format_version = format::kFormatVersion;
  table.score = 0;  // `auto` takes the highest: stay at 0 until conformance passes
  table.name = "template";
  table.version = "0";
  table.about = "skeleton of a backend: devices and memory, no stage yet";
  fill_device_slots(table);
  fill_store_slots(table);
  table.fit = fit_slots();
  table.encode = encode_slots();
  table.vote = vote_slots();
  table.select = select_slots();
  table.rerank = rerank_slots();
  table.fetch = fetch_slots();
  table.attend = attend_slots();
  return table;
}

}  // namespace
}  // namespace pkv::template_backend

// PKV_BACKEND_QUERY_SYMBOL
const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  static const pkv_backend table = pkv::template_backend::make_table();
  return pkv::backend::accepts_host(host_max_abi, host) ? &table : nullptr;
}
