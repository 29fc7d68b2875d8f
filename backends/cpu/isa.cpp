#include "backends/cpu/isa.h"

#include <cctype>
#include <cstdint>
#include <vector>

#if HWY_TARGETS & HWY_SVE_256
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace pkv::cpu {
namespace {

#if HWY_TARGETS & HWY_SVE_256
// Not Highway's answer: of machines with NEON it wants AES, which nothing here uses.
std::vector<int64_t> targets() {
  std::vector<int64_t> result = {HWY_NEON};
  const bool has_sve = (getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
  const int vector = has_sve ? prctl(PR_SVE_GET_VL) : 0;
  if (vector >= 0 && (vector & PR_SVE_VL_LEN_MASK) == 32) result.push_back(HWY_SVE_256);
  return result;
}
#else
// Each a bit of its own: Highway gives better sets lower bits. What is compiled for one set alone
// asks no processor.
std::vector<int64_t> targets() {
  std::vector<int64_t> result;
  for (int64_t rest = HWY_SUPPORTED_TARGETS & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    result.push_back(rest & -rest);
  }
  return result;
}
#endif

std::string name_of(int64_t target) {
  std::string name = hwy::TargetName(target);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

bool Isa::is_any() { return !targets().empty(); }

std::string Isa::names() {
  std::string result;
  for (const int64_t target : targets()) {
    result += (result.empty() ? "" : ", ") + name_of(target);
  }
  return result;
}

bool Isa::set(std::string_view name) {
  for (const int64_t target : targets()) {
    if (name == "best" || name == name_of(target)) {
      chosen_.Update(target);
      return true;
    }
  }
  return false;
}

}  // namespace pkv::cpu
