// The verdict as one HTML page: nothing but itself is needed to read, print or publish it.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/report.h"

namespace pkv::conformance {

std::string to_html(const Run& run, const std::vector<Result>& results);

}  // namespace pkv::conformance
