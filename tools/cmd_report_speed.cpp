// Speed against n, with the roofline, and the stages of a step.
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

bool is_part(const std::string& stage) {
  static const std::set<std::string> kParts = {"encode", "vote",  "select",
                                               "rerank", "fetch", "attend"};
  return kParts.count(stage) > 0;
}

// What the roof of a line is, and who says so.
struct Roof {
  double gb_per_s = 0;
  std::string from;
};

// The plain read of the same machine with as many threads; else what the fastest row reached.
std::optional<Roof> roof_of(const std::vector<const SpeedLine*>& lines, int64_t threads,
                            std::optional<double> given) {
  if (given) return Roof{*given, "as given"};
  Roof read;
  Roof fastest;
  for (const SpeedLine* line : lines) {
    for (const SpeedRow& row : line->rows) {
      const auto reached = row.gb_per_s();
      if (!reached || is_part(line->stage)) continue;
      if (line->stage == "read" && row.threads == threads && *reached > read.gb_per_s) {
        read = {*reached, fmt::format("a plain read, {} threads", threads)};
      }
      if (*reached > fastest.gb_per_s) fastest = {*reached, line->name};
    }
  }
  if (read.gb_per_s > 0) return read;
  if (fastest.gb_per_s > 0) return fastest;
  return std::nullopt;
}

ChartSeries series_of(const ReportData& data, const SpeedLine& line, size_t style) {
  ChartSeries series;
  series.name = side_mark(data, line.side) + line.name;
  series.side = line.side;
  series.style = style;
  series.is_strong = line.stage == "step";
  return series;
}

std::string tip_of(const std::string& name, const SpeedRow& row) {
  std::string tip = fmt::format(
      "{}, n = {}: {} ({} to {})", name, row.n, exact_text(row.median_us, Unit::kMicroseconds),
      exact_text(row.min_us, Unit::kMicroseconds), exact_text(row.max_us, Unit::kMicroseconds));
  if (const auto reached = row.gb_per_s()) {
    tip += ", " + exact_text(*reached, Unit::kGbPerS);
  }
  return tip;
}

// The time that a line's bytes take at the roof.
ChartSeries bound_of(const SpeedLine& line, const Roof& roof, const std::string& mark) {
  ChartSeries bound;
  bound.name = fmt::format("roofline: bytes of {}{} at {} ({})", mark, line.name,
                           exact_text(roof.gb_per_s, Unit::kGbPerS), roof.from);
  for (const SpeedRow& row : line.rows) {
    if (!row.bytes) continue;
    bound.points.push_back(
        {static_cast<double>(row.n), *row.bytes / roof.gb_per_s / 1000, "", true, {}, {}});
  }
  return bound;
}

std::string machine_figures(const ReportData& data, const std::string& device,
                            const std::vector<const SpeedLine*>& lines,
                            std::optional<double> given) {
  Chart time;
  time.title = "Time against n";
  time.about = device +
               ". Median of a run, with its least and largest; lower is better. Dashed: "
               "what reading the bytes alone would take.";
  time.x = {"n, tokens of the zone", Scale::kPowers, Unit::kTokens, std::nullopt, std::nullopt};
  time.y = {"time", Scale::kLog, Unit::kMicroseconds, std::nullopt, std::nullopt};
  Chart reach;
  reach.title = "Bytes per second, below the roof";
  reach.about = device + ". Bytes that a run has to read by its median time; higher is better.";
  reach.x = time.x;
  reach.y = {"GB/s", Scale::kLinear, Unit::kNumber, 0.0, std::nullopt};
  std::map<std::string, size_t> styles;  // the same on both sides
  std::optional<Roof> highest;
  for (const SpeedLine* line : lines) {
    if (is_part(line->stage) || line->stage == "read") continue;
    ChartSeries series =
        series_of(data, *line, styles.emplace(line->name, styles.size()).first->second);
    ChartSeries reached = series;
    for (const SpeedRow& row : line->rows) {
      const std::string tip = tip_of(series.name, row);
      const auto n = static_cast<double>(row.n);
      series.points.push_back({n, row.median_us, tip, true, row.min_us, row.max_us});
      if (const auto speed = row.gb_per_s()) {
        reached.points.push_back({n, *speed, tip, true, {}, {}});
      }
    }
    const auto roof = roof_of(lines, line->rows.front().threads, given);
    if (roof && !reached.points.empty()) {
      if (line->stage == "step" && time.bounds.size() < 3) {
        time.bounds.push_back(bound_of(*line, *roof, side_mark(data, line->side)));
      }
      if (!highest || roof->gb_per_s > highest->gb_per_s) highest = roof;
      reach.series.push_back(std::move(reached));
    }
    time.series.push_back(std::move(series));
  }
  std::string html;
  if (!time.series.empty()) html += chart_figure(time);
  if (!reach.series.empty() && highest) {
    reach.levels.push_back(
        {fmt::format("roof: {} ({})", exact_text(highest->gb_per_s, Unit::kGbPerS), highest->from),
         highest->gb_per_s, false});
    html += chart_figure(reach);
  }
  return html;
}

// Each stage at the largest n.
std::string stage_figure(const ReportData& data, const std::string& device,
                         const std::vector<const SpeedLine*>& lines) {
  int64_t largest = 0;
  for (const SpeedLine* line : lines) {
    if (is_part(line->stage) && line->stage != "encode") {
      largest = std::max(largest, line->rows.back().n);
    }
  }
  BarChart chart;
  chart.title = fmt::format("Stages at n = {}", grouped(largest));
  chart.about = device + ". Median time of each stage by itself; encode is left out.";
  chart.unit = Unit::kMicroseconds;
  for (const SpeedLine* line : lines) {
    if (!is_part(line->stage) || line->stage == "encode" || line->rows.back().n != largest) {
      continue;
    }
    Bar bar;
    bar.label = side_mark(data, line->side) + line->name;
    bar.side = line->side;
    bar.parts = {{"", line->rows.back().median_us, line->side}};
    chart.bars.push_back(std::move(bar));
  }
  return chart.bars.empty() ? "" : bars_figure(chart);
}

}  // namespace

ReportSection speed_section(const ReportData& data, std::optional<double> given) {
  ReportSection section;
  section.title = "Speed";
  const std::vector<SpeedLine> lines = speed_lines(data.speed);
  std::vector<std::string> devices;
  std::vector<std::vector<std::string>> cells;
  for (const SpeedLine& line : lines) {
    if (std::find(devices.begin(), devices.end(), line.device) == devices.end()) {
      devices.push_back(line.device);
    }
    for (const SpeedRow& row : line.rows) {
      cells.push_back({side_mark(data, line.side) + line.name, line.device, grouped(row.n),
                       decimal(row.min_us, 1), decimal(row.median_us, 1), decimal(row.max_us, 1),
                       row.bytes ? grouped(static_cast<int64_t>(*row.bytes)) : "-",
                       decimal(row.gb_per_s(), 2)});
    }
  }
  for (const std::string& device : devices) {
    std::vector<const SpeedLine*> own;
    for (const SpeedLine& line : lines) {
      if (line.device == device) own.push_back(&line);
    }
    section.figures += machine_figures(data, device, own, given);
    section.figures += stage_figure(data, device, own);
  }
  if (!cells.empty()) {
    section.tables =
        table_html(fmt::format("All {} times", cells.size()),
                   {"what", "machine", "n", "min µs", "median µs", "max µs", "bytes", "GB/s"},
                   cells, "llrrrrrr");
  }
  return section;
}

}  // namespace pkv::cli
