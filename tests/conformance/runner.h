// Runs cases one after another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/bench.h"

namespace pkv::conformance {

enum class Outcome { kPassed, kFailed, kSkipped };

struct Result {
  const Case* subject;
  Outcome outcome;
  std::string text;  // what differs, or why skipped
  double seconds;
};

// Those that match `filter`, of these every shards-th from shard - 1 on.
std::vector<const Case*> chosen_cases(const Cases& cases, const std::string& filter, int64_t shard,
                                      int64_t shards);

// `done` is called after each case. A crash inside a case leaves its name on stderr.
std::vector<Result> run_cases(const Bench& bench, const std::vector<const Case*>& cases,
                              const std::function<void(const Result&)>& done);

}  // namespace pkv::conformance
