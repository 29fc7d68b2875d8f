#include "tools/cmd_bench_options.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr std::string_view kLibraryOptions[] = {"k", "candidates", "tail"};
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxRepeat = 1000000;
constexpr double kMinSeconds = 0.001;
constexpr double kMaxSeconds = 86400;
constexpr int64_t kMaxRowCache = 4096;
constexpr int64_t kMaxGiB = 4096;
constexpr int64_t kMaxCalls = 1024;
constexpr const char* kAcceptedStages =
    "encode, vote, select, rerank, fetch, attend, step, full_attention";

absl::Status take_stages(const std::string& text, std::vector<BenchStage>& stages) {
  stages.clear();
  for (const std::string& name : split_list(text)) {
    // The plain read is no choice: the others are held against it.
    const auto* const first = std::next(std::begin(kBenchStageNames));
    const auto* const found = std::find(first, std::end(kBenchStageNames), name);
    if (found == std::end(kBenchStageNames)) {
      return usage_error("--stages={}: unknown stage \"{}\"; accepted are {}", text, name,
                         kAcceptedStages);
    }
    const auto stage = static_cast<BenchStage>(found - std::begin(kBenchStageNames));
    if (std::find(stages.begin(), stages.end(), stage) != stages.end()) {
      return usage_error("--stages={}: {} is given twice", text, name);
    }
    stages.push_back(stage);
  }
  std::sort(stages.begin(), stages.end());
  return absl::OkStatus();
}

absl::Status take_list(const char* name, const std::string& text, int64_t max,
                       std::vector<int64_t>& numbers) {
  numbers.clear();
  for (const std::string& part : split_list(text)) {
    CLI_ASSIGN_OR_RETURN(const int64_t number, parse_integer(name, part, 1, max));
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end()) {
      return usage_error("--{}={}: {} is given twice", name, text, number);
    }
    numbers.push_back(number);
  }
  return absl::OkStatus();
}

absl::Status take_head_dim(const std::string& text, std::string& head_dim) {
  CLI_ASSIGN_OR_RETURN(const Config checked, make_config("default", {}));
  CLI_RETURN_IF_ERROR(from_library(pkv_config_set(checked.get(), "head_dim", text.c_str()),
                                   About::kOptions, fmt::format("--head-dim={}", text)));
  head_dim = text;
  return absl::OkStatus();
}

absl::Status take_dtype(const std::string& text, BenchOptions& options) {
  if (text == "bf16") {
    options.dtype = PKV_DTYPE_BF16;
  } else if (text == "f16") {
    options.dtype = PKV_DTYPE_F16;
  } else if (text == "f32") {
    options.dtype = PKV_DTYPE_F32;
  } else {
    return usage_error("--dtype={}: accepted are bf16, f16, f32", text);
  }
  options.dtype_name = text;
  return absl::OkStatus();
}

absl::Status take_rows(const std::string& text, std::string& rows) {
  if (text != "host" && text != "device") {
    return usage_error("--rows={}: accepted are host, device", text);
  }
  rows = text;
  return absl::OkStatus();
}

absl::Status check_heads(const BenchOptions& options) {
  constexpr int64_t kMaxGroup = 128;
  if (options.query_heads % options.kv_heads == 0 &&
      options.query_heads / options.kv_heads <= kMaxGroup) {
    return absl::OkStatus();
  }
  return usage_error("--query-heads={}: accepted are multiples of --kv-heads={}, up to {}",
                     options.query_heads, options.kv_heads, kMaxGroup * options.kv_heads);
}

// Nothing that was asked for goes without effect.
absl::Status check_used(const BenchOptions& options) {
  const auto is_searching = [](BenchStage stage) {
    return stage >= BenchStage::kSelect && stage <= BenchStage::kStep;
  };
  if (std::any_of(options.stages.begin(), options.stages.end(), is_searching)) {
    return absl::OkStatus();
  }
  for (const char* name : {"k", "candidates"}) {
    if (!options.config.has(name)) continue;
    return usage_error(
        "--{}={}: applies to select, rerank, fetch, attend and step, which --stages lacks", name,
        options.config.given().find(name)->second);
  }
  if (options.has(BenchStage::kEncode) || options.has(BenchStage::kVote)) return absl::OkStatus();
  constexpr const char* kNoRecords = "applies to records, and full_attention has none";
  if (options.config.profile() != "default") {
    return usage_error("--profile={}: {}", options.config.profile(), kNoRecords);
  }
  if (!options.config.has("tail")) return absl::OkStatus();
  return usage_error("--tail={}: {}", options.config.given().find("tail")->second, kNoRecords);
}

