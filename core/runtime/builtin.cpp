// The only place of core that knows backends by name.
#include "core/runtime/builtin.h"

extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);
extern "C" const pkv_backend* pkv_cpu_ref_query(uint32_t host_max_abi, const pkv_host* host);

namespace pkv {
namespace {

constexpr Builtin kBuiltins[] = {{"cpu_ref", pkv_cpu_ref_query}, {"cpu", pkv_cpu_query}};

}  // namespace

std::span<const Builtin> builtins() { return kBuiltins; }

}  // namespace pkv
