// pariskv bench: how long each stage, a whole decode step and full attention take on random data.
// docs/cli.md, section 7, says what a figure includes.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <thread>
#include <tuple>

#include "tools/cmd_bench_measure.h"
#include "tools/cmd_bench_report.h"
#include "tools/cmd_bench_stages.h"
#include "tools/cmd_bench_step.h"
#include "tools/commands.h"
#include "tools/interrupt.h"

namespace pkv::cli {
namespace {

// Stages whose figures come from one chain: from vote to the last that was asked for.
std::vector<BenchStage> chain_of(const BenchOptions& options) {
  std::vector<BenchStage> chain;
  for (BenchStage stage : {BenchStage::kAttend, BenchStage::kFetch, BenchStage::kRerank,
                           BenchStage::kSelect, BenchStage::kVote}) {
    if (!chain.empty() || options.has(stage)) chain.insert(chain.begin(), stage);
  }
  return chain;
}

// Those asked for, else as many as a device takes by itself: all there are, or 1 where the backend
// leaves no choice.
std::vector<int64_t> choose_threads(const Engine& engine, const BenchOptions& options) {
  if (!options.threads.empty()) return options.threads;
  const int64_t all = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const bool has_choice =
      pkv_device_set(engine.device(), "threads", std::to_string(all).c_str()) == PKV_OK;
  return std::vector<int64_t>{has_choice ? all : 1};
}

absl::Status set_threads(const Engine& engine, const BenchOptions& options, int64_t threads) {
  const pkv_status status =
      pkv_device_set(engine.device(), "threads", std::to_string(threads).c_str());
  if (options.threads.empty()) return absl::OkStatus();
  return from_library(status, About::kOptions, fmt::format("--threads={}", threads));
}

absl::Status set_isa(const Engine& engine, const std::string& isa) {
  return from_library(pkv_device_set(engine.device(), "isa", isa.c_str()), About::kOptions,
                      fmt::format("--isa={}", isa));
}

// All rows of one n.
class Bench {
 public:
  Bench(const BenchOptions& options, const Engine& engine, Progress& work)
      : options_(options), engine_(engine), work_(work) {}

