// pariskv tune: the cheapest setting that meets a target on traces; with --calibrate, the model of
// a step's time that gives the cost. docs/cli.md, section 9.
#include <algorithm>
#include <optional>

#include "tools/cmd_tune_calibrate.h"
#include "tools/cmd_tune_report.h"
#include "tools/cmd_tune_search.h"
#include "tools/commands.h"
#include "tools/cost_model.h"
#include "tools/output.h"

namespace pkv::cli {
namespace {

// What is searched unless it is given; other options hold for every setting.
constexpr std::string_view kSearched[] = {"codec", "tail", "candidates", "k"};

struct TuneOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;
  std::vector<std::string> traces;
  std::vector<std::string> calibrate;
  std::vector<std::string> check;
  std::vector<int64_t> held_out;
  std::string cost;  // file of a model; "": bytes
  double target = -1;
  double within = -1;
  int64_t n = 0;
  int64_t most_dense = -1;
  int64_t sink = 128;
  int64_t local = 512;
  int64_t fit_queries = 64;

  std::vector<std::string> inputs() const {
    std::vector<std::string> all = traces;
    for (const auto* list : {&calibrate, &check}) all.insert(all.end(), list->begin(), list->end());
    if (!cost.empty()) all.push_back(cost);
    return all;
  }
};

absl::Status check_options(const TuneOptions& options) {
  const bool calibrates = !options.calibrate.empty();
  if (calibrates && !options.traces.empty()) {
    return usage_error("{}: no traces are accepted with --calibrate", options.traces.front());
  }
  if (!calibrates && options.traces.empty()) {
    return usage_error("0 arguments without a name: accepted are traces, or --calibrate FILES");
  }
  if (!calibrates && !options.check.empty()) {
    return usage_error("--check: applies with --calibrate");
  }
  if (!calibrates && !options.held_out.empty()) {
    return usage_error("--hold-out: applies with --calibrate");
  }
  if (!calibrates && options.within >= 0) {
    return usage_error("--within={}: applies with --calibrate", options.within);
  }
  const bool has_search = options.target >= 0 || !options.cost.empty() || options.n > 0 ||
                          options.most_dense >= 0 || !options.config.given().empty();
  if (calibrates && has_search) {
    return usage_error("--calibrate: accepted with it are --check, --hold-out and --within");
  }
  const auto most = static_cast<int64_t>(options.traces.size());
  if (options.most_dense >= std::max<int64_t>(most, 1)) {
    return usage_error("--max-dense={}: accepted are 0..{}, below the number of traces",
                       options.most_dense, most - 1);
  }
  return check_output(options.output, options.inputs());
}

absl::StatusOr<bool> parse_tune(const Arguments& arguments, TuneOptions& options) {
  CommandLine line(
      "tune", "TRACE... [OPTION...]",
      "The cheapest setting (candidates, k, codec, tail, layers in full) whose error meets a\n"
      "target, searched for with some queries of the traces and judged by others. A trace is as\n"
      "for eval. With --calibrate: a model of a step's time from results of bench.");
  const auto files = [&](const char* name, std::vector<std::string>* target) {
    return [name, target](const std::string& text) -> absl::Status {
      *target = split_list(text);
      for (const std::string& path : *target) {
        if (path.empty())
          return usage_error("--{}={}: accepted are files between commas", name, text);
      }
      return absl::OkStatus();
    };
  };
  line.positional(&options.traces, 0, SIZE_MAX, "traces (.safetensors)");
  line.real("target-error", &options.target, 0, 1,
            "error of the output, on every trace (default 0.05)");
  line.text("cost", &options.cost, "cost by the model in this file, instead of bytes read");
  line.integer("n", &options.n, 0, INT32_MAX, "keys of the zone that cost is for; 0: the trace's");
  line.integer("max-dense", &options.most_dense, 0, INT32_MAX,
               "so many traces may be attended in full (default half of them)");
  line.integer("sink", &options.sink, 0, INT32_MAX, "first tokens, attended in full");
  line.integer("local", &options.local, 0, INT32_MAX, "last tokens, attended in full");
  line.integer("fit-queries", &options.fit_queries, 0, INT32_MAX,
               "the first queries fit the codec; of the others every second judges");
  line.custom("calibrate", "comma-separated results of bench: fit a model of a step's time",
              files("calibrate", &options.calibrate));
  line.custom("check", "with --calibrate: results that the model is held against",
              files("check", &options.check));
  line.custom("hold-out",
              "comma-separated numbers of steps, from 1: with --calibrate, checked and not fitted",
              [&](const std::string& text) -> absl::Status {
                for (const std::string& number : split_list(text)) {
                  CLI_ASSIGN_OR_RETURN(const int64_t step,
                                       parse_integer("hold-out", number, 1, INT32_MAX));
                  options.held_out.push_back(step);
                }
                return absl::OkStatus();
              });
  line.real("within", &options.within, 0, 100,
            "with --calibrate: exit code 1 if the model is off by a larger share");
  CLI_RETURN_IF_ERROR(options.config.offer(line, kCodecAndStepOptions));
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  CLI_RETURN_IF_ERROR(check_options(options));
  return true;
}

absl::StatusOr<SearchOptions> search_options(const TuneOptions& options) {
  SearchOptions search;
  search.target = options.target < 0 ? 0.05 : options.target;
  search.most_dense =
      options.most_dense < 0 ? options.traces.size() / 2 : static_cast<size_t>(options.most_dense);
  search.is_scaled = options.n > 0;
  const OptionValues& given = options.config.given();
  Grid& grid = search.grid;
  if (const auto it = given.find("codec"); it != given.end()) grid.codecs = {it->second};
  if (const auto it = given.find("tail"); it != given.end()) grid.tails = {it->second};
  if (const auto it = given.find("k"); it != given.end()) {
    CLI_ASSIGN_OR_RETURN(const int64_t k, parse_integer("k", it->second, 0, INT32_MAX));
    grid.k = {k};
  }
  if (const auto it = given.find("candidates"); it != given.end()) {
    if (it->second == "auto") {
      return usage_error("--candidates=auto: accepted is a share in (0, 1]");
    }
    CLI_ASSIGN_OR_RETURN(const double share, parse_real("candidates", it->second, 0, 1));
    grid.candidates = {share};
  }
  if (grid.tails == std::vector<std::string>{"drop"} && grid.k == std::vector<int64_t>{0}) {
    return usage_error("--k=0: accepted is 1 or more with --tail=drop");
  }
  return search;
}

OptionValues fixed_options(const ConfigOptions& config) {
  OptionValues fixed = config.given();
  for (const std::string_view name : kSearched) fixed.erase(std::string(name));
  return fixed;
}

CostOf cost_of(const std::optional<CostModel>& model, int64_t n) {
  return [&model, n](const TuneTrace& trace, const Choice& choice) -> absl::StatusOr<StepCost> {
    CLI_ASSIGN_OR_RETURN(const StepWork work, trace.work(choice, n));
    if (model) return StepCost{model->step_us(work), model->full_us(work)};
    return StepCost{static_cast<double>(work.bytes()), static_cast<double>(work.zone_bytes)};
  };
}

absl::StatusOr<TuneRow> row_of(const TuneTrace& trace, const Choice& choice, bool is_dense,
                               const CostOf& cost) {
  TuneRow row;
  row.trace = trace.name();
  row.n = trace.tokens();
  row.searched = trace.search_count();
  row.judged = trace.judged_count();
  row.is_dense = is_dense;
  if (!is_dense) {
    CLI_ASSIGN_OR_RETURN(row.verdict, trace.judge(choice));
  }
  CLI_ASSIGN_OR_RETURN(const StepCost costs, cost(trace, choice));
  row.cost = is_dense ? costs.full : costs.step;
  CLI_ASSIGN_OR_RETURN(const StepWork work, trace.work(choice, 0));
  row.read_bytes_per_key = static_cast<double>(is_dense ? work.zone_bytes : work.bytes()) /
                           static_cast<double>(trace.kv_heads() * trace.tokens());
  return row;
}

std::string cost_about(const TuneOptions& options, const std::optional<CostModel>& model) {
  const std::string at =
      options.n > 0 ? fmt::format("{} keys", options.n) : "the keys of each trace";
  if (!model) return fmt::format("bytes of the zone that a step reads, all traces, at {}.", at);
  return fmt::format("predicted time of a step, all traces, at {} (model {}: {}).", at,
                     options.cost, model->device);
}

Outcome run_search(const Engine& engine, const TuneOptions& options) {
  CLI_ASSIGN_OR_RETURN(const SearchOptions search, search_options(options));
  std::optional<CostModel> model;
  if (!options.cost.empty()) {
    CLI_ASSIGN_OR_RETURN(model, load_cost_model(options.cost));
  }
  Setting setting;
  setting.sink = options.sink;
  setting.local = options.local;
  setting.fit_queries = options.fit_queries;
  std::vector<std::unique_ptr<TuneTrace>> traces;
  for (const std::string& path : options.traces) {
    CLI_ASSIGN_OR_RETURN(auto trace,
                         TuneTrace::load(engine, path, fixed_options(options.config), setting));
    traces.push_back(std::move(trace));
  }
  const CostOf cost = cost_of(model, options.n);
  absl::StatusOr<Found> found = Found();
  {
    Progress progress("search", search_steps(search));
    found = search_settings(traces, search, cost, progress);
  }
  CLI_RETURN_IF_ERROR(found.status());
  if (found->tried.empty()) {
    return usage_error("--n={}: no setting is left whose rows are fewer than its candidates",
                       options.n);
  }
  TuneReport report;
  report.target = search.target;
  report.unit = model ? "us" : "bytes";
  report.unit_about = cost_about(options, model);
  report.found = &*found;
  const Tried& chosen = found->chosen();
  for (size_t i = 0; i < traces.size(); ++i) {
    const bool is_dense =
        std::find(chosen.dense.begin(), chosen.dense.end(), i) != chosen.dense.end();
    CLI_ASSIGN_OR_RETURN(TuneRow row, row_of(*traces[i], chosen.choice, is_dense, cost));
    report.rows.push_back(std::move(row));
  }
  CLI_RETURN_IF_ERROR(write_output(
      options.output, options.common.is_json ? tune_json(report) : tune_table(report)));
  return report.is_reached() ? kDone : kBelow;
}

Outcome run_calibrate(const Engine& engine, const TuneOptions& options) {
  CLI_ASSIGN_OR_RETURN(const Calibration calibration,
                       calibrate(engine, options.calibrate, options.check, options.held_out));
  CLI_RETURN_IF_ERROR(write_output(options.output, options.common.is_json
                                                       ? calibration_json(calibration)
                                                       : calibration_table(calibration)));
  const bool is_off = options.within >= 0 && calibration.largest_error() > options.within;
  return is_off ? kBelow : kDone;
}

}  // namespace

Outcome run_tune(const Arguments& arguments) {
  TuneOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_tune(arguments, options));
  if (!is_parsed) return kDone;
  CLI_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.common));
  return options.calibrate.empty() ? run_search(*engine, options) : run_calibrate(*engine, options);
}

}  // namespace pkv::cli
