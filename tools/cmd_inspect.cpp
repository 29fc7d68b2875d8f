// pariskv inspect: an index file, or a trace, head by head.
#include <algorithm>

#include "tools/commands.h"
#include "tools/inspect_trace.h"
#include "tools/json.h"
#include "tools/output.h"
#include "tools/stored_index.h"
#include "tools/table.h"
#include "tools/votes.h"

namespace pkv::cli {
namespace {

struct InspectOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;
  std::vector<std::string> input;
  InspectSetting setting;
  std::vector<std::string> of_traces;  // options given that only traces have
};

bool is_index(const std::string& path) {
  return path.size() > 4 && path.substr(path.size() - 4) == ".pkv";
}

absl::StatusOr<bool> parse_inspect(const Arguments& arguments, InspectOptions& options) {
  CommandLine line(
      "inspect", "TRACE.safetensors|INDEX.pkv [OPTION...]",
      "Of a trace, per KV head: recall of the vote and of the final set against exact\n"
      "search, tied votes, and what keys and codec look like. Of an index: what the file\n"
      "holds, once its checksums are found right. Options but the common ones are for\n"
      "traces.");
  line.positional(&options.input, 1, 1, "a trace or an index");
  const auto count = [&](const char* name, int64_t* target, const char* about) {
    line.custom(name, fmt::format("{}; 0..{} (default {})", about, INT32_MAX, *target),
                [&options, name, target](const std::string& text) -> absl::Status {
                  options.of_traces.emplace_back(name);
                  CLI_ASSIGN_OR_RETURN(*target, parse_integer(name, text, 0, INT32_MAX));
                  return absl::OkStatus();
                });
  };
  count("sink", &options.setting.sink, "first tokens, attended in full");
  count("local", &options.setting.local, "last tokens, attended in full");
  count("fit-queries", &options.setting.fit_queries,
        "the first queries fit the codec, the others judge");
  options.config.offer_profile(line);
  CLI_RETURN_IF_ERROR(options.config.offer(line, kCodecAndStepOptions));
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  for (const auto& [name, value] : options.config.given()) options.of_traces.push_back(name);
  if (options.config.profile() != "default") options.of_traces.emplace_back("profile");
  if (is_index(options.input[0]) && !options.of_traces.empty()) {
    return usage_error("--{}: applies to traces, and {} is an index", options.of_traces[0],
                       options.input[0]);
  }
  options.setting.profile = options.config.profile();
  options.setting.options = options.config.given();
  CLI_RETURN_IF_ERROR(check_output(options.output, options.input));
  return true;
}

Json trace_json(const std::string& path, const std::vector<HeadFigures>& heads) {
  Json list = Json::array();
  for (const HeadFigures& head : heads) {
    list.push_back({{"kv_head", head.kv_head},
                    {"n", head.n},
                    {"candidate_recall", number_or_null(head.candidate_recall)},
                    {"recall", number_or_null(head.recall)},
                    {"tied_votes", number_or_null(head.tied)},
                    {"cosine", head.cosine},
                    {"norm_min", head.norm_min},
                    {"norm_mean", head.norm_mean},
                    {"norm_max", head.norm_max},
                    {"balance_min", head.balance_min},
                    {"balance_max", head.balance_max},
                    {"patterns_used", head.patterns_used},
                    {"largest_pattern", head.largest_pattern}});
  }
  return {{"trace", path}, {"heads", list}};
}

std::string trace_table(const std::vector<HeadFigures>& heads) {
  Table table({"KV head", "n", "cand. recall", "recall", "tied votes", "cosine", "norm min", "mean",
               "max", "balance min", "max", "patterns used", "largest"},
              0);
  for (const HeadFigures& head : heads) {
    table.add({std::to_string(head.kv_head), grouped(head.n), decimal(head.candidate_recall, 3),
               decimal(head.recall, 3), percent(head.tied), decimal(head.cosine, 3),
               decimal(head.norm_min, 2), decimal(head.norm_mean, 2), decimal(head.norm_max, 2),
               decimal(head.balance_min, 3), decimal(head.balance_max, 3),
               percent(head.patterns_used), percent(head.largest_pattern)});
  }
  return table.text();
}

// Of one sequence and KV head of an index.
absl::StatusOr<Json> row_json(const Engine& engine, const StoredIndex& stored, int32_t sequence,
                              int32_t head, const pkv_codec_data& codec) {
  constexpr int kPatterns = 256;
  CLI_ASSIGN_OR_RETURN(const int64_t length, stored.length(sequence));
  const int32_t dim = stored.geometry.head_dim;
  CLI_ASSIGN_OR_RETURN(
      const RecordCopy copy,
      RecordCopy::create(engine, stored.geometry, stored.index.get(), sequence, head, length));
  std::vector<int32_t> counts(static_cast<size_t>(dim / 8 * kPatterns));
  count_patterns(copy, dim, 0, length, counts);
  int64_t bad = 0;
  for (int64_t i = 0; i < length; ++i) bad += copy.is_bad(i) ? 1 : 0;
  const PatternFigures patterns = pattern_figures(counts, length - bad);
  const float* balance = codec.balance + int64_t{head} * dim;
  const auto [least, most] = std::minmax_element(balance, balance + dim);
  return Json{{"sequence", sequence},
              {"kv_head", head},
              {"n", length},
              {"bad_keys", bad},
              {"balance_min", *least},
              {"balance_max", *most},
              {"patterns_used", patterns.used},
              {"largest_pattern", patterns.largest}};
}

absl::StatusOr<Json> index_json(const Engine& engine, const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const StoredIndex stored, load_index(engine, path));
  pkv_index_stats stats;
  CLI_RETURN_IF_ERROR(from_library(pkv_index_stats_init(&stats, sizeof stats), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(
      pkv_index_stats_sync(stored.index.get(), engine.stream(), &stats), About::kInput));
  pkv_codec_data codec;
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&codec, sizeof codec), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_export(stored.codec.get(), &codec), About::kInput));
  Json sections = Json::array();
  for (const PkvSection& section : stored.file.sections) {
    sections.push_back({{"type", section.type},
                        {"offset", section.offset},
                        {"bytes", section.bytes},
                        {"checksum", fmt::format("{:016x}", section.checksum)},
                        {"optional", section.is_optional}});
  }
  Json geometry = {{"kv_heads", stored.geometry.kv_heads}};
  for (const auto& [name, value] : codec_values(stored)) geometry[name] = value;
  Json rows = Json::array();
  for (int32_t sequence = 0; sequence < stored.file.sequences; ++sequence) {
    for (int32_t head = 0; head < stored.geometry.kv_heads; ++head) {
      CLI_ASSIGN_OR_RETURN(Json row, row_json(engine, stored, sequence, head, codec));
      rows.push_back(std::move(row));
    }
  }
  return Json{{"index", path},
              {"format_version", stored.file.version},
              {"bytes", stored.file.bytes},
              {"checksums", "ok"},
              {"sequences", stored.file.sequences},
              {"capacity", stored.file.capacity},
              {"tokens", stats.tokens},
              {"bytes_per_key", stats.bytes_per_key},
              {"geometry", geometry},
              {"sections", sections},
              {"heads", rows}};
}

