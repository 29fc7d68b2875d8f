#include "tools/eval_report.h"

#include <algorithm>
#include <cmath>

#include "tools/json.h"
#include "tools/judge.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

Json windows_json(const std::vector<Window>& windows) {
  Json list = Json::array();
  for (const Window& window : windows) {
    list.push_back({{"begin", window.begin},
                    {"end", window.end},
                    {"queries", window.queries},
                    {"candidate_recall", number_or_null(window.candidate_recall)},
                    {"recall", number_or_null(window.recall)},
                    {"error", window.error}});
  }
  return list;
}

// One more line per method: means over the traces.
std::vector<Result> means_of(const std::vector<Result>& results) {
  std::vector<Result> means;
  for (const Result& result : results) {
    if (std::any_of(means.begin(), means.end(),
                    [&](const Result& mean) { return mean.method == result.method; })) {
      continue;
    }
    Mean n, candidates, candidate_recall, recall, mass, error, bytes, microseconds;
    const auto add = [](Mean& mean, std::optional<double> value) {
      if (value) mean.add(*value);
    };
    for (const Result& other : results) {
      if (other.method != result.method) continue;
      n.add(static_cast<double>(other.n));
      add(candidates, other.candidates);
      add(candidate_recall, other.candidate_recall);
      add(recall, other.recall);
      mass.add(other.mass);
      error.add(other.error);
      bytes.add(other.bytes_per_key);
      microseconds.add(other.microseconds);
    }
    means.push_back({"mean",
                     result.method,
                     std::llround(n.value().value_or(0)),
                     result.k,
                     candidates.value(),
                     candidate_recall.value(),
                     recall.value(),
                     mass.value().value_or(0),
                     error.value().value_or(0),
                     bytes.value().value_or(0),
                     microseconds.value().value_or(0),
                     {}});
  }
  return means;
}

// Of methods that keep records: the others have no state that could grow old.
std::string windows_table(const std::vector<Result>& results) {
  Table table({"trace", "method", "tokens", "queries", "cand. recall", "recall", "error"}, 2);
  bool is_empty = true;
  for (const Result& result : results) {
    if (result.bytes_per_key == 0 || result.method == "exact" || result.method == "full") continue;
    for (const Window& window : result.windows) {
      table.add({result.trace, result.method, grouped(window.begin) + " - " + grouped(window.end),
                 grouped(window.queries), decimal(window.candidate_recall, 3),
                 decimal(window.recall, 3), decimal(window.error, 4)});
      is_empty = false;
    }
  }
  return is_empty ? "" : "\n" + table.text();
}

}  // namespace

std::string as_json(const std::vector<Result>& results) {
  Json list = Json::array();
  for (const Result& result : results) {
    list.push_back({{"trace", result.trace},
                    {"method", result.method},
                    {"n", result.n},
                    {"k", result.k},
                    {"candidates", number_or_null(result.candidates)},
                    {"candidate_recall", number_or_null(result.candidate_recall)},
                    {"recall", number_or_null(result.recall)},
                    {"mass", result.mass},
                    {"error", result.error},
                    {"bytes_per_key", result.bytes_per_key},
                    {"microseconds", result.microseconds}});
    if (!result.windows.empty()) list.back()["windows"] = windows_json(result.windows);
  }
  return Json{{"results", list}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string as_table(const std::vector<Result>& results, size_t traces) {
  Table table({"trace", "method", "n", "k", "candidates", "cand. recall", "recall", "mass", "error",
               "B/key", "us/query"},
              2);
  std::vector<Result> lines = results;
  if (traces > 1) {
    const std::vector<Result> means = means_of(results);
    lines.insert(lines.end(), means.begin(), means.end());
  }
  for (const Result& line : lines) {
    table.add({line.trace, line.method, grouped(line.n), grouped(line.k), percent(line.candidates),
               decimal(line.candidate_recall, 3), decimal(line.recall, 3), decimal(line.mass, 3),
               decimal(line.error, 4), decimal(line.bytes_per_key, 1),
               grouped(std::llround(line.microseconds))});
  }
  return table.text() + windows_table(results);
}

}  // namespace pkv::cli
