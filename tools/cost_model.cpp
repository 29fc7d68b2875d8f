#include "tools/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/cmd_report_fields.h"
#include "tools/status.h"

namespace pkv::cli {
namespace {

constexpr size_t kTerms = 8;
using Terms = std::array<double, kTerms>;

constexpr const char* kTermNames[kTerms] = {
    "fixed_us",       "us_per_vote_byte", "us_per_estimate",     "us_per_sample",
    "us_per_sketch2", "us_per_sketch4",   "us_per_fetched_byte", "us_per_dense_byte"};

Terms terms_of(const StepWork& work) {
  return {1.0,
          static_cast<double>(work.vote_bytes),
          static_cast<double>(work.estimates),
          static_cast<double>(work.samples),
          static_cast<double>(work.sketches2),
          static_cast<double>(work.sketches4),
          static_cast<double>(work.fetched_bytes),
          static_cast<double>(work.dense_bytes)};
}

std::array<double*, kTerms> coefficients(CostModel& model) {
  return {&model.fixed_us,
          &model.us_per_vote_byte,
          &model.us_per_estimate,
          &model.us_per_sample,
          &model.us_per_sketch2,
          &model.us_per_sketch4,
          &model.us_per_fetched_byte,
          &model.us_per_dense_byte};
}

// Minimises |A x - 1| over x >= 0, one coordinate after the other: the problem is convex and small.
Terms least_squares(const std::vector<Terms>& rows) {
  constexpr int kMostRounds = 200000;
  constexpr double kStill = 1e-12;
  constexpr double kNothing = 1e-6;  // of the time of a step
  Terms scale = {};
  for (const Terms& row : rows) {
    for (size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], row[i]);
  }
  std::array<Terms, kTerms> normal = {};
  Terms right = {};
  for (const Terms& row : rows) {
    for (size_t i = 0; i < kTerms; ++i) {
      if (scale[i] == 0) continue;
      right[i] += row[i] / scale[i];
      for (size_t j = 0; j < kTerms; ++j) {
        if (scale[j] > 0) normal[i][j] += row[i] / scale[i] * row[j] / scale[j];
      }
    }
  }
  Terms x = {};
  for (int round = 0; round < kMostRounds; ++round) {
    double moved = 0;
    for (size_t i = 0; i < kTerms; ++i) {
      if (normal[i][i] == 0) continue;
      double rest = right[i];
      for (size_t j = 0; j < kTerms; ++j) {
        if (j != i) rest -= normal[i][j] * x[j];
      }
      const double next = std::max(0.0, rest / normal[i][i]);
      moved = std::max(moved, std::abs(next - x[i]));
      x[i] = next;
    }
    if (moved < kStill) break;
  }
  // What the least digits leave of a coefficient of 0 is none.
  for (size_t i = 0; i < kTerms; ++i) x[i] = scale[i] == 0 || x[i] < kNothing ? 0 : x[i] / scale[i];
  return x;
}

}  // namespace

double CostModel::step_us(const StepWork& work) const {
  CostModel copy = *this;
  const Terms terms = terms_of(work);
  double sum = 0;
  for (size_t i = 0; i < kTerms; ++i) sum += *coefficients(copy)[i] * terms[i];
  return sum;
}

double CostModel::full_us(const StepWork& work) const {
  return us_per_full_byte.value_or(us_per_dense_byte) *
         static_cast<double>(work.zone_bytes + work.dense_bytes);
}

CostModel fit_cost_model(std::span<const TimedStep> steps) {
  std::vector<Terms> rows;
  double full_share = 0;
  double full_square = 0;
  for (const TimedStep& step : steps) {
    if (step.is_full) {
      const double bytes =
          static_cast<double>(step.work.zone_bytes + step.work.dense_bytes) / step.us;
      full_share += bytes;
      full_square += bytes * bytes;
      continue;
    }
    rows.push_back(terms_of(step.work));
    for (double& term : rows.back()) term /= step.us;
  }
  CostModel model;
  const Terms found = least_squares(rows);
  for (size_t i = 0; i < kTerms; ++i) *coefficients(model)[i] = found[i];
  if (full_square > 0) model.us_per_full_byte = full_share / full_square;
  return model;
}

Json as_json(const CostModel& model) {
  CostModel copy = model;
  Json json = Json::object();
  for (size_t i = 0; i < kTerms; ++i) json[kTermNames[i]] = *coefficients(copy)[i];
  json["us_per_full_byte"] = number_or_null(model.us_per_full_byte);
  return json;
}

absl::StatusOr<CostModel> load_cost_model(const std::string& path) {
  CLI_ASSIGN_OR_RETURN(const Json document, load_json(path));
  absl::Status status;
  const Fields whole(document, path, "", &status);
  if (!whole.is_object("model")) {
    whole.refuse("model", "missing: accepted is what pariskv tune --calibrate writes");
  }
  const Fields fields = whole.object("model");
  CostModel model;
  model.device = whole.maybe_text("device");
  for (size_t i = 0; i < kTerms; ++i) *coefficients(model)[i] = fields.number(kTermNames[i]);
  model.us_per_full_byte = fields.maybe_number("us_per_full_byte");
  CLI_RETURN_IF_ERROR(status);
  return model;
}

}  // namespace pkv::cli
