#include "tests/conformance/runner.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

#include "tests/conformance/failure.h"
#include "tests/conformance/options.h"

namespace pkv::conformance {
namespace {

// Read by the signal handler.
char current_case[256];

void say(const char* text) { [[maybe_unused]] const auto n = write(2, text, std::strlen(text)); }

void on_crash(int signal) {
  say("\npkv-conformance: crashed in case ");
  say(current_case);
  say("\n");
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void set_current(const std::string& name) {
  const size_t length = std::min(name.size(), sizeof current_case - 1);
  std::memcpy(current_case, name.data(), length);
  current_case[length] = '\0';
}

Result run_case(const Bench& bench, const Case& subject) {
  set_current(subject.name);
  const auto start = std::chrono::steady_clock::now();
  Result result = {&subject, Outcome::kPassed, "", 0.0};
  try {
    subject.run(bench);
  } catch (const Skip& skip) {
    result.outcome = Outcome::kSkipped;
    result.text = skip.what();
  } catch (const std::exception& failure) {
    result.outcome = Outcome::kFailed;
    result.text = failure.what();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  result.seconds = elapsed.count();
  return result;
}

}  // namespace

std::vector<const Case*> chosen_cases(const Cases& cases, const std::string& filter, int64_t shard,
                                      int64_t shards) {
  std::vector<const Case*> chosen;
  int64_t index = 0;
  for (const Case& subject : cases) {
    if (!matches(filter, subject.name)) continue;
    if (index++ % shards == shard - 1) chosen.push_back(&subject);
  }
  return chosen;
}

std::vector<Result> run_cases(const Bench& bench, const std::vector<const Case*>& cases,
                              const std::function<void(const Result&)>& done) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    std::signal(signal, on_crash);
  }
  std::vector<Result> results;
  for (const Case* subject : cases) {
    results.push_back(run_case(bench, *subject));
    done(results.back());
  }
  return results;
}

}  // namespace pkv::conformance
