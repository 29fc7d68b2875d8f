// A host that keeps the last text that a backend leaves.
#pragma once

#include <string>

#include "pariskv/pariskv_backend.h"

namespace pkv::hip {

struct Reports {
  Reports() {
    host.struct_size = sizeof host;
    host.user = this;
    host.report = [](const pkv_host* from, const char* said) {
      static_cast<Reports*>(from->user)->text = said;
    };
  }
  bool has(const char* part) const { return text.find(part) != std::string::npos; }

  pkv_host host = {};
  std::string text;
};

}  // namespace pkv::hip
