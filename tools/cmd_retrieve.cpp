// pariskv retrieve: the best keys of an index file for queries of another file, or the numbers of
// one stage on the way there.
#include <algorithm>
#include <cmath>

#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/json.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/queries.h"
#include "tools/step.h"
#include "tools/stored_index.h"
#include "tools/table.h"
#include "tools/votes.h"

namespace pkv::cli {
namespace {

constexpr std::string_view kRetrieveOptions[] = {
    "k", "candidates", "vote_group", "rho_of", "rank", "scale", "soft_cap", "share", "k_min"};
constexpr const char* kStages[] = {"vote", "select", "rerank"};

struct RetrieveOptions {
  Common common;
  OutputOptions output;
  ConfigOptions config;
  std::vector<std::string> inputs;  // index, queries
  std::string stage;                // "": hits
  int64_t sequence = 0;
};

absl::StatusOr<bool> parse_retrieve(const Arguments& arguments, RetrieveOptions& options) {
  CommandLine line("retrieve", "INDEX.pkv QUERIES[:TENSOR] [OPTION...]",
                   "The k best keys of an index per query and KV head. QUERIES is a .safetensors,\n"
                   ".npy, .npz, .fvecs or .bvecs file, [m, d] or [m, query heads, d] (tensor q).");
  line.positional(&options.inputs, 2, 2, "index and queries");
  line.custom("stage", "the numbers of one stage instead of the hits; vote, select, rerank",
              [&](const std::string& text) {
                if (std::find(std::begin(kStages), std::end(kStages), text) == std::end(kStages)) {
                  return usage_error("--stage={}: accepted are vote, select, rerank", text);
                }
                options.stage = text;
                return absl::OkStatus();
              });
  line.integer("sequence", &options.sequence, 0, INT32_MAX, "sequence of the index");
  options.config.offer_profile(line);
  CLI_RETURN_IF_ERROR(options.config.offer(line, kRetrieveOptions));
  offer_output(line, &options.output);
  line.common(&options.common);
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, line.parse(arguments));
  if (!is_parsed) return false;
  CLI_RETURN_IF_ERROR(
      check_output(options.output, {options.inputs[0], split_tensor_name(options.inputs[1]).path}));
  return true;
}

// A list of numbers, with null for what JSON has no word for.
template <class T>
Json list_of(std::span<const T> numbers) {
  Json list = Json::array();
  for (const T number : numbers) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(number)) {
        list.push_back(nullptr);
        continue;
      }
    }
    list.push_back(number);
  }
  return list;
}

class Retriever {
 public:
  Retriever(const RetrieveOptions& options, const Engine& engine)
      : options_(options), engine_(engine) {}

  absl::Status open() {
    CLI_ASSIGN_OR_RETURN(stored_, load_index(engine_, options_.inputs[0]));
    CLI_ASSIGN_OR_RETURN(Queries queries,
                         Queries::open(split_tensor_name(options_.inputs[1]),
                                       stored_.geometry.head_dim, stored_.geometry.kv_heads));
    queries_.emplace(std::move(queries));
    CLI_ASSIGN_OR_RETURN(length_, stored_.length(sequence()));
    CLI_ASSIGN_OR_RETURN(config_,
                         config_of(stored_, options_.config.profile(), options_.config.given()));
    CLI_ASSIGN_OR_RETURN(Memory memory, Memory::create(engine_, PKV_ALLOC_HOST, queries_->bytes()));
    query_ = std::make_unique<Memory>(std::move(memory));
    return options_.stage == "vote" ? open_vote() : open_step();
  }

