#include "tools/cmd_tune_calibrate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "fmt/chrono.h"
#include "tools/cmd_bench_shape.h"
#include "tools/cmd_report_fields.h"
#include "tools/config_options.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

// What all rows of a model must share.
struct Machine {
  std::optional<std::string> device;
  std::optional<int64_t> threads;
};

int64_t in_range(const Fields& row, const std::string& name, int64_t min, int64_t max) {
  const int64_t value = row.integer(name);
  if (value >= min && value <= max) return value;
  row.refuse(name, fmt::format("{}: accepted are {}..{}", value, min, max));
  return min;
}

// The step of a row of `pariskv bench`; options that rows do not tell come from the command.
absl::StatusOr<StepWork> work_of_row(const Engine& engine, const Fields& row, OptionValues values) {
  StepShape shape;
  shape.batch = in_range(row, "batch", 1, 65536);
  shape.kv_heads = in_range(row, "kv_heads", 1, 1024);
  shape.query_heads = in_range(row, "query_heads", 1, 65536);
  shape.n = in_range(row, "n", 1, int64_t{1} << 31);
  const int64_t dim = in_range(row, "head_dim", 8, 576);
  shape.dense = kBenchDense[0] + kBenchDense[1];
  shape.row_bytes = 2 * dim * (row.maybe_text("dtype") == "f32" ? 4 : 2);
  if (row.has("k")) shape.k = in_range(row, "k", 0, 65536);
  const std::string tail = row.maybe_text("tail");
  const std::string profile = row.maybe_text("profile");
  if (!tail.empty()) values["tail"] = tail;
  values["head_dim"] = std::to_string(dim);
  values.erase("candidates");
  values["k"] = std::to_string(shape.k);
  const auto made = make_config(profile.empty() ? "default" : profile, values);
  if (!made.ok()) {
    row.refuse("", std::string(made.status().message()));
    return StepWork();
  }
  const pkv_config* config = made->get();
  CLI_ASSIGN_OR_RETURN(const std::string samples, config_value(config, "tail_samples"));
  CLI_ASSIGN_OR_RETURN(shape.samples, parse_integer("tail_samples", samples, 0, INT32_MAX));
  CLI_ASSIGN_OR_RETURN(const std::string tail_name, config_value(config, "tail"));
  shape.tail = tail_number(tail_name);
  shape.has_4_bits = tail_name == "sketch4";
  shape.candidates = candidates_of(row.maybe_share("candidates").value_or(0), shape.n, shape.k);
  CLI_ASSIGN_OR_RETURN(const Codec codec, import_codec(engine, config, shape.kv_heads, dim));
  CLI_ASSIGN_OR_RETURN(shape.sizes, record_sizes(codec.get()));
  return work_of(shape);
}

std::string name_of(const Fields& row) {
  std::string name = fmt::format("{} n {}", row.text("stage"), grouped(row.integer("n")));
  if (row.integer("batch") != 1) name += fmt::format(" batch {}", row.integer("batch"));
  name += fmt::format(" heads {}/{}", row.integer("kv_heads"), row.integer("query_heads"));
  if (row.has("candidates")) {
    name += fmt::format(" k {} candidates {:.4g} % {}", row.integer("k"),
                        100 * row.number("candidates"), row.maybe_text("tail"));
  }
  return name;
}

