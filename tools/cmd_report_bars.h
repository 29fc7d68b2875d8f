// Bars and heat maps of the report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/cmd_report_axis.h"

namespace pkv::cli {

struct BarPart {
  std::string name;
  double value = 0;
  size_t style = 0;
};

struct Bar {
  std::string label;           // its end is cut off where there is no room
  std::string note;            // behind the label
  size_t side = 0;             // 1: hollow
  std::vector<BarPart> parts;  // one behind the other
};

struct BarChart {
  std::string title;
  std::string about;
  Unit unit = Unit::kNumber;
  std::vector<Bar> bars;
};
std::string bars_figure(const BarChart& chart);

// Shares of 0..1, dark to light.
struct HeatMap {
  std::string title;
  std::string about;
  std::string columns_title;
  std::vector<std::string> columns;
  struct Row {
    std::string label;
    std::vector<std::optional<double>> cells;
  };
  std::vector<Row> rows;
};
std::string heat_figure(const HeatMap& map);

}  // namespace pkv::cli
