// What `pariskv eval` prints. docs/cli.md says what each figure means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pkv::cli {

// Questions asked while the cache held begin + 1 .. end tokens.
struct Window {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t queries = 0;
  std::optional<double> candidate_recall;
  std::optional<double> recall;
  double error = 0;
};

// One line of the result.
struct Result {
  std::string trace;
  std::string method;
  int64_t n = 0;
  int64_t k = 0;
  std::optional<double> candidates;  // a share
  std::optional<double> candidate_recall;
  std::optional<double> recall;
  double mass = 0;
  double error = 0;
  double bytes_per_key = 0;
  double microseconds = 0;
  std::vector<Window> windows;  // with --decode, in ascending order
};

std::string as_json(const std::vector<Result>& results);
// A line per result, with several traces their means, then one per window.
std::string as_table(const std::vector<Result>& results, size_t traces);

}  // namespace pkv::cli
