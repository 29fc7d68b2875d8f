// What the report's plots and tables show: rows of a setting averaged over traces, rows of speed
// that make one line, and what differs between two sides.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/cmd_report_data.h"

namespace pkv::cli {

// A setting with a k, over the traces that it was judged on.
struct MeanRow {
  size_t side = 0;
  std::string method;
  std::string setting;
  int64_t k = 0;
  size_t traces = 0;
  bool has_all = false;  // every trace of its side: only then is it comparable with others
  double error = 0;
  double least_error = 0;  // of a trace
  double most_error = 0;
  std::optional<double> recall;
  std::optional<double> candidate_recall;
  std::optional<double> read;
  std::optional<double> device_kept;
  std::optional<double> host_kept;

  std::string name() const;  // setting and k
  double kept() const { return device_kept.value_or(0) + host_kept.value_or(0); }
};
std::vector<MeanRow> mean_rows(const std::vector<QualityRow>& rows);

// Rows of one stage on one machine that differ in n alone.
struct SpeedLine {
  size_t side = 0;
  std::string device;
  std::string stage;
  std::string name;            // the stage with those traits in which its lines differ
  std::vector<SpeedRow> rows;  // by n
};
std::vector<SpeedLine> speed_lines(const std::vector<SpeedRow>& rows);

// Colours by name: the same in every plot, on both sides.
class Styles {
 public:
  size_t of(const std::string& name);

 private:
  std::map<std::string, size_t> numbers_;
};

// A figure that both sides have.
struct Difference {
  std::string what;
  std::string figure;
  double first = 0;
  double second = 0;
  bool less_is_better = true;

  std::optional<double> change() const;  // relative; nothing if the first is 0
};
std::vector<Difference> differences(const ReportData& data);

}  // namespace pkv::cli
