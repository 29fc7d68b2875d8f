// pariskv tune --calibrate: the model of a step's time from steps that `pariskv bench` measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cost_model.h"
#include "tools/engine.h"

namespace pkv::cli {

struct Calibration {
  CostModel model;
  std::vector<TimedStep> fitted;
  std::vector<TimedStep> checked;  // not used in the fit
  std::vector<std::string> commands;

  // The largest |predicted / measured - 1|: of those checked, or if there are none of those fitted.
  double largest_error() const;
};

// `held_out`: numbers of steps of `files`, from 1, that are checked and not fitted.
absl::StatusOr<Calibration> calibrate(const Engine& engine, const std::vector<std::string>& files,
                                      const std::vector<std::string>& checks,
                                      const std::vector<int64_t>& held_out);

std::string calibration_json(const Calibration& calibration);
std::string calibration_table(const Calibration& calibration);

}  // namespace pkv::cli
