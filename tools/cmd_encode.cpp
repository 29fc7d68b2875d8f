// pariskv encode: keys of a file, chunk by chunk, into the records of a .pkv file.
#include <algorithm>
#include <chrono>
#include <optional>

#include "tools/commands.h"
#include "tools/config_options.h"
#include "tools/element.h"
#include "tools/engine.h"
#include "tools/interrupt.h"
#include "tools/json.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/queries.h"
#include "tools/rows.h"
#include "tools/table.h"

namespace pkv::cli {
namespace {

constexpr int64_t kChunkElements = 1 << 20;  // of keys, all heads, between two looks at Ctrl-C

constexpr std::string_view kEncodeOptions[] = {"codec",     "vote",     "center",     "balance",
                                               "rounds",    "seed",     "value_norm", "tail",
                                               "value_dim", "v_source", "nonfinite",  "fit"};

struct EncodeOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;
  std::vector<std::string> input;
  std::string tensor;
  std::string values;
  std::string queries;
  int64_t fit_keys = 65536;
  int64_t fit_queries = 4096;
};

absl::StatusOr<bool> parse_encode(const Arguments& arguments, EncodeOptions& options) {
  CommandLine line(
      "encode", "KEYS --output INDEX.pkv [OPTION...]",
      "Encodes keys, [n, d] or [KV heads, n, d], into an index. KEYS is a .safetensors,\n"
      ".npy, .npz, .fvecs or .bvecs file, read in chunks; it may be larger than memory.");
  line.positional(&options.input, 1, 1, "the file of keys");
  line.text("tensor", &options.tensor, "tensor of keys in a .safetensors or .npz (default k)");
  line.text("values", &options.values, "FILE[:TENSOR] of values, [n, dv] or [KV heads, n, dv]");
  line.text("queries", &options.queries,
            "FILE[:TENSOR] of sample queries for the fit, [m, d] or [m, query heads, d]");
  line.integer("fit-keys", &options.fit_keys, 1, INT32_MAX,
               "at most so many keys, evenly spaced, are seen by the fit");
  line.integer("fit-queries", &options.fit_queries, 1, INT32_MAX,
               "at most so many queries, evenly spaced, are seen by the fit");
  options.config.offer_profile(line);
  CLI_RETURN_IF_ERROR(options.config.offer(line, kEncodeOptions));
  line.text("output", &options.output.path, "the index to write (.pkv)");
  line.flag("force", &options.output.is_forced, "replace the output file if it is there");
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  if (options.output.path.empty())
    return usage_error("--output is missing: the .pkv file to write");
  CLI_RETURN_IF_ERROR(
      check_output(options.output, {options.input[0], split_tensor_name(options.values).path,
                                    split_tensor_name(options.queries).path}));
  return true;
}

// The rows of one file, and memory for some of them.
class Source {
 public:
  static absl::StatusOr<Source> open(const TensorName& name, const std::string& default_tensor) {
    CLI_ASSIGN_OR_RETURN(Rows rows, Rows::open(name, default_tensor));
    return Source(std::move(rows));
  }

  Rows& rows() { return rows_; }
  absl::Status reserve(const Engine& engine, int64_t tokens) {
    CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine, PKV_ALLOC_HOST,
                                                       rows_.outer() * tokens * rows_.row_bytes()));
    memory_ = std::make_unique<Memory>(std::move(memory));
    return absl::OkStatus();
  }
  void* data() { return memory_->data(); }
  // [h, tokens, d] of what was read last.
  pkv_tensor tensor(const Engine& engine, int64_t tokens) {
    shape_[0] = rows_.outer();
    shape_[1] = tokens;
    shape_[2] = rows_.dim();
    return engine.tensor(PKV_ALLOC_HOST, data(), rows_.dtype(), shape_);
  }

 private:
  explicit Source(Rows rows) : rows_(std::move(rows)) {}
  Rows rows_;
  std::unique_ptr<Memory> memory_;
  int64_t shape_[3] = {};
};

// A sample of queries, [m, hq, d] in memory.
struct QuerySample {
  std::unique_ptr<Memory> memory;
  int64_t shape[3];  // as the fit wants them: [hq, m, d]
  int64_t strides[3];
  pkv_tensor tensor;
};

