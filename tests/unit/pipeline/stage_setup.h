// Single stages to call with good arguments, and with one thing changed.
#pragma once

#include <functional>

#include "core/pipeline/stages.h"
#include "tests/unit/pipeline/step_tools.h"

namespace pkv::test {

using Parts = std::vector<std::string>;

// A call that works, a change to its arguments, and what the refusal must say.
template <class Args>
struct Change {
  std::function<void(Args&)> apply;
  absl::StatusCode code;
  Parts parts;
};
inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kOutside = absl::StatusCode::kOutOfRange;

template <class Args>
void check_changes(const Machine& machine, const Args& good,
                   absl::Status (*stage)(const Stream&, Args),
                   const std::vector<Change<Args>>& changes) {
  require_ok(stage(machine.stream, good));
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    Args args = good;
    changes[i].apply(args);
    const absl::Status status = stage(machine.stream, args);
    const std::string text = text_of(status);
    CAPTURE(text);
    CHECK(status.code() == changes[i].code);
    for (const std::string& part : changes[i].parts) {
      CAPTURE(part);
      CHECK(contains(text, part));
    }
  }
  require_ok(stage(machine.stream, good));
}

// Two sequences of a tier index with its search, stage by stage.
struct Setup {
  explicit Setup(const Options& more = {}) {
    Options options = {{"head_dim", "16"}, {"value_dim", "8"},    {"vote", "tier"},
                       {"k", "4"},         {"candidates", "0.5"}, {"tail", "sketch2"}};
    options.insert(options.end(), more.begin(), more.end());
    config = config_of(options);
    index = index_with(machine, *config, 2, zone, 64);
    step.emplace(machine, index, *config, std::vector<int32_t>{0, 1}, 4);
    fill_random(query.numbers(), 5);
    require_ok(step->retrieve(query));
    require_ok(step->fetch(zone));
    votes.assign(4 * 40, 0.0F);
  }
  pkv_batch batch() const { return {2, 0, sequences, lengths, 40}; }
  pkv_vote_args vote() {
    pkv_vote_args a = step->plan->vote_args();
    a.batch = batch();
    a.queries = query.tensor();
    a.votes = votes.data();
    a.votes_stride = 40;
    return a;
  }
  pkv_select_args select() {
    pkv_select_args a = step->plan->select_args();
    a.batch = batch();
    a.votes = votes.data();
    a.votes_stride = 40;
    a.candidates = step->candidates->data();
    a.candidate_counts = step->candidate_counts->data();
    return a;
  }
  pkv_rerank_args rerank() {
    pkv_rerank_args a = step->plan->rerank_args();
    a.batch = batch();
    a.queries = query.tensor();
    a.candidates = step->candidates->data();
    a.candidate_counts = step->candidate_counts->data();
    a.positions = step->positions->data();
    a.scores = step->scores->data();
    a.counts = step->counts->data();
    a.estimates = step->estimates->data();
    a.rest_lse = step->rest_lse->data();
    a.sample_estimates = step->sample_estimates->data();
    return a;
  }
  pkv_fetch_args fetch() {
    pkv_fetch_args a = step->plan->fetch_args();
    a.batch = batch();
    a.source_keys = zone.keys.tensor();
    a.source_values = zone.values.tensor();
    a.keys = step->row_keys->tensor();
    a.values = step->row_values->tensor();
    a.positions = step->positions->data();
    return a;
  }
  pkv_attend_args attend() {
    pkv_attend_args a = step->plan->attend_args();
    a.batch = batch();
    a.queries = query.tensor();
    a.part_count = 1;
    a.parts[0].keys = zone.keys.tensor();
    a.parts[0].values = zone.values.tensor();
    a.parts[0].lengths = lengths;
    a.row_keys = step->row_keys->tensor();
    a.row_values = step->row_values->tensor();
    a.positions = step->positions->data();
    a.counts = step->counts->data();
    a.candidates = step->candidates->data();
    a.candidate_counts = step->candidate_counts->data();
    a.estimates = step->estimates->data();
    a.rest_lse = step->rest_lse->data();
    a.sample_estimates = step->sample_estimates->data();
    a.output = step->output->tensor();
    return a;
  }

  Machine machine;
  std::optional<Config> config;
  Zone zone{{40, 25}, 2, 40, 16, 8};
  std::shared_ptr<Index> index;
  std::optional<Step> step;
  Array query{{2, 4, 16}};
  std::vector<float> votes;
  int32_t sequences[2] = {0, 1};
  int64_t lengths[2] = {40, 25};
};

inline pkv_geometry changed_geometry(const pkv_geometry& g, int32_t pkv_geometry::*field,
                                     int32_t value) {
  pkv_geometry out = g;
  out.*field = value;
  return out;
}

}  // namespace pkv::test
