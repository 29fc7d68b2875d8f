// Which of a backend's paths a case has reached: kernels, or ways through a stage, as far as the
// backend tells them (device option `paths`, docs/backend-guide.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/conformance/place.h"

namespace pkv::conformance {

class PathWatch {
 public:
  // The sink of a runtime whose devices are watched.
  static void sink(void* watch, int32_t level, const char* text);

  // False: the backend does not tell its paths.
  bool open(const Place& place);
  // All there are, in the backend's order.
  const std::vector<std::string>& names() const { return names_; }
  // Those that have run since the last call.
  std::vector<std::string> take(const Place& place);

 private:
  void hear(const std::string& text);

  std::vector<std::string> names_;
  std::map<std::string, uint64_t> counts_;
  std::vector<std::string> grown_;
};

}  // namespace pkv::conformance