absl::Status read_queries(const Engine& engine, Queries& queries, int64_t most,
                          QuerySample& sample) {
  const int64_t count = std::min(most, queries.count());
  CLI_ASSIGN_OR_RETURN(Memory memory,
                       Memory::create(engine, PKV_ALLOC_HOST, count * queries.bytes()));
  sample.memory = std::make_unique<Memory>(std::move(memory));
  auto* target = static_cast<char*>(sample.memory->data());
  for (int64_t i = 0; i < count; ++i) {
    CLI_RETURN_IF_ERROR(queries.read(i * queries.count() / count, target + i * queries.bytes()));
  }
  const int64_t shape[] = {queries.heads(), count, queries.dim()};
  const int64_t strides[] = {queries.dim(), queries.heads() * queries.dim(), 1};
  std::copy_n(shape, 3, sample.shape);
  std::copy_n(strides, 3, sample.strides);
  sample.tensor = engine.tensor(PKV_ALLOC_HOST, sample.memory->data(), queries.dtype(),
                                sample.shape, sample.strides);
  return absl::OkStatus();
}

class Encoder {
 public:
  Encoder(const EncodeOptions& options, const Engine& engine)
      : options_(options), engine_(engine) {}

  absl::Status open() {
    CLI_ASSIGN_OR_RETURN(Source keys, Source::open({options_.input[0], options_.tensor}, "k"));
    keys_.emplace(std::move(keys));
    if (!options_.values.empty()) {
      CLI_ASSIGN_OR_RETURN(Source values, Source::open(split_tensor_name(options_.values), "v"));
      values_.emplace(std::move(values));
      CLI_RETURN_IF_ERROR(check_values());
    }
    return configure();
  }

