// A model of the time of a decode step: a few coefficients, each for one thing that a step reads or
// works out. docs/performance.md has what it predicts against what was measured.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/json.h"
#include "tools/step_work.h"

namespace pkv::cli {

struct CostModel {
  double fixed_us = 0;
  double us_per_vote_byte = 0;
  double us_per_estimate = 0;  // a score of a candidate or sample, for one query head
  double us_per_sample = 0;
  double us_per_sketch2 = 0;  // of a candidate, for one query head
  double us_per_sketch4 = 0;
  double us_per_fetched_byte = 0;
  double us_per_dense_byte = 0;
  std::optional<double> us_per_full_byte;  // full attention, per byte of K and V
  std::string device;                      // that it was measured on

  double step_us(const StepWork& work) const;
  // Attention over every token; a step's byte of the dense tokens stands for it where full
  // attention was not measured.
  double full_us(const StepWork& work) const;
};

// A step, or a full attention, that was measured.
struct TimedStep {
  std::string name;
  StepWork work;
  bool is_full = false;
  double us = 0;  // the least of the runs
};

// Coefficients of 0 or more with the least sum of squared relative errors.
CostModel fit_cost_model(std::span<const TimedStep> steps);

Json as_json(const CostModel& model);
// The file that `tune --calibrate` wrote. Exit code 3 names file and field.
absl::StatusOr<CostModel> load_cost_model(const std::string& path);

}  // namespace pkv::cli
