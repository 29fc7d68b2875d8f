#include "tests/conformance/page.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "fmt/core.h"
#include "pariskv/pariskv.h"

namespace pkv::conformance {
namespace {

constexpr const char* kPageHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 sans-serif; color: #1a1a1a; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.verdict {{ font-size: 1.2rem; padding: .6rem 1rem; border-left: .5rem solid #8a6100;
  background: #f4f4f4; }}
.pass {{ border-color: #1f7a34; }} .fail {{ border-color: #b3261e; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid #ddd; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
code, pre {{ font: 13px/1.4 monospace; overflow-wrap: anywhere; white-space: pre-wrap; }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 10pt; }} summary {{ display: none; }}
  tr, pre {{ break-inside: avoid; }} }}
</style>
</head>
<body>
)";

std::string fact(const std::string& name, const std::string& value) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", name, escape_xml(value));
}

std::string options_text(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options.set) text += fmt::format("{}={} ", name, value);
  return text.empty() ? "as the device has them" : text;
}

std::string verdict_line(const Run& run, const Count& all) {
  const bool has_gaps = all.skipped + all.expected > 0 || !run.is_whole();
  const char* kind = all.failed > 0 ? "fail" : has_gaps ? "part" : "pass";
  std::string text;
  if (all.failed > 0) {
    text = "Does not conform";
  } else if (all.passed == 0) {
    text = "Nothing was shown: no case ran";
  } else if (all.skipped + all.expected > 0) {
    text = "Conforms in what it implements";
  } else {
    text = "Conforms";
  }
  if (!run.is_whole()) {
    text += fmt::format(" (a part of the suite: {} of {} cases)", run.cases, run.all_cases);
  }
  return fmt::format(
      "<p class=\"verdict {}\">{}: {} passed, {} failed, {} skipped, {} expected to "
      "fail.</p>\n",
      kind, text, all.passed, all.failed, all.skipped, all.expected);
}

std::string facts(const Run& run, const std::vector<Result>& results) {
  double seconds = 0.0;
  for (const Result& result : results) seconds += result.seconds;
  const auto exact = std::count_if(results.begin(), results.end(), [](const Result& result) {
    return result.subject->verdict == Verdict::kExact;
  });
  const std::time_t now = std::time(nullptr);
  char date[32] = "";
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return "<table>\n" + fact("Backend", run.places.backend + " " + run.places.version) +
         fact("Device", run.places.device) + fact("Device options", options_text(run.options)) +
         fact("Held against", run.places.reference) +
         fact("Suite",
              fmt::format("pkv-conformance {}, seed {}", pkv_version(), run.options.seed)) +
         fact("Cases",
              fmt::format("{}: {} bit for bit, {} within the tolerances of docs/numerics.md",
                          results.size(), exact, static_cast<int64_t>(results.size()) - exact)) +
         fact("Date", date) + fact("Time in cases", fmt::format("{:.1f} s", seconds)) +
         "</table>\n";
}

std::string stage_table(const std::vector<Result>& results) {
  std::string html =
      "<h2>Stages</h2>\n<table>\n<tr><th>Stage</th><th class=\"n\">passed</th><th "
      "class=\"n\">failed</th><th class=\"n\">skipped</th><th class=\"n\">expected</th></tr>\n";
  for (const auto& [stage, count] : counts_of_stages(results)) {
    html += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td></tr>\n",
        stage, count.passed, count.failed, count.skipped, count.expected);
  }
  return html + "</table>\n";
}

std::string failure_table(const Run& run, const std::vector<Result>& results) {
  std::string html;
  for (const Result& result : results) {
    if (result.outcome != Outcome::kFailed) continue;
    html += fmt::format("<tr><td><code>{}</code></td><td>{}<pre>{}</pre></td></tr>\n",
                        escape_xml(result.subject->name), escape_xml(result.text),
                        escape_xml(command(run, *result.subject)));
  }
  if (html.empty()) return "";
  return "<h2>Failed</h2>\n<table>\n<tr><th>Case</th><th>What differs, and the command that "
         "repeats "
         "it</th></tr>\n" +
         html + "</table>\n";
}

// Cases that did not count, by their reason.
std::string reasons(const std::vector<Result>& results, Outcome outcome, const char* title) {
  std::map<std::string, std::vector<std::string>> cases;
  for (const Result& result : results) {
    if (result.outcome == outcome) cases[result.text].push_back(result.subject->name);
  }
  if (cases.empty()) return "";
  std::string html = fmt::format(
      "<h2>{}</h2>\n<table>\n<tr><th>Reason</th><th class=\"n\">Cases</th><th>The "
      "first</th></tr>\n",
      title);
  for (const auto& [reason, names] : cases) {
    html += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td><code>{}</code></td></tr>\n",
                        escape_xml(reason), names.size(), escape_xml(names[0]));
  }
  return html + "</table>\n";
}

std::string path_table(const Run& run, const std::vector<Result>& results) {
  if (run.places.paths.empty()) return "";
  std::string html =
      "<h2>Paths</h2>\n<table>\n<tr><th>Path</th><th class=\"n\">Cases that reached it</th>"
      "<th>The first</th></tr>\n";
  for (const PathCount& count : counts_of_paths(run, results)) {
    html += fmt::format(
        "<tr><td><code>{}</code></td><td class=\"n\">{}</td><td><code>{}</code></td></tr>\n",
        escape_xml(count.path), count.cases, escape_xml(count.first));
  }
  return html + "</table>\n";
}

std::string case_list(const std::vector<Result>& results) {
  std::string html = "<h2>All cases</h2>\n<details><summary>Names and outcomes</summary>\n<pre>";
  for (const Result& result : results) {
    html +=
        fmt::format("{:<8}  {}\n", outcome_name(result.outcome), escape_xml(result.subject->name));
  }
  return html + "</pre></details>\n";
}

}  // namespace

std::string to_html(const Run& run, const std::vector<Result>& results) {
  const std::string title = escape_xml("pariskv conformance: " + run.places.backend);
  return fmt::format(kPageHead, fmt::arg("title", title)) + "<h1>" + title + "</h1>\n" +
         verdict_line(run, count_of(results)) + facts(run, results) + stage_table(results) +
         failure_table(run, results) + reasons(results, Outcome::kExpected, "Expected to fail") +
         reasons(results, Outcome::kSkipped, "Skipped") + path_table(run, results) +
         case_list(results) + "</body>\n</html>\n";
}

}  // namespace pkv::conformance
