#include "tests/conformance/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fmt/core.h"
#include "fmt/format.h"
#include "pariskv/pariskv.h"

namespace pkv::conformance {
namespace {

// In single quotes for a shell, where it needs them.
std::string quoted(const std::string& text) {
  const bool is_plain =
      text.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=") ==
      std::string::npos;
  if (is_plain) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

Count& add(Count& count, Outcome outcome) {
  (outcome == Outcome::kPassed    ? count.passed
   : outcome == Outcome::kFailed  ? count.failed
   : outcome == Outcome::kSkipped ? count.skipped
                                  : count.expected) += 1;
  return count;
}

int64_t golden_cases(const std::vector<Result>& results) {
  return std::count_if(results.begin(), results.end(), [](const Result& result) {
    return result.subject->is_golden() && result.outcome != Outcome::kSkipped;
  });
}

}  // namespace

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed: return "passed";
    case Outcome::kFailed: return "failed";
    case Outcome::kSkipped: return "skipped";
    default: return "expected";
  }
}

std::string command(const Run& run, const Case& subject) {
  std::string text = "pkv-conformance --backend " + quoted(run.options.backend);
  for (const auto& [name, value] : run.options.set) text += " --set " + quoted(name + "=" + value);
  if (run.options.seed != Options().seed) text += fmt::format(" --seed {}", run.options.seed);
  if (run.options.random > 0) text += fmt::format(" --random {}", run.options.random);
  if (!run.options.golden.empty()) text += " --golden " + quoted(run.options.golden);
  return text + " --filter " + quoted(subject.name);
}

Count count_of(const std::vector<Result>& results) {
  Count count;
  for (const Result& result : results) add(count, result.outcome);
  return count;
}

std::vector<StageCount> counts_of_stages(const std::vector<Result>& results) {
  std::vector<StageCount> stages;
  for (const Result& result : results) {
    const std::string name = result.subject->stage();
    const auto is_it = [&](const StageCount& stage) { return stage.stage == name; };
    auto found = std::find_if(stages.begin(), stages.end(), is_it);
    if (found == stages.end()) found = stages.insert(found, {name, {}});
    add(found->count, result.outcome);
  }
  return stages;
}

std::vector<PathCount> counts_of_paths(const Run& run, const std::vector<Result>& results) {
  std::vector<PathCount> counts;
  for (const std::string& path : run.places.paths) {
    PathCount count = {path, 0, ""};
    for (const Result& result : results) {
      if (std::find(result.paths.begin(), result.paths.end(), path) == result.paths.end()) continue;
      if (count.cases++ == 0) count.first = result.subject->name;
    }
    counts.push_back(count);
  }
  return counts;
}

bool reached_all(const Run& run, const std::vector<Result>& results) {
  const std::vector<PathCount> counts = counts_of_paths(run, results);
  return !run.is_whole() || std::none_of(counts.begin(), counts.end(),
                                         [](const PathCount& count) { return count.cases == 0; });
}

void print_head(std::FILE* out, const Run& run) {
  std::string options;
  for (const auto& [name, value] : run.options.set) options += fmt::format(" {}={}", name, value);
  fmt::print(out, "pkv-conformance {}: {}{} ({}) against {}, {} cases, seed {}\n", pkv_version(),
             run.places.backend, options, run.places.device, run.places.reference, run.cases,
             run.options.seed);
}

void print_result(std::FILE* out, const Run& run, const Result& result) {
  if (!result.paths.empty()) {
    fmt::print(out, "{}: {}\n", result.subject->name, fmt::join(result.paths, " "));
  }
  if (result.outcome == Outcome::kFailed) {
    fmt::print(out, "FAILED  {}\n        {}\n        {}\n", result.subject->name, result.text,
               command(run, *result.subject));
  } else if (result.outcome == Outcome::kSkipped) {
    fmt::print(out, "skipped {}: {}\n", result.subject->name, result.text);
  } else if (result.outcome == Outcome::kExpected) {
    fmt::print(out, "expected {}: {}\n", result.subject->name, result.text);
  }
}