  absl::Status fit() {
    const int64_t count = std::min(options_.fit_keys, keys_->rows().rows());
    for (Source* source : sources()) {
      CLI_RETURN_IF_ERROR(source->reserve(engine_, count));
      CLI_RETURN_IF_ERROR(source->rows().sample(count, source->data()));
    }
    const pkv_tensor keys = keys_->tensor(engine_, count);
    const pkv_tensor values = values_ ? values_->tensor(engine_, count) : pkv_tensor{};
    QuerySample sample = {};
    if (!options_.queries.empty()) {
      CLI_ASSIGN_OR_RETURN(Queries queries,
                           Queries::open(split_tensor_name(options_.queries), keys_->rows().dim(),
                                         keys_->rows().outer()));
      CLI_RETURN_IF_ERROR(read_queries(engine_, queries, options_.fit_queries, sample));
    }
    pkv_codec* codec = nullptr;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_codec_fit_sync(engine_.device(), engine_.stream(), config_.get(), &keys,
                                        sample.memory ? &sample.tensor : nullptr,
                                        values_ ? &values : nullptr, &codec),
                     About::kInput, keys_->rows().source()));
    codec_.reset(codec);
    return absl::OkStatus();
  }

  absl::Status append_all() {
    Rows& rows = keys_->rows();
    pkv_index* index = nullptr;
    CLI_RETURN_IF_ERROR(
        from_library(pkv_index_create(engine_.device(), codec_.get(), 1, rows.rows(), &index),
                     About::kInput, rows.source()));
    index_.reset(index);
    const int64_t chunk =
        std::clamp<int64_t>(kChunkElements / (rows.outer() * rows.dim()), 1, rows.rows());
    for (Source* source : sources()) CLI_RETURN_IF_ERROR(source->reserve(engine_, chunk));
    Progress progress("encode", rows.rows());
    for (int64_t begin = 0; begin < rows.rows(); begin += chunk) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      const int64_t count = std::min(chunk, rows.rows() - begin);
      CLI_RETURN_IF_ERROR(append(begin, count));
      progress.advance(count);
    }
    return absl::OkStatus();
  }

  absl::Status save() {
    CLI_RETURN_IF_ERROR(check_interrupt());
    const uint32_t flags = options_.output.is_forced ? PKV_SAVE_OVERWRITE : 0;
    return from_library(
        pkv_index_save_sync(index_.get(), engine_.stream(), options_.output.path.c_str(), flags),
        About::kOutput, options_.output.path);
  }

  absl::StatusOr<Json> summary(double seconds) {
    pkv_index_stats stats;
    CLI_RETURN_IF_ERROR(from_library(pkv_index_stats_init(&stats, sizeof stats), About::kInput));
    CLI_RETURN_IF_ERROR(
        from_library(pkv_index_stats_sync(index_.get(), engine_.stream(), &stats), About::kInput));
    return Json{{"output", options_.output.path},  {"backend", engine_.backend()},
                {"n", keys_->rows().rows()},       {"kv_heads", keys_->rows().outer()},
                {"head_dim", keys_->rows().dim()}, {"bytes_per_key", stats.bytes_per_key},
                {"bad_keys", stats.bad_keys},      {"seconds", seconds}};
  }

 private:
  std::vector<Source*> sources() {
    std::vector<Source*> all = {&*keys_};
    if (values_) all.push_back(&*values_);
    return all;
  }

  absl::Status check_values() {
    const Rows& keys = keys_->rows();
    const Rows& values = values_->rows();
    if (values.outer() == keys.outer() && values.rows() == keys.rows()) return absl::OkStatus();
    return input_error(
        "{}: values of {} KV heads and n={}: accepted are {} and n={} as of the keys",
        values.source(), values.outer(), values.rows(), keys.outer(), keys.rows());
  }

  absl::Status configure() {
    const Rows& keys = keys_->rows();
    CLI_ASSIGN_OR_RETURN(config_, make_config(options_.config.profile(), options_.config.given()));
    CLI_RETURN_IF_ERROR(set_dimension(config_.get(), "head_dim", keys.dim(), keys.source()));
    if (values_ && !options_.config.has("value_dim")) {
      CLI_RETURN_IF_ERROR(set_dimension(config_.get(), "value_dim", values_->rows().dim(),
                                        values_->rows().source()));
    }
    CLI_ASSIGN_OR_RETURN(const std::string v_source, config_value(config_.get(), "v_source"));
    const bool lacks_values = v_source == "none" || (v_source == "own" && !values_);
    if (lacks_values && !options_.config.has("tail")) {
      CLI_RETURN_IF_ERROR(
          from_library(pkv_config_set(config_.get(), "tail", "drop"), About::kOptions));
    }
    CLI_ASSIGN_OR_RETURN(const std::string tail, config_value(config_.get(), "tail"));
    CLI_ASSIGN_OR_RETURN(const std::string norm, config_value(config_.get(), "value_norm"));
    const bool needs_values = (tail != "drop" && tail != "mean") || norm == "on";
    if (needs_values && v_source == "own" && !values_) {
      return usage_error("--tail={} with --value-norm={}: needs --values", tail, norm);
    }
    return absl::OkStatus();
  }

  absl::Status append(int64_t begin, int64_t count) {
    for (Source* source : sources()) {
      CLI_RETURN_IF_ERROR(source->rows().read(begin, count, source->data()));
    }
    const pkv_tensor keys = keys_->tensor(engine_, count);
    const pkv_tensor values = values_ ? values_->tensor(engine_, count) : pkv_tensor{};
    return from_library(pkv_index_append_sync(index_.get(), engine_.stream(), 0, &keys,
                                              values_ ? &values : nullptr),
                        About::kInput, keys_->rows().source());
  }

  const EncodeOptions& options_;
  const Engine& engine_;
  std::optional<Source> keys_;
  std::optional<Source> values_;
  Config config_;
  Codec codec_;
  Index index_;
};

}  // namespace

Outcome run_encode(const Arguments& arguments) {
  EncodeOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_encode(arguments, options));
  if (!is_parsed) return kDone;
  const auto start = std::chrono::steady_clock::now();
  CLI_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.common));
  Encoder encoder(options, *engine);
  CLI_RETURN_IF_ERROR(encoder.open());
  CLI_RETURN_IF_ERROR(encoder.fit());
  CLI_RETURN_IF_ERROR(encoder.append_all());
  CLI_RETURN_IF_ERROR(encoder.save());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CLI_ASSIGN_OR_RETURN(const auto summary, encoder.summary(seconds.count()));
  const std::string text =
      options.common.is_json
          ? summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
          : fmt::format("{}: {} keys x {} KV heads, head_dim {}, {:.1f} bytes per key, {:.1f} s\n",
                        options.output.path, grouped(summary["n"]),
                        summary["kv_heads"].get<int64_t>(), summary["head_dim"].get<int64_t>(),
                        summary["bytes_per_key"].get<double>(), seconds.count());
  CLI_RETURN_IF_ERROR(write_output({}, text));
  return kDone;
}

}  // namespace pkv::cli
