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
  int64_t expected = 0;  // failed as expected
};
Count count_of(const std::vector<Result>& results);

// What the results are of.
struct Run {
  Opened places;
  Options options;
  size_t cases;      // chosen
  size_t all_cases;  // that there are

  bool is_whole() const { return cases == all_cases; }
};

void print_head(std::FILE* out, const Run& run);
// A failure with the command that repeats it, or a skip with its reason; nothing for a pass.
void print_result(std::FILE* out, const Run& run, const Result& result);
// A table by stage, the cases held against golden vectors, and the closing line.
void print_summary(std::FILE* out, const Run& run, const std::vector<Result>& results);

// A path of the backend, and who reached it.
struct PathCount {
  std::string path;
  int64_t cases = 0;
  std::string first;  // of these cases
};
std::vector<PathCount> counts_of_paths(const Run& run, const std::vector<Result>& results);
// Of all cases there are, no path was left out. Of fewer nothing is asked.
bool reached_all(const Run& run, const std::vector<Result>& results);

// Of the results of one stage; stages in the order of their first case.
struct StageCount {
  std::string stage;
  Count count;
};
std::vector<StageCount> counts_of_stages(const std::vector<Result>& results);
// "passed", "failed", ..
const char* outcome_name(Outcome outcome);
// The shell command that repeats a case.
std::string command(const Run& run, const Case& subject);

std::string to_json(const Run& run, const std::vector<Result>& results);
std::string to_junit(const Run& run, const std::vector<Result>& results);

// Text as XML 1.0 character data or attribute value.
std::string escape_xml(const std::string& text);

}  // namespace pkv::conformance
