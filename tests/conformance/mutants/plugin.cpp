// Entry of the plug-in. The environment variable PKV_CONFORMANCE_MUTANT names the fault: none if it
// is empty; for a name that does not exist the plug-in prints those that do, and refuses.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/conformance/mutants/mutant.h"
#include "tests/conformance/mutants/single.h"

extern "C" const pkv_backend* pkv_cpu_ref_query(uint32_t host_max_abi, const pkv_host* host);
extern "C" const pkv_backend* pkv_cpu_query(uint32_t host_max_abi, const pkv_host* host);
extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

namespace pkv::mutants {
namespace {

const pkv_backend* sound_table = nullptr;
const pkv_backend* fused_table = nullptr;

std::vector<Mutant> all_mutants() {
  std::vector<Mutant> all;
  for (const auto& list :
       {encode_mutants(), vote_mutants(), select_mutants(), rerank_mutants(), fetch_mutants(),
        attend_mutants(), step_mutants(), single_attend(), single_fit(), single_rerank()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

const pkv_backend* make_table(const pkv_host* host) {
  static pkv_backend table = {};
  table = *sound_table;
  table.name = "mutant";
  table.score = 0;
  const char* wanted = std::getenv("PKV_CONFORMANCE_MUTANT");
  if (wanted == nullptr || *wanted == '\0') return &table;
  std::string names = "mutants:";  // longer than the text of an error may be
  for (const Mutant& mutant : all_mutants()) {
    names += std::string(" ") + mutant.name;
    if (std::strcmp(mutant.name, wanted) != 0) continue;
    mutant.apply(table);
    return &table;
  }
  std::fprintf(stderr, "%s\n", names.c_str());
  host->report(host, "PKV_CONFORMANCE_MUTANT names no mutant");
  return nullptr;
}

}  // namespace

const pkv_backend& sound() { return *sound_table; }
const pkv_backend& fused() { return *fused_table; }

}  // namespace pkv::mutants

const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  pkv::mutants::sound_table = pkv_cpu_ref_query(host_max_abi, host);
  pkv::mutants::fused_table = pkv_cpu_query(host_max_abi, host);
  const bool has_both =
      pkv::mutants::sound_table != nullptr && pkv::mutants::fused_table != nullptr;
  return has_both ? pkv::mutants::make_table(host) : nullptr;
}
