#include "tools/cmd_tune_report.h"

#include <algorithm>

#include "fmt/format.h"
#include "tools/json.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

// Options as the command line takes them.
std::string options_text(const Choice& choice) {
  return fmt::format("--candidates {:g} --k {} --codec {} --tail {}", choice.candidates, choice.k,
                     choice.codec, choice.tail);
}

std::string cost_text(const TuneReport& report, double cost) {
  if (report.unit == "bytes") return fmt::format("{:.1f} KiB", cost / 1024);
  return fmt::format("{:.1f} us", cost);
}

std::string dense_text(const TuneReport& report, const Tried& tried) {
  if (tried.dense.empty()) return "-";
  std::string text;
  for (const size_t i : tried.dense) {
    text += (text.empty() ? "" : ", ") + report.rows[i].trace;
  }
  return text;
}

void add_tried(Table& table, const TuneReport& report, const char* mark, const Tried& tried) {
  table.add({mark, options_text(tried.choice), cost_text(report, tried.cost),
             fmt::format("{}{:.4f}", tried.has_all_traces ? "" : ">= ", tried.error.mean),
             fmt::format("{:.4f}", tried.error.bound), tried.is_reached ? "yes" : "no",
             dense_text(report, tried)});
}

Json tried_json(const TuneReport& report, const Tried& tried) {
  Json dense = Json::array();
  for (const size_t i : tried.dense) dense.push_back(report.rows[i].trace);
  return {{"candidates", tried.choice.candidates},
          {"k", tried.choice.k},
          {"codec", tried.choice.codec},
          {"tail", tried.choice.tail},
          {"dense", std::move(dense)},
          {"cost", tried.cost},
          {"error", tried.error.mean},
          {"bound", tried.error.bound},
          {"reached", tried.is_reached}};
}

Json row_json(const TuneReport& report, const TuneRow& row) {
  const Choice& choice = report.found->chosen().choice;
  const Judge& figures = row.verdict.figures;
  return {
      {"trace", row.trace},
      {"method", "default"},
      {"setting", row.is_dense ? "full" : "default:" + choice.name()},
      {"n", row.n},
      {"k", choice.k},
      {"candidates", choice.candidates},
      {"candidate_recall", row.is_dense ? Json(1.0) : number_or_null(figures.candidate_recall())},
      {"recall", row.is_dense ? Json(1.0) : number_or_null(figures.recall())},
      {"mass", row.is_dense ? 1.0 : figures.mass()},
      {"error", row.verdict.error.mean},
      {"bound", row.verdict.error.bound},
      {"bytes_per_key", row.verdict.bytes_per_key},
      {"read_bytes_per_key", row.read_bytes_per_key},
      {"cost", row.cost},
      {"searched_queries", row.searched},
      {"judged_queries", row.judged}};
}

// The chosen one, and what of the frontier is near it in cost.
std::vector<const Tried*> shown(const Found& found) {
  constexpr std::ptrdiff_t kCheaper = 5;
  constexpr std::ptrdiff_t kDearer = 3;
  std::vector<const Tried*> list = found.frontier();
  const auto cost = found.chosen().cost;
  const auto at =
      std::find_if(list.begin(), list.end(), [&](const Tried* one) { return one->cost >= cost; });
  const auto begin = at - list.begin() > kCheaper ? at - kCheaper : list.begin();
  const auto end = list.end() - at > kDearer + 1 ? at + kDearer + 1 : list.end();
  return {begin, end};
}

}  // namespace

bool TuneReport::is_reached() const {
  return found->best && std::all_of(rows.begin(), rows.end(), [&](const TuneRow& row) {
           return row.verdict.error.mean <= target;
         });
}

std::string tune_json(const TuneReport& report) {
  Json frontier = Json::array();
  for (const Tried* one : report.found->frontier()) frontier.push_back(tried_json(report, *one));
  Json rows = Json::array();
  for (const TuneRow& row : report.rows) rows.push_back(row_json(report, row));
  const Tried* next = report.found->next_cheaper();
  const Json whole = {{"target_error", report.target},
                      {"reached", report.is_reached()},
                      {"cost_unit", report.unit},
                      {"tried", report.found->tried.size()},
                      {"chosen", tried_json(report, report.found->chosen())},
                      {"next_cheaper", next == nullptr ? Json(nullptr) : tried_json(report, *next)},
                      {"frontier", std::move(frontier)},
                      {"results", std::move(rows)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string tune_table(const TuneReport& report) {
  const Found& found = *report.found;
  const Tried& chosen = found.chosen();
  const Tried* next = found.next_cheaper();
  Table why({"", "setting", "cost", "error", "at most", "reached", "in full"}, 2);
  for (const Tried* one : shown(found)) {
    const char* mark = one == next ? "next cheaper" : "";
    if (one == &chosen) mark = found.best ? "chosen" : "best found";
    add_tried(why, report, mark, *one);
  }
  Table judged({"trace", "n", "queries", "error", "at most", "cand. recall", "recall", "cost",
                "read B/key"});
  for (const TuneRow& row : report.rows) {
    const Judge& figures = row.verdict.figures;
    judged.add({row.trace, grouped(row.n), grouped(row.judged),
                row.is_dense ? "in full" : decimal(row.verdict.error.mean, 4),
                row.is_dense ? "" : decimal(row.verdict.error.bound, 4),
                row.is_dense ? "" : decimal(figures.candidate_recall(), 3),
                row.is_dense ? "" : decimal(figures.recall(), 3), cost_text(report, row.cost),
                decimal(row.read_bytes_per_key, 1)});
  }
  const std::string verdict =
      report.is_reached() ? fmt::format("reached: {}", options_text(chosen.choice))
      : found.best        ? "missed on the queries that judge"
                          : "out of reach; the best found: " + options_text(chosen.choice);
  return fmt::format(
      "Target: error {} or less on every trace. Cost: {}\n\nQueries that search ({} settings "
      "tried; of the worst trace; \"at most\": two standard errors more)\n{}\nQueries that judge\n"
      "{}\n{}\n",
      report.target, report.unit_about, found.tried.size(), why.text(), judged.text(), verdict);
}

}  // namespace pkv::cli
