#include "tests/conformance/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fmt/core.h"
#include "pariskv/pariskv.h"

namespace pkv::conformance {
namespace {

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed: return "passed";
    case Outcome::kFailed: return "failed";
    default: return "skipped";
  }
}

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

std::string command(const Run& run, const Case& subject) {
  std::string text = "pkv-conformance --backend " + quoted(run.options.backend);
  for (const auto& [name, value] : run.options.set) text += " --set " + quoted(name + "=" + value);
  if (run.options.seed != Options().seed) text += fmt::format(" --seed {}", run.options.seed);
  if (run.options.random > 0) text += fmt::format(" --random {}", run.options.random);
  if (!run.options.golden.empty()) text += " --golden " + quoted(run.options.golden);
  return text + " --filter " + quoted(subject.name);
}

Count& add(Count& count, Outcome outcome) {
  (outcome == Outcome::kPassed   ? count.passed
   : outcome == Outcome::kFailed ? count.failed
                                 : count.skipped) += 1;
  return count;
}

// Stages in the order of their first case.
std::vector<std::string> stages_of(const std::vector<Result>& results) {
  std::vector<std::string> stages;
  for (const Result& result : results) {
    const std::string stage = result.subject->stage();
    if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
  }
  return stages;
}

std::vector<Result> of_stage(const std::vector<Result>& results, const std::string& stage) {
  std::vector<Result> chosen;
  for (const Result& result : results) {
    if (result.subject->stage() == stage) chosen.push_back(result);
  }
  return chosen;
}

}  // namespace

Count count_of(const std::vector<Result>& results) {
  Count count;
  for (const Result& result : results) add(count, result.outcome);
  return count;
}

void print_head(std::FILE* out, const Run& run, size_t cases) {
  std::string options;
  for (const auto& [name, value] : run.options.set) options += fmt::format(" {}={}", name, value);
  fmt::print(out, "pkv-conformance {}: {}{} ({}) against {}, {} cases, seed {}\n", pkv_version(),
             run.backend, options, run.device, run.reference, cases, run.options.seed);
}

void print_result(std::FILE* out, const Run& run, const Result& result) {
  if (result.outcome == Outcome::kFailed) {
    fmt::print(out, "FAILED  {}\n        {}\n        {}\n", result.subject->name, result.text,
               command(run, *result.subject));
  } else if (result.outcome == Outcome::kSkipped) {
    fmt::print(out, "skipped {}: {}\n", result.subject->name, result.text);
  }
}

void print_summary(std::FILE* out, const std::vector<Result>& results) {
  fmt::print(out, "\n{:<8} {:>7} {:>7} {:>7}\n", "stage", "passed", "failed", "skipped");
  for (const std::string& stage : stages_of(results)) {
    const Count count = count_of(of_stage(results, stage));
    fmt::print(out, "{:<8} {:>7} {:>7} {:>7}\n", stage, count.passed, count.failed, count.skipped);
  }
  const Count golden = count_of(of_stage(results, "golden"));
  fmt::print(out, "\ncompared with golden vectors: {} cases\n", golden.passed + golden.failed);
  const Count all = count_of(results);
  fmt::print(out, "{} passed, {} failed, {} skipped\n", all.passed, all.failed, all.skipped);
}

std::string to_json(const Run& run, const std::vector<Result>& results) {
  const Count all = count_of(results);
  const Count golden = count_of(of_stage(results, "golden"));
  nlohmann::ordered_json json = {{"version", pkv_version()},
                                 {"backend", run.backend},
                                 {"device", run.device},
                                 {"reference", run.reference},
                                 {"options", nlohmann::ordered_json::object()},
                                 {"seed", run.options.seed},
                                 {"passed", all.passed},
                                 {"failed", all.failed},
                                 {"skipped", all.skipped},
                                 {"golden", golden.passed + golden.failed}};
  for (const auto& [name, value] : run.options.set) json["options"][name] = value;
  json["cases"] = nlohmann::ordered_json::array();
  for (const Result& result : results) {
    json["cases"].push_back(
        {{"name", result.subject->name},
         {"stage", result.subject->stage()},
         {"class", result.subject->verdict == Verdict::kExact ? "exact" : "tolerance"},
         {"outcome", outcome_name(result.outcome)},
         {"text", result.text},
         {"seconds", result.seconds}});
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
      escape_xml(run.backend), results.size(), all.failed, all.skipped, seconds);
  for (const Result& result : results) {
    xml += fmt::format("  <testcase classname=\"conformance.{}\" name=\"{}\" time=\"{:.3f}\"",
                       escape_xml(result.subject->stage()), escape_xml(result.subject->name),
                       result.seconds);
    const std::string text = escape_xml(result.text);
    if (result.outcome == Outcome::kPassed) {
      xml += "/>\n";
    } else if (result.outcome == Outcome::kSkipped) {
      xml += fmt::format(">\n    <skipped message=\"{}\"/>\n  </testcase>\n", text);
    } else {
      xml += fmt::format(">\n    <failure message=\"{}\">{}</failure>\n  </testcase>\n", text,
                         escape_xml(command(run, *result.subject)));
    }
  }
  return xml + "</testsuite>\n";
}

}  // namespace pkv::conformance
