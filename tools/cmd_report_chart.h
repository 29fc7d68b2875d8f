// Plots of the report as inline SVG. Each is drawn twice, for wide and for narrow screens: a
// picture that only shrinks has letters that nobody can read on a phone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/cmd_report_axis.h"

namespace pkv::cli {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string tip;            // shown when a pointer rests on it
  bool is_on_line = true;     // the others are drawn faintly
  std::optional<double> low;  // a range of y
  std::optional<double> high;
};

struct ChartSeries {
  std::string name;
  size_t style = 0;  // colour and shape of its points
  size_t side = 0;   // 1: hollow points, dashed line
  bool is_strong = false;
  std::vector<ChartPoint> points;  // by ascending x
};

// A dashed line through the whole plot, at a value of y or of x.
struct ChartLevel {
  std::string name;
  double at = 0;
  bool is_upright = false;
};

struct ChartAxis {
  std::string title;
  Scale scale = Scale::kLinear;
  Unit unit = Unit::kNumber;
  std::optional<double> from;  // the axis holds these values in any case
  std::optional<double> to;
};

struct Chart {
  std::string title;
  std::string about;  // a sentence or two below the title
  ChartAxis x;
  ChartAxis y;
  std::vector<ChartSeries> series;
  std::vector<ChartLevel> levels;
  std::vector<ChartSeries> bounds;  // thin dashed grey lines: what no series can pass
};

// A figure of a page: title, text, the plot in both sizes, a legend.
std::string chart_figure(const Chart& chart);

}  // namespace pkv::cli
