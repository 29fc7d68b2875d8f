// Results as text, JSON and JUnit XML.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/conformance/options.h"
#include "tests/conformance/runner.h"

namespace pkv::conformance {

struct Count {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
};
Count count_of(const std::vector<Result>& results);

// What the results are of.
struct Run {
  std::string backend;
  std::string device;
  std::string reference;
  Options options;
};

void print_head(std::FILE* out, const Run& run, size_t cases);
// A failure with the command that repeats it, or a skip with its reason; nothing for a pass.
void print_result(std::FILE* out, const Run& run, const Result& result);
// A table by stage, the cases held against golden vectors, and the closing line.
void print_summary(std::FILE* out, const std::vector<Result>& results);

std::string to_json(const Run& run, const std::vector<Result>& results);
std::string to_junit(const Run& run, const std::vector<Result>& results);

// Text as XML 1.0 character data or attribute value.
std::string escape_xml(const std::string& text);

}  // namespace pkv::conformance
