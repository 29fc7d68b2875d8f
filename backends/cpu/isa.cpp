#include "backends/cpu/isa.h"

#include <cctype>
#include <cstdint>
#include <vector>

namespace pkv::cpu {
namespace {

// What is compiled for one set alone asks no processor.
int64_t supported() { return HWY_SUPPORTED_TARGETS & HWY_TARGETS; }

std::string name_of(int64_t target) {
  std::string name = hwy::TargetName(target);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// Each a bit of its own, best first: Highway gives better sets lower bits.
std::vector<int64_t> targets() {
  std::vector<int64_t> result;
  for (int64_t rest = supported(); rest != 0; rest &= rest - 1) result.push_back(rest & -rest);
  return result;
}

}  // namespace

bool Isa::is_any() { return supported() != 0; }

std::string Isa::names() {
  std::string result;
  for (const int64_t target : targets()) {
    result += (result.empty() ? "" : ", ") + name_of(target);
  }
  return result;
}

bool Isa::set(std::string_view name) {
  if (name == "best") {
    chosen_.Update(supported());
    return true;
  }
  for (const int64_t target : targets()) {
    if (name_of(target) == name) {
      chosen_.Update(target);
      return true;
    }
  }
  return false;
}

}  // namespace pkv::cpu
