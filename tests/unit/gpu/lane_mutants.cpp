// The lane group operations of gpu-host's hardware in forms that are right on 32 lanes alone;
// PKV_LANE_MUTANT picks one. The linker puts these in place of the executor's (--wrap), so that the
// kernels are those of gpu-host, unchanged.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "backends/gpu/host/exec.h"

namespace {

bool is_on(const char* mutant) {
  static const char* const chosen = std::getenv("PKV_LANE_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, mutant) == 0;
}

}  // namespace

extern "C" {

uint64_t real_ballot(int32_t size, bool predicate,
                     pkv::gpu_exec::Site site) asm("__real__ZN3pkv8gpu_exec6ballotEibNS0_4SiteE");
uint64_t wrap_ballot(int32_t size, bool predicate,
                     pkv::gpu_exec::Site site) asm("__wrap__ZN3pkv8gpu_exec6ballotEibNS0_4SiteE");
uint64_t wrap_ballot(int32_t size, bool predicate, pkv::gpu_exec::Site site) {
  const uint64_t bits = real_ballot(size, predicate, site);
  return is_on("ballot_of_32") ? static_cast<uint32_t>(bits) : bits;
}

uint64_t real_shuffle(int32_t size, uint64_t bits, int32_t source, pkv::gpu_exec::Site site) asm(
    "__real__ZN3pkv8gpu_exec7shuffleEimiNS0_4SiteE");
uint64_t wrap_shuffle(int32_t size, uint64_t bits, int32_t source, pkv::gpu_exec::Site site) asm(
    "__wrap__ZN3pkv8gpu_exec7shuffleEimiNS0_4SiteE");
uint64_t wrap_shuffle(int32_t size, uint64_t bits, int32_t source, pkv::gpu_exec::Site site) {
  return real_shuffle(size, bits, is_on("shuffle_of_32") ? source % 32 : source, site);
}

int32_t real_lanes() asm("__real__ZN3pkv8gpu_exec14hardware_lanesEv");
int32_t wrap_lanes() asm("__wrap__ZN3pkv8gpu_exec14hardware_lanesEv");
int32_t wrap_lanes() { return is_on("lanes_are_32") ? 32 : real_lanes(); }

}  // extern "C"
