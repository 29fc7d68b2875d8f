// Quality against bytes, and against memory.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "fmt/format.h"
#include "tools/cmd_report_bars.h"
#include "tools/cmd_report_chart.h"
#include "tools/cmd_report_figures.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

enum class Wanted { kLeast, kMost };

// Points on the line are those that no other one of the method beats with fewer bytes.
void mark_best(ChartSeries& series, Wanted wanted) {
  std::stable_sort(series.points.begin(), series.points.end(),
                   [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  double best = wanted == Wanted::kLeast ? INFINITY : -INFINITY;
  for (ChartPoint& point : series.points) {
    point.is_on_line = wanted == Wanted::kLeast ? point.y < best : point.y > best;
    if (point.is_on_line) best = point.y;
  }
}

std::string tip_of(const MeanRow& row, const std::string& mark) {
  return fmt::format("{}{}: error {}, recall {}, {} read and {} kept per key", mark, row.name(),
                     exact_text(row.error, Unit::kNumber), decimal(row.recall, 3),
                     row.read ? exact_text(*row.read, Unit::kBytes) : "-",
                     exact_text(row.kept(), Unit::kBytes));
}

// A series per method and side, of `y` against bytes read. What reads nothing has no place on the
// axis and becomes a level, named by `nothing`; so does what has no error.
void fill(Chart& chart, const ReportData& data, const std::vector<MeanRow>& rows, Styles& styles,
          const std::string& nothing, Wanted wanted,
          std::optional<double> (*y_of)(const MeanRow&)) {
  constexpr double kNoError = 1e-5;  // what float32 leaves of full attention
  std::map<std::pair<size_t, std::string>, ChartSeries> series;
  std::vector<std::pair<size_t, std::string>> order;
  for (const MeanRow& row : rows) {
    const auto y = y_of(row);
    if (!y || !row.read || !row.has_all) continue;
    const std::string mark = side_mark(data, row.side);
    if (*row.read == 0) {
      chart.levels.push_back({mark + row.setting + ", " + nothing, *y});
      continue;
    }
    if (chart.y.scale == Scale::kLog && *y < kNoError) {
      chart.levels.push_back({mark + row.setting + ", no error", *row.read, true});
      continue;
    }
    const std::pair<size_t, std::string> key(row.side, row.method);
    if (series.count(key) == 0) order.push_back(key);
    ChartSeries& one = series[key];
    one.name = mark + row.method;
    one.side = row.side;
    one.style = styles.of(row.method);
    one.is_strong = row.method == "default";
    one.points.push_back({*row.read, *y, tip_of(row, mark), true, {}, {}});
  }
  for (const auto& key : order) {
    mark_best(series[key], wanted);
    chart.series.push_back(series[key]);
  }
}

std::vector<std::vector<std::string>> cells_of(const ReportData& data,
                                               const std::vector<MeanRow>& rows) {
  std::vector<std::vector<std::string>> cells;
  for (const MeanRow& row : rows) {
    cells.push_back({side_mark(data, row.side) + row.setting, std::to_string(row.k),
                     std::to_string(row.traces), exact_text(row.error, Unit::kNumber),
                     fmt::format("{} - {}", exact_text(row.least_error, Unit::kNumber),
                                 exact_text(row.most_error, Unit::kNumber)),
                     decimal(row.recall, 3), decimal(row.candidate_recall, 3), decimal(row.read, 1),
                     decimal(row.device_kept, 1), decimal(row.host_kept, 1)});
  }
  return cells;
}

// The best setting within a budget, and the best of another method.
std::string budget_table(const ReportData& data, const std::vector<MeanRow>& rows) {
  std::vector<std::vector<std::string>> cells;
  double most = 0;
  for (const MeanRow& row : rows) most = std::max(most, row.read.value_or(0));
  for (size_t side = 0; side < 2; ++side) {
    for (double budget = 4; budget < 2 * most; budget *= 2) {
      const auto best_of = [&](const std::string& but) {
        const MeanRow* best = nullptr;
        for (const MeanRow& row : rows) {
          const bool fits = row.side == side && row.has_all && row.read && *row.read <= budget &&
                            row.method != but && row.method != "full";
          if (fits && (best == nullptr || row.error < best->error)) best = &row;
        }
        return best;
      };
      const MeanRow* first = best_of("");
      if (first == nullptr) continue;
      const MeanRow* second = best_of(first->method);
      cells.push_back({side_mark(data, side) + exact_text(budget, Unit::kBytes), first->name(),
                       exact_text(first->error, Unit::kNumber),
                       second == nullptr ? "-" : second->name(),
                       second == nullptr ? "-" : exact_text(second->error, Unit::kNumber)});
    }
  }
  if (cells.empty()) return "";
  return table_html("Least error within a budget of bytes read per key",
                    {"budget", "first", "error", "next, another method", "error"}, cells, "llrlr",
                    true);
}

std::string traces_text(const std::vector<QualityRow>& rows) {
  std::set<std::string> names;
  for (const QualityRow& row : rows) names.insert(row.trace);
  if (names.size() > 4) return fmt::format("Means over {} traces.", names.size());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return names.size() == 1 ? "Trace " + text + "." : "Means over " + text + ".";
}

}  // namespace

ReportSection quality_section(const ReportData& data, Styles& styles) {
  ReportSection section;
  section.title = "Quality against budget";
  const std::vector<MeanRow> rows = mean_rows(data.quality);
  if (rows.empty()) return section;
  const ChartAxis bytes = {"bytes read per step, per token and KV head", Scale::kLog, Unit::kBytes,
                           std::nullopt, std::nullopt};
  const std::string line =
      " A line joins the best that a method reaches within its bytes; faint "
      "points are its other settings. ";
  Chart error;
  error.title = "Error of the output against bytes read";
  error.about = "Distance from full attention's output, relative: lower is better." + line +
                traces_text(data.quality);
  error.x = bytes;
  error.y = {"relative error", Scale::kLog, Unit::kNumber, std::nullopt, std::nullopt};
  fill(error, data, rows, styles, "reads nothing", Wanted::kLeast,
       [](const MeanRow& row) { return std::optional(row.error); });
  Chart recall;
  recall.title = "Recall of the exact top-k against bytes read";
  recall.about = "Share of the exact best k tokens that a method attends to: higher is better." +
                 line + traces_text(data.quality);
  recall.x = bytes;
  recall.y = {"recall", Scale::kLinear, Unit::kNumber, 0.0, 1.0};
  fill(recall, data, rows, styles, "reads nothing", Wanted::kMost,
       [](const MeanRow& row) { return row.recall; });
  for (Chart* chart : {&error, &recall}) {
    // Only levels without a series to compare with say nothing.
    if (!chart->series.empty()) section.figures += chart_figure(*chart);
  }
  section.tables = budget_table(data, rows) +
                   table_html(fmt::format("All {} settings", rows.size()),
                              {"setting", "k", "traces", "error", "by trace", "recall",
                               "candidate recall", "read B/key", "device B/key", "host B/key"},
                              cells_of(data, rows), "lrrrrrrrrr");
  return section;
}

ReportSection memory_section(const ReportData& data, Styles& styles) {
  constexpr size_t kMostBars = 24;
  ReportSection section;
  section.title = "Memory";
  // Settings that keep the same are one bar: the one with the least error stands for them.
  std::vector<MeanRow> rows;
  for (const MeanRow& row : mean_rows(data.quality)) {
    if (!row.has_all || (!row.device_kept && !row.host_kept)) continue;
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const MeanRow& other) {
      return other.side == row.side && other.method == row.method &&
             std::abs(other.kept() - row.kept()) < 0.05;
    });
    if (same == rows.end()) {
      rows.push_back(row);
    } else if (row.error < same->error) {
      *same = row;
    }
  }
  if (rows.empty()) return section;
  Chart chart;
  chart.title = "Error against memory";
  chart.about =
      "Bytes that a method keeps for the tokens it chooses from, on device and host, "
      "beside K and V themselves. A line joins the best within so much memory.";
  chart.x = {"bytes kept per token and KV head", Scale::kLog, Unit::kBytes, std::nullopt,
             std::nullopt};
  chart.y = {"relative error", Scale::kLog, Unit::kNumber, std::nullopt, std::nullopt};
  std::vector<MeanRow> by_kept = rows;
  for (MeanRow& row : by_kept) row.read = row.kept();
  fill(chart, data, by_kept, styles, "keeps nothing", Wanted::kLeast,
       [](const MeanRow& row) { return std::optional(row.error); });
  if (!chart.series.empty()) section.figures += chart_figure(chart);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const MeanRow& a, const MeanRow& b) { return a.kept() < b.kept(); });
  BarChart bars;
  bars.title = "Bytes kept per token and KV head";
  bars.about = "Of settings that keep as much, the one with the least error.";
  if (rows.size() > kMostBars) {
    bars.about += fmt::format(" The {} smallest of {}.", kMostBars, rows.size());
  }
  bars.unit = Unit::kBytes;
  for (const MeanRow& row : rows) {
    if (bars.bars.size() == kMostBars) break;
    Bar bar;
    bar.label = side_mark(data, row.side) + row.name();
    bar.note = fmt::format(" (error {})", exact_text(row.error, Unit::kNumber));
    bar.side = row.side;
    bar.parts = {{"device", row.device_kept.value_or(0), 0}};
    if (row.host_kept) bar.parts.push_back({"host", *row.host_kept, 5});
    bars.bars.push_back(std::move(bar));
  }
  section.figures += bars_figure(bars);
  return section;
}

}  // namespace pkv::cli