// The words, quoted where a shell would split or change them.
std::string command_text(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+@%";
  std::string text = "pariskv bench";
  for (const std::string& word : arguments) {
    text += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

}  // namespace

bool BenchOptions::has(BenchStage stage) const {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

OptionValues BenchOptions::values() const {
  OptionValues values = config.given();
  values["head_dim"] = head_dim;
  return values;
}

absl::StatusOr<bool> parse_bench(const std::vector<std::string>& arguments, BenchOptions& options) {
  options.command = command_text(arguments);
  CommandLine line("bench", "[OPTION...]",
                   "Times of each stage, of a whole decode step and of full attention on random\n"
                   "data, held against a plain read of memory by the same threads.");
  line.custom("stages", fmt::format("comma-separated; {} (default all)", kAcceptedStages),
              [&](const std::string& text) { return take_stages(text, options.stages); });
  line.custom("n", "keys per sequence, comma-separated; 1..2147483647 (default 131072)",
              [&](const std::string& text) { return take_list("n", text, INT32_MAX, options.n); });
  line.integer("batch", &options.batch, 1, 65535, "sequences");
  line.integer("kv-heads", &options.kv_heads, 1, 65535, "KV heads");
  line.integer("query-heads", &options.query_heads, 1, INT32_MAX,
               "query heads, a multiple of the KV heads");
  line.custom("head-dim", "width of keys and values; a multiple of 8 in 8..576 (default 128)",
              [&](const std::string& text) { return take_head_dim(text, options.head_dim); });
  line.custom("dtype", "of keys, values and queries; bf16, f16, f32 (default bf16)",
              [&](const std::string& text) { return take_dtype(text, options); });
  options.config.offer_profile(line);
  CLI_RETURN_IF_ERROR(options.config.offer(line, kLibraryOptions));
  line.custom("threads",
              fmt::format("threads of the backend, comma-separated; 1..{} "
                          "(default as many as the process may use)",
                          kMaxThreads),
              [&](const std::string& text) {
                return take_list("threads", text, kMaxThreads, options.threads);
              });
  line.text("isa", &options.isa, "instruction set of the backend");
  line.integer("repeat", &options.repeat, 1, kMaxRepeat, "timed runs of each stage");
  line.flag("warm", &options.is_warm,
            "one layer again and again, as far as it fits in the caches "
            "(default cold: layers take turns)");
  line.custom("rows", "memory of K and V of the zone; host, device (default host)",
              [&](const std::string& text) { return take_rows(text, options.rows); });
  line.integer("row-cache", &options.row_cache, 0, kMaxRowCache,
               "rows per KV head that steps keep on the device; a layer's queries then drift, so "
               "that rows come again");
  line.real("drift", &options.drift, 0, 1,
            fmt::format("with --row-cache, how much of a layer's next query is new (default {})",
                        options.drift));
  line.integer("memory", &options.memory, 1, kMaxGiB,
               "GiB at most of records of all layers, and of their K and V");
  line.custom("calls",
              fmt::format("steps, or full attentions, that one wait is for; 1..{} (default {} on a "
                          "device with memory of its own, else 1)",
                          kMaxCalls, kBenchDeviceCalls),
              [&](const std::string& text) -> absl::Status {
                CLI_ASSIGN_OR_RETURN(options.calls, parse_integer("calls", text, 1, kMaxCalls));
                return absl::OkStatus();
              });
  line.real(
      "seconds", &options.seconds, kMinSeconds, kMaxSeconds,
      fmt::format("time per row, after which runs are left out (default {})", options.seconds));
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  if (options.stages.empty())
    CLI_RETURN_IF_ERROR(
        take_stages("encode,vote,select,rerank,fetch,attend,step,full_attention", options.stages));
  CLI_RETURN_IF_ERROR(check_heads(options));
  CLI_RETURN_IF_ERROR(check_used(options));
  if (options.row_cache > 0 && !options.has(BenchStage::kStep)) {
    return usage_error("--row-cache={}: applies to step, which --stages lacks", options.row_cache);
  }
  CLI_RETURN_IF_ERROR(check_output(options.output, {}));
  return true;
}

}  // namespace pkv::cli
