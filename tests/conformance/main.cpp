// pkv-conformance: holds a backend against cpu_ref, through the public headers only.
// docs/backend-guide.md says how an author uses it, docs/numerics.md what it holds a backend to.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <set>

#include "fmt/core.h"
#include "tests/conformance/expected.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/faults.h"
#include "tests/conformance/golden.h"
#include "tests/conformance/isolation.h"
#include "tests/conformance/merge.h"
#include "tests/conformance/options.h"
#include "tests/conformance/page.h"
#include "tests/conformance/random_cases.h"
#include "tests/conformance/report.h"
#include "tests/conformance/runner.h"

namespace pkv::conformance {
namespace {

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kUnavailable = 4, kSystem = 5 };

Cases all_cases(const Options& options) {
  Cases cases;
  if (options.random > 0) {
    add_random_cases(cases, options.seed, options.random);
    return cases;
  }
  add_fit_cases(cases);
  add_encode_cases(cases);
  add_store_cases(cases);
  add_vote_cases(cases);
  add_select_cases(cases);
  add_rerank_cases(cases);
  add_fetch_cases(cases);
  add_attend_cases(cases);
  add_step_cases(cases);
  add_cache_cases(cases);
  add_golden_cases(cases, options.golden.empty() ? embedded_golden() : read_golden(options.golden));
  std::set<std::string> names;
  for (const Case& subject : cases) {
    if (names.insert(subject.name).second) continue;
    throw std::runtime_error(fmt::format("two cases are named {}", subject.name));
  }
  return cases;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be written", path));
}

void list(const std::vector<const Case*>& cases) {
  for (const Case* subject : cases) fmt::print("{}\n", subject->name);
}

int report(const Run& run, const std::vector<Result>& results) {
  const Options& options = run.options;
  print_summary(options.json ? stderr : stdout, run, results);
  if (options.json) fmt::print("{}", to_json(run, results));
  if (!options.junit.empty()) write_file(options.junit, to_junit(run, results));
  if (!options.html.empty()) write_file(options.html, to_html(run, results));
  return count_of(results).failed == 0 && reached_all(run, results) ? kOk : kFailed;
}

int merge(const Options& options, const Cases& cases,
          const std::vector<Expectation>& expectations) {
  Earlier earlier = read_earlier(options.merge, cases);
  Options both = options;
  both.backend = earlier.options.backend;
  both.set = earlier.options.set;
  both.seed = earlier.options.seed;
  both.paths = earlier.options.paths;
  const Run run = {earlier.places, both, earlier.results.size(), cases.size()};
  for (Result& result : earlier.results) apply(expectations, result);
  std::FILE* out = options.json ? stderr : stdout;
  print_head(out, run);
  for (const Result& result : earlier.results) {
    if (result.outcome != Outcome::kPassed) print_result(out, run, result);
  }
  return report(run, earlier.results);
}

int run(const Options& options, const std::vector<const Case*>& cases, size_t all_cases,
        const std::vector<Expectation>& expectations) {
  Run run = {{}, options, cases.size(), all_cases};
  std::vector<Result> results;
  std::FILE* out = options.json ? stderr : stdout;
  const bool shows_progress = isatty(fileno(stderr)) != 0;
  const auto clear_progress = [&] {
    if (shows_progress) fmt::print(stderr, "\r\x1b[K");
  };
  Observer observer;
  observer.opened = [&](const Opened& places) {
    run.places = places;
    print_head(out, run);
  };
  observer.started = [](const Case&) {};
  observer.finished = [&](const Result& result) {
    results.push_back(result);
    apply(expectations, results.back());
    clear_progress();
    print_result(out, run, results.back());
    std::fflush(out);
    if (shows_progress) fmt::print(stderr, "{} of {}", results.size(), cases.size());
  };
  options.in_process ? run_here(options, cases, 0, observer) : run_apart(options, cases, observer);
  clear_progress();
  return report(run, results);
}

int start(const std::vector<std::string>& arguments) {
  const Options options = parse_options(arguments);
  if (options.help) {
    fmt::print("{}", usage());
    return kOk;
  }
  if (options.version) {
    fmt::print("pkv-conformance {}\n", pkv_version());
    return kOk;
  }
  if (options.faults) return run_faults(options) == 0 ? kOk : kFailed;
  const Cases cases = all_cases(options);
  if (chosen_cases(cases, options.filter, 1, 1).empty()) {
    throw UsageError(fmt::format("--filter {}: no case of that name", options.filter));
  }
  const auto chosen = chosen_cases(cases, options.filter, options.shard, options.shards);
  if (options.list) {
    list(chosen);
    return kOk;
  }
  std::vector<Expectation> expectations;
  if (!options.expected.empty()) expectations = read_expectations(options.expected, cases);
  if (!options.merge.empty()) return merge(options, cases, expectations);
  return run(options, chosen, cases.size(), expectations);
}

int complain(const std::exception& error, ExitCode code) {
  fmt::print(stderr, "pkv-conformance: {}\n", error.what());
  return code;
}

}  // namespace
}  // namespace pkv::conformance

int main(int argc, char** argv) {
  using namespace pkv::conformance;
  try {
    return start({argv + 1, argv + argc});
  } catch (const UsageError& error) {
    return complain(error, kUsage);
  } catch (const Unavailable& error) {
    return complain(error, kUnavailable);
  } catch (const std::exception& error) {
    return complain(error, kSystem);
  }
}