  // One entry per query and KV head.
  absl::StatusOr<Json> run() {
    Json results = Json::array();
    Progress progress("retrieve", queries_->count());
    for (int64_t i = 0; i < queries_->count(); ++i) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      CLI_RETURN_IF_ERROR(queries_->read(i, query_->data()));
      const int64_t shape[] = {1, queries_->heads(), queries_->dim()};
      const pkv_tensor query =
          engine_.tensor(PKV_ALLOC_HOST, query_->data(), queries_->dtype(), shape);
      CLI_RETURN_IF_ERROR(voter_ ? add_votes(i, query, results) : add_hits(i, query, results));
      progress.advance();
    }
    Json whole = {{"index", stored_.path},
                  {"queries", queries_->source()},
                  {"n", length_},
                  {"kv_heads", stored_.geometry.kv_heads},
                  {"query_heads", queries_->heads()}};
    if (!voter_) {
      whole["k"] = k_;
      whole["candidates"] = candidates_;
    }
    if (!options_.stage.empty()) whole["stage"] = options_.stage;
    whole["results"] = std::move(results);
    return whole;
  }

 private:
  int32_t sequence() const { return static_cast<int32_t>(options_.sequence); }

  absl::Status open_vote() {
    CLI_ASSIGN_OR_RETURN(const VoteChoice choice, vote_choice(config_.get()));
    CLI_ASSIGN_OR_RETURN(voter_, Voter::create(engine_, stored_.codec.get(), stored_.index.get(),
                                               sequence(), length_, choice));
    return absl::OkStatus();
  }

  absl::Status open_step() {
    CLI_ASSIGN_OR_RETURN(plan_, create_plan(stored_.index.get(), config_.get(), queries_->heads(),
                                            sequence(), About::kOptions));
    CLI_ASSIGN_OR_RETURN(
        const HitSizes sizes,
        hit_sizes(plan_.get(), config_.get(), stored_.geometry.kv_heads, queries_->heads()));
    k_ = sizes.k;
    candidates_ = sizes.candidates;
    CLI_ASSIGN_OR_RETURN(hits_, Hits::create(engine_, sizes));
    return absl::OkStatus();
  }

  absl::Status add_votes(int64_t i, const pkv_tensor& query, Json& results) {
    CLI_ASSIGN_OR_RETURN(const std::vector<float> votes,
                         voter_->vote(query, static_cast<int32_t>(queries_->heads()), length_));
    for (int32_t head = 0; head < stored_.geometry.kv_heads; ++head) {
      const auto row = std::span(votes).subspan(static_cast<size_t>(head * length_),
                                                static_cast<size_t>(length_));
      results.push_back({{"query", i}, {"kv_head", head}, {"votes", list_of<float>(row)}});
    }
    return absl::OkStatus();
  }

  absl::Status add_hits(int64_t i, const pkv_tensor& query, Json& results) {
    CLI_RETURN_IF_ERROR(
        from_library(pkv_retrieve(plan_.get(), engine_.stream(), &query, nullptr, &hits_->hits()),
                     About::kInput, queries_->source()));
    CLI_RETURN_IF_ERROR(engine_.sync());
    CLI_RETURN_IF_ERROR(hits_->download());
    for (int32_t head = 0; head < stored_.geometry.kv_heads; ++head) {
      Json entry = {{"query", i}, {"kv_head", head}};
      if (options_.stage == "select" || options_.stage == "rerank") {
        entry["candidates"] = list_of(hits_->candidates(head));
      }
      if (options_.stage == "rerank") add_estimates(head, entry);
      if (options_.stage != "select") {
        entry["count"] = hits_->positions(head).size();
        entry["positions"] = list_of(hits_->positions(head));
        entry["scores"] = list_of(hits_->scores(head));
      }
      results.push_back(std::move(entry));
    }
    return absl::OkStatus();
  }

  void add_estimates(int32_t head, Json& entry) const {
    const int64_t group = queries_->heads() / stored_.geometry.kv_heads;
    Json estimates = Json::array();
    for (int64_t g = 0; g < group; ++g) {
      estimates.push_back(list_of(hits_->estimates(head * group + g, head)));
    }
    entry["estimates"] = std::move(estimates);
  }

  const RetrieveOptions& options_;
  const Engine& engine_;
  StoredIndex stored_;
  std::optional<Queries> queries_;
  Config config_;
  std::unique_ptr<Memory> query_;
  std::unique_ptr<Voter> voter_;  // stage vote only
  Plan plan_;
  std::unique_ptr<Hits> hits_;
  int64_t length_ = 0;
  int64_t k_ = 0;
  int64_t candidates_ = 0;
};

std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : value.dump();
}

// A line per number: which list the table is about depends on the stage.
std::string as_table(const Json& whole, const std::string& stage) {
  const bool is_vote = stage == "vote";
  const char* number = is_vote ? "vote" : "score";
  std::vector<std::string> header = {"query", "KV head", "rank", "position", number};
  if (stage == "select") header = {"query", "KV head", "candidate", "position"};
  if (is_vote) header = {"query", "KV head", "position", number};
  Table table(header, 0);
  for (const Json& entry : whole["results"]) {
    const Json& rows = entry[is_vote ? "votes" : stage == "select" ? "candidates" : "positions"];
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<std::string> cells = {cell(entry["query"]), cell(entry["kv_head"]),
                                        std::to_string(i), cell(rows[i])};
      if (!is_vote && stage != "select") cells.push_back(cell(entry["scores"][i]));
      table.add(std::move(cells));
    }
  }
  return table.text();
}

}  // namespace

Outcome run_retrieve(const Arguments& arguments) {
  RetrieveOptions options;
  CLI_ASSIGN_OR_RETURN(const bool is_parsed, parse_retrieve(arguments, options));
  if (!is_parsed) return kDone;
  CLI_ASSIGN_OR_RETURN(const auto engine, Engine::open(options.common));
  Retriever retriever(options, *engine);
  CLI_RETURN_IF_ERROR(retriever.open());
  CLI_ASSIGN_OR_RETURN(const Json whole, retriever.run());
  const std::string text = options.common.is_json
                               ? whole.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                               : as_table(whole, options.stage);
  CLI_RETURN_IF_ERROR(write_output(options.output, text));
  return kDone;
}

}  // namespace pkv::cli
