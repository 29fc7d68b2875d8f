#include "tools/inspect_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/element.h"
#include "tools/interrupt.h"
#include "tools/judge.h"
#include "tools/method_retrieval.h"
#include "tools/progress.h"
#include "tools/view.h"
#include "tools/votes.h"

namespace pkv::cli {
namespace {

constexpr int64_t kPatterns = 256;

// Norms of the zone's keys, and how parallel they are: the mean cosine over pairs of different keys
// is (|sum of unit vectors|^2 - n) / (n (n - 1)).
void measure_keys(const Trace& trace, int64_t head, int64_t begin, int64_t count,
                  HeadFigures& figures) {
  const auto dim = static_cast<size_t>(trace.head_dim());
  std::vector<float> key(dim);
  std::vector<double> sum(dim, 0.0);
  int64_t units = 0;
  double norms = 0;
  figures.norm_min = std::numeric_limits<double>::infinity();
  for (int64_t t = begin; t < begin + count; ++t) {
    to_float(trace.keys.dtype, trace.keys.row(head, t), trace.head_dim(), key.data());
    double square = 0;
    for (const float x : key) square += static_cast<double>(x) * static_cast<double>(x);
    const double norm = std::sqrt(square);
    norms += norm;
    figures.norm_min = std::min(figures.norm_min, norm);
    figures.norm_max = std::max(figures.norm_max, norm);
    if (norm == 0) continue;
    ++units;
    for (size_t j = 0; j < dim; ++j) sum[j] += static_cast<double>(key[j]) / norm;
  }
  if (count == 0) figures.norm_min = 0;
  if (count > 0) figures.norm_mean = norms / static_cast<double>(count);
  if (units < 2) return;
  double square = 0;
  for (const double x : sum) square += x * x;
  const auto n = static_cast<double>(units);
  figures.cosine = (square - n) / (n * (n - 1));
}

absl::Status measure_codec(const Retrieval& method, const Voter& voter, int64_t head,
                           HeadFigures& figures) {
  pkv_codec_data data;
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_data_init(&data, sizeof data), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_export(method.codec(), &data), About::kInput));
  pkv_geometry geometry;
  CLI_RETURN_IF_ERROR(from_library(pkv_geometry_init(&geometry, sizeof geometry), About::kInput));
  CLI_RETURN_IF_ERROR(from_library(pkv_codec_geometry(method.codec(), &geometry), About::kInput));
  const float* balance = data.balance + head * geometry.head_dim;
  const auto [least, most] = std::minmax_element(balance, balance + geometry.head_dim);
  figures.balance_min = *least;
  figures.balance_max = *most;
  std::vector<int32_t> counts(static_cast<size_t>(geometry.head_dim / 8 * kPatterns));
  count_patterns(voter.records(head), geometry.head_dim, 0, method.indexed(), counts);
  const PatternFigures patterns = pattern_figures(counts, method.indexed());
  figures.patterns_used = patterns.used;
  figures.largest_pattern = patterns.largest;
  return absl::OkStatus();
}

// What one query found, per KV head.
struct Found {
  int64_t query;
  int64_t zone;
  Answer answer;
};

class Inspector {
 public:
  Inspector(const Engine& engine, const Trace& trace, const InspectSetting& setting)
      : engine_(engine),
        trace_(trace),
        setting_(setting),
        heads_(static_cast<size_t>(trace.kv_heads())) {}

  absl::StatusOr<std::vector<HeadFigures>> run() {
    CLI_RETURN_IF_ERROR(create());
    CLI_RETURN_IF_ERROR(retrieve());
    CLI_RETURN_IF_ERROR(vote());
    std::vector<HeadFigures> all;
    for (int64_t head = 0; head < trace_.kv_heads(); ++head) {
      const Sums& sums = heads_[static_cast<size_t>(head)];
      HeadFigures figures;
      figures.kv_head = trace_.kv_labels[static_cast<size_t>(head)];
      figures.n = method_->indexed();
      figures.candidate_recall = sums.candidate_recall.value();
      figures.recall = sums.recall.value();
      figures.tied = sums.tied.value();
      measure_keys(trace_, head, setting_.sink, figures.n, figures);
      if (voter_ != nullptr) {
        CLI_RETURN_IF_ERROR(measure_codec(*method_, *voter_, head, figures));
      }
      all.push_back(figures);
    }
    return all;
  }

 private:
  struct Sums {
    Mean candidate_recall;
    Mean recall;
    Mean tied;
  };

  int64_t position(int64_t query) const { return trace_.positions[static_cast<size_t>(query)]; }

