// A set of options, and what they mean together. docs/algorithm.md, section 1. Not here: names and
// accepted values (option.h), what a plan makes of them (plan.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/option.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// What fit and append need beside the geometry.
struct CodecOptions {
  bool center;
  bool balance;
  bool fit_picked;  // fit = picked
  bool isolate;     // nonfinite = isolate
};

// What a step needs beside the codec.
struct StepOptions {
  int32_t k;
  pkv_candidate_rule rule;
  int32_t vote_group;  // PKV_VOTE_GROUP_*
  int32_t rho_of;      // PKV_RHO_OF_*
  int32_t rank;        // PKV_RANK_*
  int32_t tail;        // PKV_TAIL_*
  int32_t tail_samples;
  int32_t k_min;
  bool weigh_norms;
  float scale;
  float soft_cap;
  double share;
};

// A value: copying it copies the options.
class Config {
 public:
  // "default" or "paper".
  static absl::StatusOr<Config> create(std::string_view profile);

  // NOT_FOUND names the nearest option and lists all; INVALID_ARGUMENT names option, value and what
  // is accepted. The option keeps its value then.
  absl::Status set(std::string_view name, std::string_view value);
  // The value in its canonical form, "" if it must be set and was not. Valid until `set`.
  absl::StatusOr<const std::string*> get(std::string_view name) const;

  // INVALID_ARGUMENT: head_dim is not set, or options that exclude each other; both are named.
  absl::StatusOr<pkv_geometry> geometry(int32_t kv_heads) const;
  CodecOptions codec_options() const;
  absl::StatusOr<StepOptions> step_options() const;

 private:
  Config() = default;
  const std::string& value(Option option) const {
    return values_[static_cast<std::size_t>(option)];
  }
  bool is(Option option, std::string_view text) const { return value(option) == text; }
  int32_t choice(Option option) const;
  int32_t tail() const;
  void set_sketch(pkv_geometry& geometry) const;
  absl::Status refuse(Option option, std::string_view reason) const;
  absl::StatusOr<int32_t> head_dim() const;
  absl::Status check_step() const;

  std::array<std::string, kOptionCount> values_;  // in the order of option_table()
  bool is_paper_ = false;
};

}  // namespace pkv
