// Which cases run, and runs them one after another in this process. isolation.h does it in others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/bench.h"
#include "tests/conformance/options.h"

namespace pkv::conformance {

// kExpected: failed, as a list of expected failures says (expected.h).
enum class Outcome { kPassed, kFailed, kSkipped, kExpected };

struct Result {
  const Case* subject;
  Outcome outcome;
  std::string text;  // what differs, or why skipped
  double seconds;
  std::vector<std::string> paths = {};  // of the backend that it reached
};

// The places that cases run on, in words.
struct Opened {
  std::string backend;
  std::string version;
  std::string device;
  std::string reference;
  std::vector<std::string> paths = {};  // that the backend tells of
};

// Told what happens while it happens.
struct Observer {
  std::function<void(const Opened&)> opened;
  std::function<void(const Case&)> started;
  std::function<void(const Result&)> finished;
};

// Those that match `filter`, of these every shards-th from shard - 1 on.
std::vector<const Case*> chosen_cases(const Cases& cases, const std::string& filter, int64_t shard,
                                      int64_t shards);

// Opens the places, then runs cases[first] to the last. With Options::in_process a crash leaves the
// name of its case on stderr. Throws Unavailable.
void run_here(const Options& options, const std::vector<const Case*>& cases, size_t first,
              const Observer& observer);

}  // namespace pkv::conformance
