#include "tests/conformance/runner.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/paths.h"
#include "tests/conformance/place.h"

namespace pkv::conformance {
namespace {

constexpr const char* kReference = "cpu_ref";

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

void run_here(const Options& options, const std::vector<const Case*>& cases, size_t first,
              const Observer& observer) {
  PathWatch watch;
  const Runtime runtime = open_runtime(PathWatch::sink, &watch);
  const Place reference(runtime.get(), kReference);
  const Place subject(runtime.get(), backend_name(runtime.get(), options.backend), options.set);
  const Bench bench(reference, subject, options.seed);
  const bool is_watched = options.paths && watch.open(subject);
  observer.opened({subject.backend(), backend_version(runtime.get(), subject.backend()),
                   subject.description(), reference.backend(), watch.names()});
  if (options.in_process) {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
      std::signal(signal, on_crash);
    }
  }
  for (size_t i = first; i < cases.size(); ++i) {
    set_current(cases[i]->name);
    observer.started(*cases[i]);
    Result result = run_case(bench, *cases[i]);
    if (is_watched) result.paths = watch.take(subject);
    observer.finished(result);
  }
}

}  // namespace pkv::conformance