namespace {

void print_paths(std::FILE* out, const Run& run, const std::vector<Result>& results) {
  if (!run.options.paths) return;
  if (run.places.paths.empty()) {
    fmt::print(out, "\nthe backend does not tell its paths\n");
    return;
  }
  fmt::print(out, "\n{:<24} {:>7} first of the cases that reached it\n", "path", "cases");
  for (const PathCount& count : counts_of_paths(run, results)) {
    fmt::print(out, "{:<24} {:>7} {}\n", count.path, count.cases,
               count.cases == 0 ? "NOT REACHED by any case" : count.first);
  }
}

}  // namespace

void print_summary(std::FILE* out, const Run& run, const std::vector<Result>& results) {
  print_paths(out, run, results);
  const Count all = count_of(results);
  const bool has_expected = all.expected > 0;
  fmt::print(out, "\n{:<8} {:>7} {:>7} {:>7}{}\n", "stage", "passed", "failed", "skipped",
             has_expected ? " expected" : "");
  for (const auto& [stage, count] : counts_of_stages(results)) {
    fmt::print(out, "{:<8} {:>7} {:>7} {:>7}{}\n", stage, count.passed, count.failed, count.skipped,
               has_expected ? fmt::format(" {:>8}", count.expected) : "");
  }
  fmt::print(out, "\ncompared with golden vectors: {} cases\n", golden_cases(results));
  fmt::print(out, "{} passed, {} failed, {} skipped{}\n", all.passed, all.failed, all.skipped,
             has_expected ? fmt::format(", {} failed as expected", all.expected) : "");
}

std::string to_json(const Run& run, const std::vector<Result>& results) {
  const Count all = count_of(results);
  nlohmann::ordered_json json = {{"version", pkv_version()},
                                 {"backend", run.places.backend},
                                 {"backend_version", run.places.version},
                                 {"device", run.places.device},
                                 {"reference", run.places.reference},
                                 {"options", nlohmann::ordered_json::object()},
                                 {"seed", run.options.seed},
                                 {"passed", all.passed},
                                 {"failed", all.failed},
                                 {"skipped", all.skipped},
                                 {"expected", all.expected},
                                 {"golden", golden_cases(results)}};
  for (const auto& [name, value] : run.options.set) json["options"][name] = value;
  if (!run.places.paths.empty()) {
    json["paths"] = nlohmann::ordered_json::object();
    for (const PathCount& count : counts_of_paths(run, results)) {
      json["paths"][count.path] = count.cases;
    }
  }
  json["cases"] = nlohmann::ordered_json::array();
  for (const Result& result : results) {
    json["cases"].push_back(
        {{"name", result.subject->name},
         {"stage", result.subject->stage()},
         {"class", result.subject->verdict == Verdict::kExact ? "exact" : "tolerance"},
         {"outcome", outcome_name(result.outcome)},
         {"text", result.text},
         {"seconds", result.seconds}});
    if (!result.paths.empty()) json["cases"].back()["paths"] = result.paths;
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string escape_xml(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else if (c == '\n' || c == '\t') {
      result += fmt::format("&#{};", static_cast<int>(byte));
    } else if (byte < 0x20 || byte > 0x7e) {
      result += "?";  // no character of XML 1.0, or one whose encoding is not known
    } else {
      result += c;
    }
  }
  return result;
}

std::string to_junit(const Run& run, const std::vector<Result>& results) {
  const Count all = count_of(results);
  double seconds = 0.0;
  for (const Result& result : results) seconds += result.seconds;
  std::string xml = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<testsuite name=\"pkv-conformance {}\" tests=\"{}\" failures=\"{}\" errors=\"0\" "
      "skipped=\"{}\" time=\"{:.3f}\">\n",
      escape_xml(run.places.backend), results.size(), all.failed, all.skipped + all.expected,
      seconds);
  for (const Result& result : results) {
    xml += fmt::format("  <testcase classname=\"conformance.{}\" name=\"{}\" time=\"{:.3f}\"",
                       escape_xml(result.subject->stage()), escape_xml(result.subject->name),
                       result.seconds);
    const std::string text = escape_xml(result.text);
    if (result.outcome == Outcome::kPassed) {
      xml += "/>\n";
    } else if (result.outcome != Outcome::kFailed) {
      xml += fmt::format(">\n    <skipped message=\"{}\"/>\n  </testcase>\n", text);
    } else {
      xml += fmt::format(">\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n", text,
                         escape_xml(command(run, *result.subject)));
    }
  }
  return xml + "</testsuite>\n";
}

}  // namespace pkv::conformance
