// Recall over layers and heads, and drift over decoded tokens.
#include <algorithm>
#include <map>
#include <set>

#include "fmt/format.h"
#include "tools/cmd_report_bars.h"
#include "tools/cmd_report_chart.h"
#include "tools/cmd_report_figures.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

// Methods that keep records: the others have no state that could grow old.
bool grows_old(const QualityRow& row) {
  return row.kept() > 0 && row.method != "exact" && row.method != "full";
}

std::string row_label(const QualityRow& row) {
  const bool tells = row.layer.empty() || row.trace.find(row.layer) != std::string::npos;
  return tells ? row.trace : fmt::format("{}, layer {}", row.trace, row.layer);
}

// One map of a setting: a row per trace, which is a layer, a column per KV head.
HeatMap heat_map(const std::vector<const QualityRow*>& rows, const std::string& title) {
  HeatMap map;
  map.title = title;
  map.columns_title = "KV head";
  std::set<int64_t> heads;
  bool has_whole = false;
  for (const QualityRow* row : rows) {
    has_whole = has_whole || row->heads.empty();
    for (const ReportHead& head : row->heads) heads.insert(head.kv_head);
  }
  for (const int64_t head : heads) map.columns.push_back(std::to_string(head));
  if (has_whole) map.columns.emplace_back("all");
  for (const QualityRow* row : rows) {
    // A trace that another row tells head by head.
    if (row->heads.empty() && std::any_of(rows.begin(), rows.end(), [&](const QualityRow* other) {
          return other->trace == row->trace && !other->heads.empty();
        })) {
      continue;
    }
    HeatMap::Row line = {row_label(*row), {}};
    line.cells.resize(map.columns.size());
    for (const ReportHead& head : row->heads) {
      const auto at = std::distance(heads.begin(), heads.find(head.kv_head));
      line.cells[static_cast<size_t>(at)] = head.recall;
    }
    if (row->heads.empty()) line.cells.back() = row->recall;
    map.rows.push_back(std::move(line));
  }
  std::stable_sort(map.rows.begin(), map.rows.end(),
                   [](const auto& a, const auto& b) { return a.label < b.label; });
  return map;
}

std::vector<std::string> window_cells(const ReportData& data, const QualityRow& row,
                                      const ReportWindow& window) {
  return {side_mark(data, row.side) + row.trace, row.setting, exact_text(window.end, Unit::kCount),
          decimal(window.recall, 3), exact_text(window.error, Unit::kNumber)};
}

Chart drift_chart(const std::string& trace, const char* figure) {
  Chart chart;
  chart.title = fmt::format("{} while decoding: {}",
                            figure == std::string("recall") ? "Recall" : "Error", trace);
  chart.about =
      "Questions asked while the cache held so many tokens; fresh: a codec fitted at "
      "that very step.";
  chart.x = {"tokens in the cache", Scale::kLinear, Unit::kCount, std::nullopt, std::nullopt};
  chart.y = {figure, Scale::kLinear, Unit::kNumber, 0.0, std::nullopt};
  return chart;
}

}  // namespace

ReportSection heads_section(const ReportData& data) {
  constexpr size_t kMostMaps = 6;
  ReportSection section;
  section.title = "Recall over layers and heads";
  std::map<std::string, std::vector<const QualityRow*>> groups;
  std::vector<std::string> order;
  std::vector<std::vector<std::string>> cells;
  for (const QualityRow& row : data.quality) {
    if (!row.recall || row.method == "exact" || row.method == "full" || *row.recall == 0) continue;
    const std::string name =
        fmt::format("{}{}, k = {}", side_mark(data, row.side), row.setting, row.k);
    if (groups.count(name) == 0) order.push_back(name);
    groups[name].push_back(&row);
    for (const ReportHead& head : row.heads) {
      cells.push_back(
          {name, row_label(row), std::to_string(head.kv_head), decimal(head.recall, 3)});
    }
  }
  if (order.empty()) return section;
  // A map per method: of its settings the first that has most layers. Ours come first.
  std::map<std::string, std::string> chosen;
  std::vector<std::string> methods;
  for (const std::string& name : order) {
    const QualityRow& row = *groups[name].front();
    const std::string method = side_mark(data, row.side) + row.method;
    std::string& best = chosen[method];
    if (best.empty()) methods.push_back(method);
    if (best.empty() || groups[name].size() > groups[best].size()) best = name;
  }
  const auto rank = [&](const std::string& method) {
    const std::string& name = groups[chosen[method]].front()->method;
    return name == "default" ? 0 : name == "paper" ? 1 : 2;
  };
  std::stable_sort(methods.begin(), methods.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < std::min(methods.size(), kMostMaps); ++i) {
    const std::string& name = chosen[methods[i]];
    HeatMap map = heat_map(groups[name], "Recall of the exact top-k: " + name);
    map.about = "A row per trace, which is a layer of a model; a column per KV head.";
    section.figures += heat_figure(map);
  }
  if (order.size() > kMostMaps) {
    section.figures += fmt::format("<p class=\"note\">{} more settings are in the table.</p>",
                                   order.size() - kMostMaps);
  }
  if (!cells.empty()) {
    section.tables = table_html(fmt::format("Recall of {} heads and settings", cells.size()),
                                {"setting", "trace", "KV head", "recall"}, cells, "llrr");
  }
  return section;
}

ReportSection drift_section(const ReportData& data, Styles& styles) {
  constexpr size_t kMostTraces = 6;
  ReportSection section;
  section.title = "Drift over decoded tokens";
  std::vector<std::string> traces;
  std::vector<std::vector<std::string>> cells;
  for (const QualityRow& row : data.quality) {
    if (row.windows.empty() || !grows_old(row)) continue;
    if (std::find(traces.begin(), traces.end(), row.trace) == traces.end()) {
      traces.push_back(row.trace);
    }
    for (const ReportWindow& window : row.windows) {
      cells.push_back(window_cells(data, row, window));
    }
  }
  for (size_t i = 0; i < std::min(traces.size(), kMostTraces); ++i) {
    Chart recall = drift_chart(traces[i], "recall");
    Chart error = drift_chart(traces[i], "error");
    recall.y.to = 1.0;
    for (const QualityRow& row : data.quality) {
      if (row.windows.empty() || !grows_old(row) || row.trace != traces[i]) continue;
      ChartSeries one;
      one.name = side_mark(data, row.side) + row.method;
      one.side = row.side;
      one.style = styles.of(row.method);
      one.is_strong = row.method == "default";
      ChartSeries other = one;
      for (const ReportWindow& window : row.windows) {
        const std::string tip =
            fmt::format("{}, up to {} tokens: recall {}, error {}", one.name, window.end,
                        decimal(window.recall, 3), exact_text(window.error, Unit::kNumber));
        if (window.recall) one.points.push_back({window.end, *window.recall, tip, true, {}, {}});
        other.points.push_back({window.end, window.error, tip, true, {}, {}});
      }
      if (!one.points.empty()) recall.series.push_back(std::move(one));
      error.series.push_back(std::move(other));
    }
    if (!recall.series.empty()) section.figures += chart_figure(recall);
    section.figures += chart_figure(error);
  }
  if (!cells.empty()) {
    section.tables =
        table_html(fmt::format("All {} windows", cells.size()),
                   {"trace", "method", "up to tokens", "recall", "error"}, cells, "llrrr");
  }
  return section;
}

}  // namespace pkv::cli