  absl::Status create() {
    for (int64_t i = setting_.fit_queries; i < trace_.query_count(); ++i) queries_.push_back(i);
    std::stable_sort(queries_.begin(), queries_.end(),
                     [&](int64_t a, int64_t b) { return position(a) < position(b); });
    Setting setting;
    setting.sink = setting_.sink;
    setting.local = setting_.local;
    setting.fit_queries = setting_.fit_queries;
    setting.fit_position = position(std::max<int64_t>(setting_.fit_queries, 1) - 1);
    setting.last_position = position(queries_.back());
    CLI_ASSIGN_OR_RETURN(
        method_, Retrieval::create(engine_, trace_, setting_.profile, setting_.options, setting));
    CLI_ASSIGN_OR_RETURN(const std::string k, config_value(method_->config(), "k"));
    CLI_ASSIGN_OR_RETURN(k_, parse_integer("k", k, 0, INT32_MAX));
    return absl::OkStatus();
  }

  absl::Status retrieve() {
    Progress progress("retrieve", static_cast<int64_t>(queries_.size()));
    for (const int64_t query : queries_) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      const Exact exact = attend_exactly(
          trace_, query, regions_at(position(query), setting_.sink, setting_.local), k_);
      CLI_ASSIGN_OR_RETURN(Answer answer, method_->answer(query, exact));
      for (size_t head = 0; head < heads_.size() && exact.wanted > 0; ++head) {
        const auto wanted = exact.best_of(static_cast<int64_t>(head));
        heads_[head].candidate_recall.add(share_found(wanted, answer.candidates[head]));
        heads_[head].recall.add(share_found(wanted, answer.hits[head]));
      }
      found_.push_back({query, exact.regions.zone_tokens(), std::move(answer)});
      progress.advance();
    }
    return absl::OkStatus();
  }

  // The votes again, over the same keys as then.
  absl::Status vote() {
    if (method_->indexed() == 0) return absl::OkStatus();
    CLI_ASSIGN_OR_RETURN(const VoteChoice choice, vote_choice(method_->config()));
    CLI_ASSIGN_OR_RETURN(voter_, Voter::create(engine_, method_->codec(), method_->index(), 0,
                                               method_->indexed(), choice));
    Progress progress("vote", static_cast<int64_t>(found_.size()));
    for (const Found& found : found_) {
      CLI_RETURN_IF_ERROR(check_interrupt());
      if (found.zone == 0) continue;
      const QueryView view = QueryView::one(engine_, trace_.queries, found.query);
      CLI_ASSIGN_OR_RETURN(
          const std::vector<float> votes,
          voter_->vote(view.tensor(), static_cast<int32_t>(trace_.query_heads()), found.zone));
      for (size_t head = 0; head < heads_.size(); ++head) {
        const auto row = std::span(votes).subspan(head * static_cast<size_t>(found.zone),
                                                  static_cast<size_t>(found.zone));
        heads_[head].tied.add(tied_share(row, found.answer.candidates[head]));
      }
      progress.advance();
    }
    return absl::OkStatus();
  }

  const Engine& engine_;
  const Trace& trace_;
  const InspectSetting& setting_;
  std::vector<int64_t> queries_;  // judged ones, by position
  std::unique_ptr<Retrieval> method_;
  std::unique_ptr<Voter> voter_;
  std::vector<Found> found_;
  std::vector<Sums> heads_;
  int64_t k_ = 0;
};

}  // namespace

double tied_share(std::span<const float> votes, std::span<const int32_t> candidates) {
  if (candidates.empty()) return 0;
  const auto vote_of = [&](int32_t position) { return votes[static_cast<size_t>(position)]; };
  float cut = vote_of(candidates[0]);
  for (const int32_t position : candidates) cut = std::min(cut, vote_of(position));
  const auto among_all = std::count(votes.begin(), votes.end(), cut);
  const auto among_candidates = std::count_if(candidates.begin(), candidates.end(),
                                              [&](int32_t p) { return vote_of(p) == cut; });
  if (among_all == among_candidates) return 0;  // the cut lies between two votes
  return static_cast<double>(among_candidates) / static_cast<double>(candidates.size());
}

PatternFigures pattern_figures(std::span<const int32_t> counts, int64_t keys) {
  PatternFigures figures;
  if (keys == 0 || counts.empty()) return figures;
  const auto used = std::count_if(counts.begin(), counts.end(), [](int32_t n) { return n > 0; });
  figures.used = static_cast<double>(used) / static_cast<double>(counts.size());
  figures.largest = static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
                    static_cast<double>(keys);
  return figures;
}

absl::StatusOr<std::vector<HeadFigures>> inspect_trace(const Engine& engine,
                                                       const std::string& path,
                                                       const InspectSetting& setting) {
  CLI_ASSIGN_OR_RETURN(const Trace trace, load_trace(engine, path));
  if (setting.fit_queries >= trace.query_count()) {
    return usage_error("--fit-queries={}: accepted are 0..{}, below the {} queries of {}",
                       setting.fit_queries, trace.query_count() - 1, trace.query_count(), path);
  }
  return Inspector(engine, trace, setting).run();
}

}  // namespace pkv::cli
