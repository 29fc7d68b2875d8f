// The cheapest setting that meets a target, over settings that get better with more candidates and
// more rows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cmd_tune_trace.h"
#include "tools/progress.h"

namespace pkv::cli {

struct Grid {
  std::vector<std::string> codecs = {"scalar4", "scalar5", "polar4"};
  std::vector<std::string> tails = {"sampled", "sketch2", "sketch4", "mean", "drop"};
  std::vector<double> candidates = {0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1};
  std::vector<int64_t> k = {0, 16, 32, 64, 100, 200, 400, 800};
};

// Of a step of one trace, in whatever unit: of `choice`, and of full attention.
struct StepCost {
  double step = 0;
  double full = 0;
};
using CostOf = std::function<absl::StatusOr<StepCost>(const TuneTrace&, const Choice&)>;

struct Tried {
  Choice choice;
  double cost = 0;              // of one step of every trace
  Spread error;                 // of the worst trace that is not dense
  std::vector<size_t> dense;    // traces that are attended in full, as the choice fails there
  bool is_reached = false;      // bound <= target on every other trace
  bool has_all_traces = false;  // else the first failures ended it
};

struct SearchOptions {
  double target = 0.05;
  size_t most_dense = 0;
  // Cost is for another length: k rows of a trace must not be more than its share of candidates,
  // which at that length would be less.
  bool is_scaled = false;
  Grid grid;
};

struct Found {
  std::vector<Tried> tried;
  std::optional<size_t> best;  // the cheapest that is reached; nothing if none is

  // The one to speak of: the cheapest that is reached, else the least error.
  const Tried& chosen() const;
  // The dearest of the frontier that cost less, and so fail.
  const Tried* next_cheaper() const;
  // Settings that nothing cheaper has a lower error than, by cost.
  std::vector<const Tried*> frontier() const;
};

// For each number of traces in full, codec and tail, from all candidates without rows: fewer
// candidates while it reaches the target or is too dear, more rows where it fails. If errors fall
// with both, that finds the cheapest one.
absl::StatusOr<Found> search_settings(const std::vector<std::unique_ptr<TuneTrace>>& traces,
                                      const SearchOptions& options, const CostOf& cost_of,
                                      Progress& progress);

// Steps that the search may take.
int64_t search_steps(const SearchOptions& options);

}  // namespace pkv::cli
