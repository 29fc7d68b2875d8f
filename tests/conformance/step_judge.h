// Holds a whole step against the reference, its parts and pkv_step_run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/bench.h"
#include "tests/conformance/step_stage.h"

namespace pkv::conformance {

struct StepCaseOptions {
  StepOptions step;
  int32_t rank = PKV_RANK_GROUP;
  int32_t vote_group = PKV_VOTE_GROUP_SUM;
  int64_t ppm = 200000;  // of the keys are candidates
  double share = 0.0;
  int32_t k_min = 0;
  std::vector<int64_t> parts = {9};
  float soft_cap = 0.0F;
  bool has_sinks = false;
};

// Each part is judged given what the part before really delivered; then the same of pkv_step_run.
// `name`: of the case, which its numbers depend on.
void judge_step(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                const std::string& name);

// Records of tokens that come from host memory, in its layouts.
void judge_host_rows(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                     const std::string& name);

// Steps with a row cache have the bits of steps without: with rows that come again, with rows that
// push others out, and after the tokens have changed.
void judge_row_cache(const Bench& bench, const Setup& setup, const StepCaseOptions& options,
                     const std::string& name);

}  // namespace pkv::conformance
