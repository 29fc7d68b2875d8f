#include "tools/cmd_bench_report.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "fmt/chrono.h"
#include "tools/json.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

// Nanoseconds are enough.
double rounded(double microseconds) { return std::round(microseconds * 1000) / 1000; }

double bytes_per_us(const BenchRow& row) { return static_cast<double>(row.bytes) / row.median(); }

// Of the plain read of the same n and threads.
std::optional<double> share_of_read(const BenchRow& row, std::span<const BenchRow> rows) {
  for (const BenchRow& other : rows) {
    if (other.stage == BenchStage::kRead && other.n == row.n && other.threads == row.threads) {
      return bytes_per_us(row) / bytes_per_us(other);
    }
  }
  return std::nullopt;
}

std::string cache_text(const BenchRow& row) {
  if (row.is_cold) return fmt::format("cold, {} layers", row.layers);
  return row.layers == 1 ? "warm" : fmt::format("{} layers", row.layers);
}

}  // namespace

absl::StatusOr<BenchHead> bench_head(const Engine& engine, const BenchOptions& options) {
  BenchHead head;
  head.backend = engine.backend();
  const char* text = nullptr;
  CLI_RETURN_IF_ERROR(from_library(pkv_device_describe(engine.device(), &text), About::kBackend));
  const Json about = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (about.is_object()) head.device = about.value("device", "");
  CLI_ASSIGN_OR_RETURN(const Config config,
                       make_config(options.config.profile(), options.values()));
  CLI_ASSIGN_OR_RETURN(const std::string k, config_value(config.get(), "k"));
  CLI_ASSIGN_OR_RETURN(head.k, parse_integer("k", k, 0, INT32_MAX));
  return head;
}

std::string bench_json(const BenchHead& head, const BenchOptions& options,
                       std::span<const BenchRow> rows) {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  Json list = Json::array();
  for (const BenchRow& row : rows) {
    list.push_back({{"backend", head.backend},
                    {"stage", bench_stage_name(row.stage)},
                    {"n", row.n},
                    {"batch", options.batch},
                    {"kv_heads", options.kv_heads},
                    {"query_heads", options.query_heads},
                    {"head_dim", std::stoll(options.head_dim)},
                    {"k", head.k},
                    {"candidates", row.candidates},
                    {"profile", options.config.profile()},
                    {"dtype", options.dtype_name},
                    {"tail", row.tail},
                    {"rows", options.rows},
                    {"cold", row.is_cold},
                    {"threads", row.threads},
                    {"min_us", rounded(row.times.front())},
                    {"median_us", rounded(row.median())},
                    {"max_us", rounded(row.times.back())},
                    {"bytes", row.bytes}});
    if (row.repeats < 0) continue;
    list.back()["row_cache"] = options.row_cache;
    list.back()["repeats"] = std::round(row.repeats * 1e4) / 1e4;
  }
  Json whole = {{"device", head.device},
                {"command", options.command},
                {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))}};
  if (!options.isa.empty()) whole["isa"] = options.isa;
  whole["results"] = std::move(list);
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

std::string repeats_text(const BenchOptions& options, std::span<const BenchRow> rows) {
  std::string text;
  for (const BenchRow& row : rows) {
    if (row.repeats < 0) continue;
    text += fmt::format("row cache of {}, n {}, {} threads: {:.1f} % of the rows came again\n",
                        options.row_cache, row.n, row.threads, 100 * row.repeats);
  }
  return text;
}

}  // namespace

std::string bench_table(const BenchHead& head, const BenchOptions& options,
                        std::span<const BenchRow> rows) {
  Table table({"stage", "n", "threads", "min us", "median us", "max us", "runs", "bytes", "GB/s",
               "of read", "caches"});
  for (const BenchRow& row : rows) {
    table.add({bench_stage_name(row.stage), std::to_string(row.n), std::to_string(row.threads),
               decimal(row.times.front(), 1), decimal(row.median(), 1),
               decimal(row.times.back(), 1), std::to_string(row.times.size()), grouped(row.bytes),
               decimal(bytes_per_us(row) / 1000, 2), percent(share_of_read(row, rows)),
               cache_text(row)});
  }
  return fmt::format(
             "{} ({}): batch {}, {} KV heads, {} query heads, head_dim {}, {}, k {}, profile {}, "
             "rows {}\n",
             head.backend, head.device, options.batch, options.kv_heads, options.query_heads,
             options.head_dim, options.dtype_name, head.k, options.config.profile(), options.rows) +
         table.text() + repeats_text(options, rows);
}

}  // namespace pkv::cli
