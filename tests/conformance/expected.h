// Failures that the author of a backend knows of, each with its reason.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/runner.h"

namespace pkv::conformance {

struct Expectation {
  std::string glob;
  std::string reason;
};

// Lines `GLOB: REASON`; empty ones and those that begin with # do not count. Throws UsageError for
// a line without a reason and for a glob that none of `cases` matches.
std::vector<Expectation> read_expectations(const std::string& path, const Cases& cases);

// A failure that is expected becomes kExpected, with the reason; a pass that is not becomes a
// failure.
void apply(const std::vector<Expectation>& expectations, Result& result);

}  // namespace pkv::conformance
