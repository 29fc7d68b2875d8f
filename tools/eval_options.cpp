#include "tools/eval_options.h"

#include <algorithm>

#include "fmt/ranges.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr int64_t kMaxSeeds = 1000;
constexpr int64_t kDefaultPrefill = 4096;
constexpr int64_t kDefaultWindow = 64;
// These apply to every method, other options of the library to `default` alone.
constexpr std::string_view kShared[] = {"k", "candidates", "seed"};

bool is_shared(std::string_view name) {
  return std::find(std::begin(kShared), std::end(kShared), name) != std::end(kShared);
}

bool has_method(const EvalOptions& options, const char* name) {
  return std::find(options.methods.begin(), options.methods.end(), name) != options.methods.end();
}

absl::Status take_methods(const std::string& text, std::vector<std::string>& methods) {
  methods = split_list(text);
  for (auto it = methods.begin(); it != methods.end(); ++it) {
    if (std::find(kMethods.begin(), kMethods.end(), *it) == kMethods.end()) {
      return usage_error("--methods={}: unknown method \"{}\"; accepted are {}", text, *it,
                         fmt::join(kMethods, ", "));
    }
    if (std::find(methods.begin(), it, *it) != it) {
      return usage_error("--methods={}: {} is given twice", text, *it);
    }
  }
  return absl::OkStatus();
}

// Nothing that was asked for goes without effect.
absl::Status check_used(const EvalOptions& options) {
  if (has_method(options, "default")) return absl::OkStatus();
  for (const auto& [name, value] : options.config.given()) {
    if (!is_shared(name)) {
      return usage_error("--{}={}: applies to the method default, which --methods lacks",
                         with_dashes(name), value);
    }
  }
  if (options.min_recall >= 0) {
    return usage_error("--min-recall={}: applies to the method default, which --methods lacks",
                       options.min_recall);
  }
  return absl::OkStatus();
}

absl::Status resolve(EvalOptions& options) {
  if (!options.decodes && options.prefill >= 0) {
    return usage_error("--prefill={}: applies with --decode", options.prefill);
  }
  if (!options.decodes && options.window >= 0) {
    return usage_error("--window={}: applies with --decode", options.window);
  }
  if (options.prefill < 0) options.prefill = kDefaultPrefill;
  if (options.window < 0) options.window = kDefaultWindow;
  if (options.methods.empty()) options.methods = kMethods;
  if (options.seeds.empty()) {
    CLI_ASSIGN_OR_RETURN(const Config config, make_config("default", options.config.given()));
    CLI_ASSIGN_OR_RETURN(const std::string seed, config_value(config.get(), "seed"));
    options.seeds = {seed};
  } else if (options.config.has("seed")) {
    return usage_error("--seed and --seeds: accepted is one of them");
  }
  CLI_ASSIGN_OR_RETURN(const Config config, make_config("default", options.config.given()));
  CLI_ASSIGN_OR_RETURN(const std::string k, config_value(config.get(), "k"));
  CLI_ASSIGN_OR_RETURN(options.k, parse_integer("k", k, 0, INT32_MAX));
  return check_used(options);
}

}  // namespace

OptionValues EvalOptions::values(const std::string& method, const std::string& seed) const {
  OptionValues values;
  for (const auto& [name, value] : config.given()) {
    if (method == "default" || is_shared(name)) values[name] = value;
  }
  values["seed"] = seed;
  return values;
}

absl::StatusOr<std::vector<std::string>> parse_seeds(const std::string& text) {
  const size_t dots = std::min(text.find(".."), text.size());
  const auto first = parse_integer("seeds", text.substr(0, dots), 0, INT64_MAX);
  const auto last =
      dots == text.size() ? first : parse_integer("seeds", text.substr(dots + 2), 0, INT64_MAX);
  if (!first.ok() || !last.ok() || *last < *first || *last - *first >= kMaxSeeds) {
    return usage_error("--seeds={}: accepted are A or A..B, 0 <= A <= B < 2^63, at most {} seeds",
                       text, kMaxSeeds);
  }
  std::vector<std::string> seeds;
  for (int64_t i = 0; i <= *last - *first; ++i) seeds.push_back(std::to_string(*first + i));
  return seeds;
}

absl::StatusOr<bool> parse_eval(const std::vector<std::string>& arguments, EvalOptions& options) {
  CommandLine line(
      "eval", "TRACE... [OPTION...]",
      "Recall, error and speed of the retrieval on traces of a model, against full\n"
      "attention and other methods. A trace is a .safetensors file with k, v, q, q_pos\n"
      "(docs/cli.md has the schema and the meaning of each figure).");
  line.positional(&options.traces, 1, SIZE_MAX, "traces (.safetensors)");
  line.custom("methods", "comma-separated; paper, default, exact, full, streaming (default all)",
              [&](const std::string& text) { return take_methods(text, options.methods); });
  line.integer("sink", &options.sink, 0, INT32_MAX, "first tokens, attended in full");
  line.integer("local", &options.local, 0, INT32_MAX, "last tokens, attended in full");
  line.integer("fit-queries", &options.fit_queries, 0, INT32_MAX,
               "the first queries fit the codec, the others judge; 0: all judge");
  line.custom("seeds", "A..B: means over these sign seeds",
              [&](const std::string& text) -> absl::Status {
                CLI_ASSIGN_OR_RETURN(options.seeds, parse_seeds(text));
                return absl::OkStatus();
              });
  line.flag("decode", &options.decodes,
            "send the traces through the KV cache; beside default, fresh has a codec of that step");
  line.integer("prefill", &options.prefill, 0, INT32_MAX,
               "with --decode: tokens in one piece, the others one by one (default 4096)");
  line.integer(
      "window", &options.window, 1, INT32_MAX,
      "with --decode: recall and error over so many decoded tokens at a time (default 64)");
  line.real("min-recall", &options.min_recall, 0, 1,
            "exit code 1 if the recall of the method default is below on any trace");
  CLI_RETURN_IF_ERROR(options.config.offer(line, kCodecAndStepOptions));
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  CLI_RETURN_IF_ERROR(resolve(options));
  CLI_RETURN_IF_ERROR(check_output(options.output, options.traces));
  return true;
}

}  // namespace pkv::cli
