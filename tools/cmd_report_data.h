// Result files as `pariskv report` reads them: rows of `pariskv eval` and `pariskv tune`, of
// `python -m bench.quality`, of `pariskv bench` and the benchmarks that write rows like its own.
// docs/cli.md, section 8, has the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace pkv::cli {

// One file, or one of the runs that a file holds.
struct ReportSource {
  size_t side = 0;  // 0: the files given first, 1: those of --compare
  std::string file;
  std::string device;
  std::string date;
  std::string command;
  int64_t rows = 0;
};

struct ReportHead {
  int64_t kv_head = 0;
  std::optional<double> recall;
};

// As a window of eval --decode.
struct ReportWindow {
  double end = 0;  // tokens
  std::optional<double> recall;
  double error = 0;
};

struct QualityRow {
  size_t side = 0;
  std::string trace;
  std::string layer;    // "" if the row does not tell
  std::string method;   // the part of `setting` before its first colon
  std::string setting;  // with options that were given
  int64_t n = 0;
  int64_t k = 0;
  double error = 0;
  std::optional<double> error_low;
  std::optional<double> error_high;
  std::optional<double> recall;
  std::optional<double> candidate_recall;
  std::optional<double> read;         // bytes of a step, per token and KV head
  std::optional<double> device_kept;  // bytes of memory, per token and KV head
  std::optional<double> host_kept;
  std::vector<ReportHead> heads;
  std::vector<ReportWindow> windows;

  double kept() const { return device_kept.value_or(0) + host_kept.value_or(0); }
};

struct SpeedRow {
  size_t side = 0;
  std::string device;
  std::string stage;
  int64_t n = 0;
  double min_us = 0;
  double median_us = 0;
  double max_us = 0;
  std::optional<double> bytes;  // that a run has to read
  int64_t threads = 1;
  // What tells rows of one stage apart, in a fixed order of names: "2 threads", "batch 8".
  std::vector<std::string> traits;
  std::string candidates;  // "2 % candidates"; a schedule has another share at each n

  std::optional<double> gb_per_s() const {
    if (!bytes) return std::nullopt;
    return *bytes / median_us / 1000;
  }
};

struct ReportData {
  std::vector<ReportSource> sources;
  std::vector<QualityRow> quality;
  std::vector<SpeedRow> speed;
};

// Adds what the file holds. Exit code 3 names the file and the field that is wrong.
absl::Status load_results(const std::string& path, size_t side, ReportData& data);

}  // namespace pkv::cli
