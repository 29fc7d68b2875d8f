#include "tests/conformance/expected.h"

#include <algorithm>
#include <fstream>

#include "fmt/core.h"

namespace pkv::conformance {

std::vector<Expectation> read_expectations(const std::string& path, const Cases& cases) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be read", path));
  std::vector<Expectation> expectations;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(": ");
    const size_t reason =
        line.find_first_not_of(' ', colon == std::string::npos ? colon : colon + 1);
    if (reason == std::string::npos) {
      throw UsageError(fmt::format("{}:{}: '{}', accepted: GLOB: REASON", path, number, line));
    }
    const std::string glob = line.substr(0, colon);
    const auto is_meant = [&](const Case& subject) { return matches(glob, subject.name); };
    if (std::none_of(cases.begin(), cases.end(), is_meant)) {
      throw UsageError(fmt::format("{}:{}: {}: no case of that name", path, number, glob));
    }
    expectations.push_back({glob, line.substr(reason)});
  }
  if (file.bad()) throw std::runtime_error(fmt::format("{}: cannot be read", path));
  return expectations;
}

void apply(const std::vector<Expectation>& expectations, Result& result) {
  for (const Expectation& expectation : expectations) {
    if (!matches(expectation.glob, result.subject->name)) continue;
    if (result.outcome == Outcome::kFailed) {
      result.outcome = Outcome::kExpected;
      result.text = fmt::format("{} (it was: {})", expectation.reason, result.text);
    } else if (result.outcome == Outcome::kPassed) {
      result.outcome = Outcome::kFailed;
      result.text = fmt::format("passed, but is expected to fail: {}", expectation.reason);
    }
    return;
  }
}

}  // namespace pkv::conformance
