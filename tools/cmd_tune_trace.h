// A trace for `pariskv tune`: queries that fit the codec, queries that the search asks, queries
// that judge what it chose. No query is in two of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/config_options.h"
#include "tools/engine.h"
#include "tools/judge.h"
#include "tools/method.h"
#include "tools/step_work.h"
#include "tools/trace.h"

namespace pkv::cli {

// One point of the search. As options of the library.
struct Choice {
  std::string codec;
  std::string tail;
  double candidates = 0;
  int64_t k = 0;

  std::string name() const;  // "candidates=0.02:codec=scalar4:k=32:tail=sampled"
};

// A mean error over queries, and what it is below with some certainty: two standard errors more.
struct Spread {
  double mean = 0;
  double bound = 0;
};

struct Regions;
class TuneTrace {
 public:
  // Behind the first `fit_queries` queries, they search and judge in turn, by position.
  static absl::StatusOr<std::unique_ptr<TuneTrace>> load(const Engine& engine,
                                                         const std::string& path,
                                                         const OptionValues& fixed,
                                                         const Setting& setting);

  const std::string& name() const { return trace_.name; }
  int64_t search_count() const { return static_cast<int64_t>(search_.size()); }
  int64_t judged_count() const { return static_cast<int64_t>(judged_.size()); }
  int64_t tokens() const { return trace_.tokens(); }
  int64_t kv_heads() const { return trace_.kv_heads(); }
  int64_t keys() const;  // of the zone of the last query

  // Work of a step over `n` keys; 0: over the zone of the last query.
  absl::StatusOr<StepWork> work(const Choice& choice, int64_t n) const;
  // Error of the output on the queries that search.
  absl::StatusOr<Spread> search(const Choice& choice) const;
  // On those that judge.
  struct Verdict {
    Spread error;
    Judge figures;
    double bytes_per_key = 0;
  };
  absl::StatusOr<Verdict> judge(const Choice& choice) const;

 private:
  TuneTrace(const Engine& engine, OptionValues fixed, Setting setting)
      : engine_(engine), fixed_(std::move(fixed)), setting_(setting) {}
  absl::Status split();
  OptionValues values_of(const Choice& choice) const;
  Regions regions_of(int64_t query) const;

  const Engine& engine_;
  OptionValues fixed_;  // options that are not searched
  Setting setting_;
  Trace trace_;
  std::vector<int64_t> search_;  // queries, by position
  std::vector<int64_t> judged_;
  std::vector<std::vector<double>> outputs_;  // exact ones of `search_`
};

}  // namespace pkv::cli
