#include "tests/conformance/paths.h"

#include <cstdlib>

namespace pkv::conformance {
namespace {

bool set(const Place& place, const char* value) {
  return pkv_device_set(place.device(), "paths", value) == PKV_OK;
}

}  // namespace

void PathWatch::sink(void* watch, int32_t /*level*/, const char* text) {
  static_cast<PathWatch*>(watch)->hear(text);
}

// "path NAME COUNT".
void PathWatch::hear(const std::string& text) {
  if (text.rfind("path ", 0) != 0) return;
  const size_t space = text.rfind(' ');
  if (space <= 5) return;
  const std::string name = text.substr(5, space - 5);
  const uint64_t count = std::strtoull(text.c_str() + space, nullptr, 10);
  const auto [at, is_new] = counts_.emplace(name, 0);
  if (is_new) names_.push_back(name);
  if (count > at->second) grown_.push_back(name);
  at->second = count;
}

bool PathWatch::open(const Place& place) {
  if (!set(place, "count")) return false;
  take(place);
  return !names_.empty();
}

std::vector<std::string> PathWatch::take(const Place& place) {
  grown_.clear();
  set(place, "log");
  return grown_;
}

}  // namespace pkv::conformance