  // Fewer threads come later: once scratch is sized, a device takes no more of them.
  absl::Status run(int64_t n, std::vector<int64_t> threads, std::vector<BenchRow>& rows) {
    std::sort(threads.begin(), threads.end(), std::greater<>());
    CLI_RETURN_IF_ERROR(set_threads(engine_, options_, threads.front()));
    CLI_ASSIGN_OR_RETURN(setup_, setup_bench(engine_, options_, n));
    CLI_ASSIGN_OR_RETURN(data_, BenchData::create(engine_, setup_.shape));
    CLI_RETURN_IF_ERROR(make_records());
    for (const int64_t count : threads) {
      CLI_RETURN_IF_ERROR(set_threads(engine_, options_, count));
      CLI_RETURN_IF_ERROR(measure(count, rows));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status make_records() {
    if (options_.has(BenchStage::kEncode) || !chain_of(options_).empty()) {
      CLI_ASSIGN_OR_RETURN(stages_, BenchStages::create(engine_, setup_, *data_));
    }
    if (options_.has(BenchStage::kStep)) {
      CLI_ASSIGN_OR_RETURN(step_, BenchStep::create(engine_, setup_, *data_));
    }
    const int64_t layers = setup_.shape.layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      if (stages_) CLI_RETURN_IF_ERROR(stages_->encode(layer).status());
      if (step_) CLI_RETURN_IF_ERROR(step_->append(layer));
      work_.advance(options_.repeat * (layer + 1) / layers - options_.repeat * layer / layers);
    }
    if (!options_.has(BenchStage::kFullAttention)) return absl::OkStatus();
    CLI_ASSIGN_OR_RETURN(full_,
                         BenchFullAttention::create(engine_, options_, setup_.shape, *data_));
    return absl::OkStatus();
  }

  absl::Status measure(int64_t threads, std::vector<BenchRow>& rows) {
    Reader reader(threads);
    BenchMeter meter(options_, setup_.shape, threads, reader, work_);
    if (step_) CLI_RETURN_IF_ERROR(step_->create_plans());
    if (full_) CLI_RETURN_IF_ERROR(full_->create_plan());
    for (const BenchGroup& group : groups(reader)) {
      CLI_RETURN_IF_ERROR(meter.measure(group, rows));
    }
    return absl::OkStatus();
  }

  std::vector<BenchGroup> groups(Reader& reader) const {
    using Times = absl::StatusOr<std::vector<double>>;
    const auto single = [](absl::StatusOr<double> time) -> Times {
      if (!time.ok()) return time.status();
      return std::vector<double>{*time};
    };
    std::vector<BenchGroup> groups;
    if (setup_.shape.is_cpu) {
      const int64_t bytes = setup_.shape.bytes(BenchStage::kRead);
      groups.push_back({{BenchStage::kRead}, [this, bytes, &reader](int64_t layer) -> Times {
                          return std::vector{reader.read(data_->read_from(layer, bytes), bytes)};
                        }});
    }
    if (options_.has(BenchStage::kEncode)) {
      groups.push_back({{BenchStage::kEncode},
                        [this, single](int64_t layer) { return single(stages_->encode(layer)); }});
    }
    if (const auto chain = chain_of(options_); !chain.empty()) {
      const BenchStage last = chain.back();
      groups.push_back(
          {chain, [this, last](int64_t layer) { return stages_->chain(layer, last); }});
    }
    if (step_) {
      groups.push_back({{BenchStage::kStep},
                        [this, single](int64_t layer) { return single(step_->step(layer)); },
                        setup_.shape.calls});
      if (options_.row_cache > 0) groups.back().repeats = [this] { return step_->repeats(); };
    }
    if (full_) {
      groups.push_back({{BenchStage::kFullAttention},
                        [this, single](int64_t layer) { return single(full_->attend(layer)); },
                        setup_.shape.calls});
    }
    return groups;
  }

  const BenchOptions& options_;
  const Engine& engine_;
  Progress& work_;
  BenchSetup setup_;
  std::unique_ptr<BenchData> data_;
  std::unique_ptr<BenchStages> stages_;       // none where no stage was asked for
  std::unique_ptr<BenchStep> step_;           // likewise
  std::unique_ptr<BenchFullAttention> full_;  // likewise
};

// For the progress bar: runs, and for each n as many again for its records.
int64_t count_work(const BenchOptions& options, size_t threads) {
  int64_t groups = 2;  // a plain read and a chain
  for (const BenchStage stage :
       {BenchStage::kEncode, BenchStage::kStep, BenchStage::kFullAttention}) {
    groups += options.has(stage) ? 1 : 0;
  }
  const auto rounds = groups * static_cast<int64_t>(threads) + 1;
  return rounds * options.repeat * static_cast<int64_t>(options.n.size());
}

// In the order of --n, then of --threads, then of the stages.
void sort_rows(const BenchOptions& options, std::vector<BenchRow>& rows) {
  const auto place = [](const std::vector<int64_t>& list, int64_t number) {
    return std::find(list.begin(), list.end(), number) - list.begin();
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const BenchRow& a, const BenchRow& b) {
    const auto key = [&](const BenchRow& row) {
      return std::tuple(place(options.n, row.n), place(options.threads, row.threads), row.stage);
    };
    return key(a) < key(b);
  });
}

struct BenchResult {
  BenchHead head;
  std::vector<BenchRow> rows;
};

absl::StatusOr<BenchResult> measure_all(const BenchOptions& options) {
  BenchResult result;
  CLI_ASSIGN_OR_RETURN(auto engine, Engine::open(options.common));
  if (!options.isa.empty()) CLI_RETURN_IF_ERROR(set_isa(*engine, options.isa));
  const std::vector<int64_t> threads = choose_threads(*engine, options);
  CLI_ASSIGN_OR_RETURN(result.head, bench_head(*engine, options));
  Progress work("bench", count_work(options, threads.size()));
  for (const int64_t n : options.n) {
    CLI_ASSIGN_OR_RETURN(engine, Engine::open(options.common));
    if (!options.isa.empty()) CLI_RETURN_IF_ERROR(set_isa(*engine, options.isa));
    Bench bench(options, *engine, work);
    CLI_RETURN_IF_ERROR(bench.run(n, threads, result.rows));
  }
  sort_rows(options, result.rows);
  return result;
}

// What the limit of time left out.
void warn(const BenchOptions& options, const std::vector<BenchRow>& rows) {
  if (options.common.log_level < 1) return;
  for (const BenchRow& row : rows) {
    if (static_cast<int64_t>(row.times.size()) == options.repeat) continue;
    std::fprintf(stderr, "pariskv: warning: %s at n=%lld: %zu of %lld runs within --seconds=%g\n",
                 bench_stage_name(row.stage), static_cast<long long>(row.n), row.times.size(),
                 static_cast<long long>(options.repeat), options.seconds);
  }
}

}  // namespace

Outcome run_bench(const Arguments& arguments) {
  BenchOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_bench(arguments, options));
  if (!is_parsed) return kDone;
  CLI_ASSIGN_OR_RETURN(const BenchResult result, measure_all(options));
  CLI_RETURN_IF_ERROR(check_interrupt());
  warn(options, result.rows);
  const std::string text = options.common.is_json ? bench_json(result.head, options, result.rows)
                                                  : bench_table(result.head, options, result.rows);
  CLI_RETURN_IF_ERROR(write_output(options.output, text));
  return kDone;
}

}  // namespace pkv::cli
