// Results of earlier runs, as --json wrote them: those of shards become one report.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/options.h"
#include "tests/conformance/runner.h"

namespace pkv::conformance {

struct Earlier {
  Opened places;
  Options options;  // backend, its device's options, seed
  std::vector<Result> results;
};

// In the order of `cases`. Throws std::runtime_error if a file is none of these, names a case that
// there is not or that another file has, or is of another backend, device, option or seed.
Earlier read_earlier(const std::vector<std::string>& files, const Cases& cases);

}  // namespace pkv::conformance
