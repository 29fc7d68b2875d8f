#include "tools/cmd_report_data.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "tools/cmd_report_fields.h"
#include "tools/config_options.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

// A plain number, or {"mean", "low", "high"}.
struct Figure {
  std::optional<double> mean;
  std::optional<double> low;
  std::optional<double> high;
};

Figure figure(const Fields& row, const std::string& name) {
  if (!row.is_object(name)) return {row.maybe_number(name), std::nullopt, std::nullopt};
  const Fields parts = row.object(name);
  return {parts.number("mean"), parts.maybe_number("low"), parts.maybe_number("high")};
}

std::optional<double> share(const Fields& row, const std::string& name) {
  return row.is_object(name) ? row.object(name).maybe_share("mean") : row.maybe_share(name);
}

// Rows of eval do not say which options their method had: the command does, if it is there.
std::string setting_of(const std::string& method, const std::string& command) {
  const bool takes_all = method == "default" || method == "fresh";
  if (!takes_all && method != "paper") return method;
  std::string setting = method;
  for (const auto& [name, value] : options_in(command)) {
    if (name == "k" || name == "seed" || (!takes_all && name != "candidates")) continue;
    setting += ":" + name + "=" + value;
  }
  return setting;
}

std::vector<ReportWindow> windows_of(const Fields& row) {
  std::vector<ReportWindow> windows;
  for (const Fields& window : row.maybe_objects("windows")) {
    windows.push_back({window.number("end"), window.maybe_share("recall"), window.number("error")});
  }
  return windows;
}

std::vector<ReportHead> heads_of(const Fields& row) {
  std::vector<ReportHead> heads;
  for (const Fields& head : row.maybe_objects("heads")) {
    heads.push_back({head.integer("kv_head"), share(head, "recall")});
  }
  // A trace of one KV head is not told twice.
  const std::vector<int64_t> labels = row.maybe_integers("kv_heads");
  if (heads.empty() && labels.size() == 1) heads.push_back({labels[0], share(row, "recall")});
  return heads;
}

QualityRow quality_row(const Fields& row, const ReportSource& source) {
  QualityRow out;
  out.side = source.side;
  out.trace = row.text("trace");
  out.layer = row.maybe_text("layer");
  out.method = row.text("method");
  out.setting = row.has("setting") ? row.text("setting") : setting_of(out.method, source.command);
  out.n = row.integer("n");
  out.k = row.integer("k");
  if (!row.has("error")) row.refuse("error", "missing: accepted is a number of 0 or more");
  const Figure error = figure(row, "error");
  out.error = error.mean.value_or(0);
  out.error_low = error.low;
  out.error_high = error.high;
  out.recall = share(row, "recall");
  out.candidate_recall = share(row, "candidate_recall");
  const std::optional<double> device = figure(row, "device_bytes").mean;
  const std::optional<double> host = figure(row, "host_bytes").mean;
  if (device || host) {
    out.read =
        (device.value_or(0) + host.value_or(0)) / static_cast<double>(std::max<int64_t>(out.n, 1));
  } else {
    out.read = row.maybe_number("read_bytes_per_key");
  }
  out.device_kept = row.maybe_number("device_bytes_per_key");
  if (!out.device_kept) out.device_kept = row.maybe_number("bytes_per_key");
  out.host_kept = row.maybe_number("host_bytes_per_key");
  out.heads = heads_of(row);
  out.windows = windows_of(row);
  // Through the cache, which is another matter than an index that was made in one piece.
  if (!out.windows.empty() && !row.has("setting")) out.setting += ", decoding";
  return out;
}

void add_trait(const Fields& row, const std::string& name, const std::string& unit,
               std::vector<std::string>& traits) {
  if (const auto value = row.maybe_number(name)) {
    traits.push_back(fmt::format("{} {}", unit, *value));
  }
}

SpeedRow speed_row(const Fields& row, const ReportSource& source) {
  SpeedRow out;
  out.side = source.side;
  out.device = source.device.empty() ? "unknown machine" : source.device;
  out.stage = row.text("stage");
  out.n = row.integer("n");
  out.median_us = row.number("median_us");
  out.min_us = row.maybe_number("min_us").value_or(out.median_us);
  out.max_us = row.maybe_number("max_us").value_or(out.median_us);
  if (out.n == 0) row.refuse("n", "0: accepted is a whole number above 0");
  if (out.min_us <= 0 || out.min_us > out.median_us || out.median_us > out.max_us) {
    row.refuse("median_us", fmt::format("{}: accepted is a time above 0, from min_us={} to "
                                        "max_us={}",
                                        out.median_us, out.min_us, out.max_us));
  }
  out.bytes = row.maybe_number("bytes");
  if (row.has("threads")) out.threads = row.integer("threads");
  for (const char* name : {"backend", "method", "isa", "profile", "tail"}) {
    const std::string value = row.maybe_text(name);
    if (!value.empty() && value != out.stage) out.traits.push_back(value);
  }
  if (row.has("rows")) out.traits.push_back("rows on the " + row.text("rows"));
  for (const auto& [name, unit] : {std::pair{"threads", "threads"},
                                   {"batch", "batch"},
                                   {"kv_heads", "KV heads"},
                                   {"query_heads", "query heads"},
                                   {"head_dim", "head_dim"},
                                   {"k", "k"},
                                   {"row_cache", "row cache"},
                                   {"calls", "calls"}}) {
    add_trait(row, name, unit, out.traits);
  }
  if (const auto candidates = row.maybe_share("candidates")) {
    out.candidates = fmt::format("{:.4g} % candidates", 100 * *candidates);
  }
  return out;
}

void add_run(const Fields& run, ReportSource source, ReportData& data) {
  if (run.has("device")) source.device = run.text("device");
  if (run.has("date")) source.date = run.text("date");
  if (run.has("command")) source.command = run.text("command");
  for (const Fields& row : run.objects("results")) {
    ++source.rows;
    if (row.has("stage")) {
      data.speed.push_back(speed_row(row, source));
    } else if (row.has("method")) {
      data.quality.push_back(quality_row(row, source));
    } else {
      row.refuse("",
                 "neither \"method\" (rows of eval, tune, bench.quality) nor \"stage\" (rows "
                 "of bench)");
    }
  }
  data.sources.push_back(std::move(source));
}

}  // namespace

absl::Status load_results(const std::string& path, size_t side, ReportData& data) {
  CLI_ASSIGN_OR_RETURN(const Json document, load_json(path));
  absl::Status status;
  const Fields whole(document, path, "", &status);
  ReportSource source;
  source.side = side;
  source.file = std::filesystem::path(path).filename().string();
  source.device = whole.maybe_text("device");
  source.date = whole.maybe_text("date");
  source.command = whole.maybe_text("command");
  if (!whole.has("runs")) {
    add_run(whole, source, data);
  } else {
    for (const Fields& run : whole.objects("runs")) add_run(run, source, data);
  }
  return status;
}

}  // namespace pkv::cli
