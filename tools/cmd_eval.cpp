// pariskv eval: methods against full attention on traces. docs/cli.md says what each figure means.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "tools/commands.h"
#include "tools/eval_options.h"
#include "tools/eval_report.h"
#include "tools/interrupt.h"
#include "tools/judge.h"
#include "tools/progress.h"

namespace pkv::cli {
namespace {

const std::string kFresh = "fresh";
constexpr int64_t kInterval = 512;  // of the cache

// One method, once per seed where seeds matter, judged on one trace.
struct Entrant {
  std::string name;
  std::vector<std::unique_ptr<Method>> methods;
  Judge judge;                       // over all seeds
  std::map<int64_t, Judge> windows;  // by number, with --decode
};

// Judged queries in ascending order of their positions.
std::vector<int64_t> judged_queries(const Trace& trace, int64_t fit_queries) {
  std::vector<int64_t> queries(static_cast<size_t>(trace.query_count() - fit_queries));
  std::iota(queries.begin(), queries.end(), fit_queries);
  std::stable_sort(queries.begin(), queries.end(), [&](int64_t a, int64_t b) {
    return trace.positions[static_cast<size_t>(a)] < trace.positions[static_cast<size_t>(b)];
  });
  return queries;
}

absl::StatusOr<std::unique_ptr<Method>> create_method(const Engine& engine, const Trace& trace,
                                                      const EvalOptions& options,
                                                      const std::string& name,
                                                      const std::string& seed,
                                                      const Setting& setting) {
  if (name == "exact") return create_dense(engine, trace, DenseKind::kExact, setting);
  if (name == "full") return create_dense(engine, trace, DenseKind::kFull, setting);
  if (name == "streaming") return create_dense(engine, trace, DenseKind::kStreaming, setting);
  if (name == kFresh) {
    return create_decode(engine, trace, "default", options.values("default", seed), setting, true);
  }
  if (options.decodes) {
    return create_decode(engine, trace, name, options.values(name, seed), setting, false);
  }
  return create_retrieval(engine, trace, name, options.values(name, seed), setting);
}

// With --decode, `default` is followed by what a codec fitted at that very step would give.
std::vector<std::string> entrant_names(const EvalOptions& options) {
  std::vector<std::string> names = options.methods;
  const auto it = std::find(names.begin(), names.end(), "default");
  if (options.decodes && it != names.end()) names.insert(it + 1, kFresh);
  return names;
}

absl::StatusOr<std::vector<Entrant>> create_entrants(const Engine& engine, const Trace& trace,
                                                     const EvalOptions& options,
                                                     const Setting& setting) {
  std::vector<Entrant> entrants;
  for (const std::string& name : entrant_names(options)) {
    Entrant entrant;
    entrant.name = name;
    const bool has_seeds = name == "paper" || name == "default" || name == kFresh;
    const size_t count = has_seeds ? options.seeds.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      CLI_ASSIGN_OR_RETURN(auto method,
                           create_method(engine, trace, options, name, options.seeds[i], setting));
      entrant.methods.push_back(std::move(method));
    }
    entrants.push_back(std::move(entrant));
  }
  return entrants;
}

// The share that was asked for; with auto, what the vote kept.
absl::StatusOr<std::optional<double>> candidate_share(const Entrant& entrant,
                                                      const EvalOptions& options) {
  if (entrant.name == "exact" || entrant.name == "full") return std::optional(1.0);
  if (entrant.name == "streaming") return std::optional(0.0);
  const std::string profile = entrant.name == kFresh ? "default" : entrant.name;
  CLI_ASSIGN_OR_RETURN(const Config config, make_config(profile, options.values(profile, "0")));
  CLI_ASSIGN_OR_RETURN(const std::string text, config_value(config.get(), "candidates"));
  if (text == "auto") return entrant.judge.candidate_share();
  CLI_ASSIGN_OR_RETURN(const double share, parse_real("candidates", text, 0, 1));
  return std::optional(share);
}

absl::StatusOr<Result> result_of(const Trace& trace, const Entrant& entrant,
                                 const EvalOptions& options) {
  Result result;
  result.trace = trace.name;
  result.method = entrant.name;
  result.n = trace.tokens();
  result.k = options.k;
  CLI_ASSIGN_OR_RETURN(result.candidates, candidate_share(entrant, options));
  result.candidate_recall = entrant.judge.candidate_recall();
  result.recall = entrant.judge.recall();
  result.mass = entrant.judge.mass();
  result.error = entrant.judge.error();
  result.bytes_per_key = entrant.methods.front()->bytes_per_key();
  result.microseconds = entrant.judge.microseconds();
  for (const auto& [number, judge] : entrant.windows) {
    const int64_t begin = options.prefill + number * options.window;
    result.windows.push_back({begin, begin + options.window,
                              judge.answers() / static_cast<int64_t>(entrant.methods.size()),
                              judge.candidate_recall(), judge.recall(), judge.error()});
  }
  return result;
}

absl::StatusOr<Setting> setting_of(const Trace& trace, const EvalOptions& options,
                                   const std::vector<int64_t>& queries) {
  Setting setting;
  setting.sink = options.sink;
  setting.local = options.local;
  setting.fit_queries = options.fit_queries;
  setting.interval = options.decodes ? kInterval : 1;
  setting.prefill = options.prefill;
  const int64_t fit = std::max<int64_t>(options.fit_queries, 1) - 1;
  setting.fit_position = trace.positions[static_cast<size_t>(fit)];
  setting.last_position = trace.positions[static_cast<size_t>(queries.back())];
  return setting;
}

absl::StatusOr<std::vector<Result>> evaluate(const Engine& engine, const EvalOptions& options,
                                             const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const Trace trace, load_trace(engine, path));
  if (options.fit_queries >= trace.query_count()) {
    return usage_error("--fit-queries={}: accepted are 0..{}, below the {} queries of {}",
                       options.fit_queries, trace.query_count() - 1, trace.query_count(), path);
  }
  const std::vector<int64_t> queries = judged_queries(trace, options.fit_queries);
  const int64_t first = trace.positions[static_cast<size_t>(queries.front())];
  if (options.decodes && options.prefill > first + 1) {
    return usage_error("--prefill={}: accepted are 0..{}, up to the first judged query of {}",
                       options.prefill, first + 1, path);
  }
  CLI_ASSIGN_OR_RETURN(const Setting setting, setting_of(trace, options, queries));
  CLI_ASSIGN_OR_RETURN(auto entrants, create_entrants(engine, trace, options, setting));
  Progress progress(trace.name, static_cast<int64_t>(queries.size()));
  for (const int64_t query : queries) {
    const int64_t position = trace.positions[static_cast<size_t>(query)];
    const Regions regions = regions_at(position, setting.sink, setting.local, setting.interval);
    const int64_t window = std::max<int64_t>(0, position - options.prefill) / options.window;
    const Exact exact = attend_exactly(trace, query, regions, options.k);
    for (Entrant& entrant : entrants) {
      for (const auto& method : entrant.methods) {
        CLI_RETURN_IF_ERROR(check_interrupt());
        CLI_ASSIGN_OR_RETURN(const Answer answer, method->answer(query, exact));
        entrant.judge.add(trace, exact, answer);
        if (options.decodes) entrant.windows[window].add(trace, exact, answer);
      }
    }
    progress.advance();
  }
  std::vector<Result> results;
  for (const Entrant& entrant : entrants) {
    CLI_ASSIGN_OR_RETURN(Result result, result_of(trace, entrant, options));
    results.push_back(std::move(result));
  }
  return results;
}

bool is_below(const std::vector<Result>& results, double min_recall) {
  return std::any_of(results.begin(), results.end(), [&](const Result& result) {
    return result.method == "default" && result.recall && *result.recall < min_recall;
  });
}

}  // namespace

Outcome run_eval(const Arguments& arguments) {
  EvalOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_eval(arguments, options));
  if (!is_parsed) return kDone;
  CLI_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.common));
  std::vector<Result> results;
  for (const std::string& path : options.traces) {
    CLI_ASSIGN_OR_RETURN(const auto of_trace, evaluate(*engine, options, path));
    results.insert(results.end(), of_trace.begin(), of_trace.end());
  }
  CLI_RETURN_IF_ERROR(write_output(options.output, options.common.is_json
                                                       ? as_json(results)
                                                       : as_table(results, options.traces.size())));
  return is_below(results, options.min_recall) ? kBelow : kDone;
}

}  // namespace pkv::cli