absl::Status load_run(const Engine& engine, const Fields& run, const Fields& file, Machine& machine,
                      std::vector<TimedStep>& steps) {
  const std::string device = run.has("device") ? run.text("device") : file.maybe_text("device");
  if (machine.device.value_or(device) != device) {
    return input_error("{}: device: {}: accepted is that of the other files, {}", file.file(),
                       device, *machine.device);
  }
  machine.device = device;
  const OptionValues values =
      options_in(run.has("command") ? run.text("command") : file.maybe_text("command"));
  for (const Fields& row : run.objects("results")) {
    const std::string stage = row.text("stage");
    const bool is_full = stage == "full_attention";
    if ((stage != "step" && !is_full) || row.maybe_number("row_cache").value_or(0) > 0) continue;
    const int64_t threads = row.has("threads") ? row.integer("threads") : 1;
    if (!is_full && machine.threads.value_or(threads) != threads) {
      row.refuse("threads", fmt::format("{}: accepted is one number of them in all files, here {}",
                                        threads, *machine.threads));
    }
    if (!is_full) machine.threads = threads;
    TimedStep step;
    step.name = name_of(row);
    step.is_full = is_full;
    step.us = row.number("min_us");
    if (step.us <= 0) row.refuse("min_us", "0: accepted is a time above 0");
    CLI_ASSIGN_OR_RETURN(step.work, work_of_row(engine, row, values));
    steps.push_back(std::move(step));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TimedStep>> load_steps(const Engine& engine, const std::string& path,
                                                  Machine& machine,
                                                  std::vector<std::string>& commands) {
  CLI_ASSIGN_OR_RETURN(const Json document, load_json(path));
  absl::Status status;
  const Fields whole(document, path, "", &status);
  std::vector<TimedStep> steps;
  const std::vector<Fields> runs =
      whole.has("runs") ? whole.objects("runs") : std::vector<Fields>{whole};
  for (const Fields& run : runs) {
    const absl::Status loaded = load_run(engine, run, whole, machine, steps);
    // A field that is wrong comes first: what was read with it need not go together.
    CLI_RETURN_IF_ERROR(status);
    CLI_RETURN_IF_ERROR(loaded);
    commands.push_back(run.has("command") ? run.text("command") : whole.maybe_text("command"));
  }
  CLI_RETURN_IF_ERROR(status);
  return steps;
}

double predicted(const CostModel& model, const TimedStep& step) {
  return step.is_full ? model.full_us(step.work) : model.step_us(step.work);
}

double error_of(const CostModel& model, const TimedStep& step) {
  return predicted(model, step) / step.us - 1;
}

}  // namespace

double Calibration::largest_error() const {
  double largest = 0;
  for (const TimedStep& step : checked.empty() ? fitted : checked) {
    if (!step.is_full) largest = std::max(largest, std::abs(error_of(model, step)));
  }
  return largest;
}

absl::StatusOr<Calibration> calibrate(const Engine& engine, const std::vector<std::string>& files,
                                      const std::vector<std::string>& checks,
                                      const std::vector<int64_t>& held_out) {
  constexpr size_t kLeast = 5;  // fewer say nothing
  Calibration calibration;
  Machine machine;
  const auto load = [&](const auto& paths, std::vector<TimedStep>& steps) -> absl::Status {
    for (const std::string& path : paths) {
      CLI_ASSIGN_OR_RETURN(const auto some,
                           load_steps(engine, path, machine, calibration.commands));
      steps.insert(steps.end(), some.begin(), some.end());
    }
    return absl::OkStatus();
  };
  std::vector<TimedStep> all;
  CLI_RETURN_IF_ERROR(load(files, all));
  for (const int64_t number : held_out) {
    if (number > static_cast<int64_t>(all.size())) {
      return usage_error("--hold-out={}: accepted are 1..{}", number, all.size());
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_held =
        std::find(held_out.begin(), held_out.end(), static_cast<int64_t>(i + 1)) != held_out.end();
    (is_held ? calibration.checked : calibration.fitted).push_back(std::move(all[i]));
  }
  CLI_RETURN_IF_ERROR(load(checks, calibration.checked));
  const auto count = std::count_if(calibration.fitted.begin(), calibration.fitted.end(),
                                   [](const TimedStep& step) { return !step.is_full; });
  if (static_cast<size_t>(count) < kLeast) {
    return input_error("{}: results: {} steps without a row cache: accepted are {} or more",
                       files.front(), count, kLeast);
  }
  calibration.model = fit_cost_model(calibration.fitted);
  calibration.model.device = machine.device.value_or("");
  return calibration;
}

std::string calibration_json(const Calibration& calibration) {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  Json rows = Json::array();
  for (const bool is_checked : {false, true}) {
    for (const TimedStep& step : is_checked ? calibration.checked : calibration.fitted) {
      rows.push_back({{"what", step.name},
                      {"fitted", !is_checked},
                      {"measured_us", step.us},
                      {"predicted_us", predicted(calibration.model, step)}});
    }
  }
  const Json whole = {{"device", calibration.model.device},
                      {"commands", calibration.commands},
                      {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now))},
                      {"model", as_json(calibration.model)},
                      {"largest_error", calibration.largest_error()},
                      {"rows", std::move(rows)}};
  return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string calibration_table(const Calibration& calibration) {
  Table table({"what", "used", "measured us", "predicted us", "off by"}, 2);
  for (const bool is_checked : {false, true}) {
    for (const TimedStep& step : is_checked ? calibration.checked : calibration.fitted) {
      table.add({step.name, is_checked ? "check" : "fit", decimal(step.us, 1),
                 decimal(predicted(calibration.model, step), 1),
                 fmt::format("{:+.1f} %", 100 * error_of(calibration.model, step))});
    }
  }
  return fmt::format("{}\n{}\n{}largest error of a step{}: {:.1f} %\n", calibration.model.device,
                     as_json(calibration.model).dump(), table.text(),
                     calibration.checked.empty() ? "" : " not fitted",
                     100 * calibration.largest_error());
}

}  // namespace pkv::cli