std::string index_text(const Json& index) {
  std::string text = fmt::format(
      "{}: format version {}, {} bytes, checksums ok\n"
      "{} sequences of up to {} tokens, {} tokens held, {:.1f} bytes per key and KV "
      "head\n\nGeometry\n",
      index["index"].get<std::string>(), index["format_version"].get<int64_t>(),
      grouped(index["bytes"]), index["sequences"].get<int64_t>(), grouped(index["capacity"]),
      grouped(index["tokens"]), index["bytes_per_key"].get<double>());
  for (const auto& [name, value] : index["geometry"].items()) {
    text += fmt::format("  {:<11}{}\n", name,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  Table sections({"section", "offset", "bytes", "checksum"});
  for (const Json& section : index["sections"]) {
    sections.add({section["type"], grouped(section["offset"]), grouped(section["bytes"]),
                  section["checksum"]});
  }
  Table heads(
      {"sequence", "KV head", "n", "bad keys", "balance min", "max", "patterns used", "largest"},
      0);
  for (const Json& head : index["heads"]) {
    heads.add({head["sequence"].dump(), head["kv_head"].dump(), grouped(head["n"]),
               grouped(head["bad_keys"]), decimal(head["balance_min"].get<double>(), 3),
               decimal(head["balance_max"].get<double>(), 3),
               percent(head["patterns_used"].get<double>()),
               percent(head["largest_pattern"].get<double>())});
  }
  return text + "\n" + sections.text() + "\n" + heads.text();
}

}  // namespace

Outcome run_inspect(const Arguments& arguments) {
  InspectOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_inspect(arguments, options));
  if (!is_parsed) return kDone;
  CLI_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.common));
  const std::string& path = options.input[0];
  const auto print = [](const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  std::string text;
  if (is_index(path)) {
    CLI_ASSIGN_OR_RETURN(const Json index, index_json(*engine, path));
    text = options.common.is_json ? print(index) : index_text(index);
  } else {
    CLI_ASSIGN_OR_RETURN(const auto heads, inspect_trace(*engine, path, options.setting));
    text = options.common.is_json ? print(trace_json(path, heads)) : trace_table(heads);
  }
  CLI_RETURN_IF_ERROR(write_output(options.output, text));
  return kDone;
}

}  // namespace pkv::cli
