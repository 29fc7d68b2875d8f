#include "tools/cmd_tune_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace pkv::cli {
namespace {

class Search {
 public:
  Search(const std::vector<std::unique_ptr<TuneTrace>>& traces, const SearchOptions& options,
         const CostOf& cost_of)
      : traces_(traces), options_(options), cost_of_(cost_of), order_(traces.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  // With `dense` traces in full at most.
  absl::Status walk(const std::string& codec, const std::string& tail, size_t dense,
                    Progress& progress) {
    const Grid& grid = options_.grid;
    const auto most = static_cast<int64_t>(grid.candidates.size() + grid.k.size());
    size_t c = grid.candidates.size();
    size_t k = 0;
    int64_t steps = 0;
    while (c > 0 && k < grid.k.size()) {
      const Choice choice = {codec, tail, grid.candidates[c - 1], grid.k[k]};
      // From here on there are fewer candidates or more rows.
      if (options_.is_scaled && has_more_rows(choice)) break;
      const bool is_empty = tail == "drop" && choice.k == 0;  // reads nothing of the zone
      bool needs_less = false;
      if (!is_empty) {
        CLI_ASSIGN_OR_RETURN(needs_less, is_dear_or_reached(choice, dense));
      }
      needs_less ? --c : ++k;
      progress.advance();
      ++steps;
    }
    progress.advance(most - steps);
    return absl::OkStatus();
  }

  Found found() && { return std::move(found_); }

 private:
  // Than its share of candidates, on some trace.
  bool has_more_rows(const Choice& choice) const {
    return std::any_of(traces_.begin(), traces_.end(), [&](const auto& trace) {
      return choice.k > candidates_of(choice.candidates, trace->keys(), 0);
    });
  }

  absl::StatusOr<bool> is_dear_or_reached(const Choice& choice, size_t dense) {
    std::vector<StepCost> costs;
    Tried whole;
    whole.choice = choice;
    for (const auto& trace : traces_) {
      CLI_ASSIGN_OR_RETURN(const StepCost cost, cost_of_(*trace, choice));
      costs.push_back(cost);
      whole.cost += cost.step;
    }
    if (found_.best && whole.cost >= found_.tried[*found_.best].cost) return true;
    // The choice for every trace, and with those in full where it fails.
    Tried rest = whole;
    const std::vector<size_t> order = order_;
    for (const size_t i : order) {
      CLI_ASSIGN_OR_RETURN(const Spread error, error_of(i, choice));
      if (error.bound <= options_.target) {
        if (error.bound > rest.error.bound) rest.error = error;
        continue;
      }
      if (error.bound > whole.error.bound) whole.error = error;
      rest.dense.push_back(i);
      rest.cost += costs[i].full - costs[i].step;
      // Traces that have failed come first from then on: most settings fail there too.
      order_.erase(std::find(order_.begin(), order_.end(), i));
      order_.insert(order_.begin(), i);
      if (rest.dense.size() > dense) break;
    }
    const bool is_reached = rest.dense.size() <= dense && rest.dense.size() < traces_.size();
    whole.has_all_traces = rest.dense.size() <= dense;
    rest.has_all_traces = rest.is_reached = is_reached;
    std::sort(rest.dense.begin(), rest.dense.end());
    if (!rest.dense.empty()) note(whole);
    if (is_reached) note(rest);
    return is_reached;
  }

  absl::StatusOr<Spread> error_of(size_t i, const Choice& choice) {
    const std::pair<size_t, std::string> key(i, choice.name());
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
    CLI_ASSIGN_OR_RETURN(const Spread error, traces_[i]->search(choice));
    known_.emplace(key, error);
    return error;
  }

  // Once per choice and traces in full: a walk that allows more of those has seen more traces.
  void note(const Tried& tried) {
    const auto same = std::find_if(found_.tried.begin(), found_.tried.end(), [&](const Tried& one) {
      return one.choice.name() == tried.choice.name() && one.dense == tried.dense;
    });
    if (same != found_.tried.end()) {
      if (tried.has_all_traces) *same = tried;
      return;
    }
    found_.tried.push_back(tried);
    const bool is_better =
        tried.is_reached && (!found_.best || tried.cost < found_.tried[*found_.best].cost);
    if (is_better) found_.best = found_.tried.size() - 1;
  }

  const std::vector<std::unique_ptr<TuneTrace>>& traces_;
  const SearchOptions& options_;
  const CostOf& cost_of_;
  std::vector<size_t> order_;  // of traces
  std::map<std::pair<size_t, std::string>, Spread> known_;
  Found found_;
};

}  // namespace

const Tried& Found::chosen() const {
  if (best) return tried[*best];
  return *std::min_element(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
    return a.error.bound < b.error.bound;
  });
}

const Tried* Found::next_cheaper() const {
  const Tried* next = nullptr;
  for (const Tried* one : frontier()) {
    if (!one->is_reached && one->cost < chosen().cost) next = one;
  }
  return next;
}

std::vector<const Tried*> Found::frontier() const {
  std::vector<const Tried*> order;
  for (const Tried& one : tried) order.push_back(&one);
  std::stable_sort(order.begin(), order.end(),
                   [](const Tried* a, const Tried* b) { return a->cost < b->cost; });
  std::vector<const Tried*> frontier;
  double least = INFINITY;
  for (const Tried* one : order) {
    if (one->error.bound >= least) continue;
    least = one->error.bound;
    frontier.push_back(one);
  }
  return frontier;
}

int64_t search_steps(const SearchOptions& options) {
  const Grid& grid = options.grid;
  return static_cast<int64_t>((options.most_dense + 1) * grid.codecs.size() * grid.tails.size() *
                              (grid.candidates.size() + grid.k.size()));
}

absl::StatusOr<Found> search_settings(const std::vector<std::unique_ptr<TuneTrace>>& traces,
                                      const SearchOptions& options, const CostOf& cost_of,
                                      Progress& progress) {
  Search search(traces, options, cost_of);
  for (size_t dense = 0; dense <= options.most_dense; ++dense) {
    for (const std::string& tail : options.grid.tails) {
      for (const std::string& codec : options.grid.codecs) {
        CLI_RETURN_IF_ERROR(search.walk(codec, tail, dense, progress));
      }
    }
  }
  return std::move(search).found();
}

}  // namespace pkv::cli
