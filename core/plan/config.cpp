#include "core/plan/config.h"

#include <bit>
#include <span>

#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/codec/geometry.h"
#include "core/format/candidates.h"
#include "core/format/inv_sqrt.h"

namespace pkv {
namespace {

absl::StatusOr<Option> option_by_name(std::string_view name) {
  if (const std::optional<Option> option = find_option(name)) return *option;
  const std::string_view nearest = nearest_option(name);
  const std::span<const OptionInfo, kOptionCount> table = option_table();
  const std::string all =
      absl::StrJoin(table.begin(), table.end(), ", ",
                    [](std::string* out, const OptionInfo& info) { out->append(info.name); });
  return absl::NotFoundError(str_cat("no option ", quote(name),
                                     nearest.empty() ? "" : ", nearest: ", nearest,
                                     "; there are: ", all));
}

}  // namespace

absl::StatusOr<Config> Config::create(std::string_view profile) {
  Config config;
  config.is_paper_ = profile == "paper";
  if (!config.is_paper_ && profile != "default") {
    return absl::InvalidArgumentError(
        str_cat("profile ", quote(profile), ", accepted: default, paper"));
  }
  for (std::size_t i = 0; i < kOptionCount; ++i) {
    const OptionInfo& info = option_table()[i];
    config.values_[i] = config.is_paper_ ? info.paper_value : info.default_value;
  }
  return config;
}

absl::Status Config::set(std::string_view name, std::string_view value) {
  PKV_ASSIGN_OR_RETURN(const Option option, option_by_name(name));
  std::optional<std::string> canonical = canonical_value(option, value);
  if (!canonical) {
    return absl::InvalidArgumentError(
        str_cat(name, "=", quote(value), ", accepted: ", option_info(option).accepts));
  }
  values_[static_cast<std::size_t>(option)] = *std::move(canonical);
  return absl::OkStatus();
}

absl::StatusOr<const std::string*> Config::get(std::string_view name) const {
  PKV_ASSIGN_OR_RETURN(const Option option, option_by_name(name));
  return &value(option);
}

absl::StatusOr<pkv_geometry> Config::geometry(int32_t kv_heads) const {
  pkv_geometry geometry{};
  geometry.struct_size = sizeof(geometry);
  geometry.kv_heads = kv_heads;
  PKV_ASSIGN_OR_RETURN(geometry.head_dim, head_dim());
  geometry.v_source = choice(Option::kVSource);
  geometry.codec = choice(Option::kCodec);
  geometry.vote = choice(Option::kVote);
  geometry.rounds = static_cast<int32_t>(to_integer(value(Option::kRounds)));
  set_sketch(geometry);
  geometry.value_norm = is(Option::kValueNorm, "on") ? 1 : 0;
  geometry.seed = to_seed(value(Option::kSeed));

  const bool has_values = geometry.v_source != PKV_V_SOURCE_NONE;
  if (is(Option::kValueDim, "auto")) {
    geometry.value_dim = has_values ? geometry.head_dim : 0;
  } else {
    geometry.value_dim = static_cast<int32_t>(to_integer(value(Option::kValueDim)));
  }
  if (has_values && geometry.value_dim == 0) {
    return refuse(Option::kValueDim, "needs v_source=none");
  }
  if (!has_values) {
    if (geometry.value_dim != 0) return refuse(Option::kValueDim, "is not used: v_source=none");
    if (geometry.sketch_bits != 0) {
      return refuse(Option::kTail, "needs values, there are none: v_source=none");
    }
    if (geometry.value_norm != 0) {
      return refuse(Option::kValueNorm, "needs values, there are none: v_source=none");
    }
  }
  if (geometry.v_source == PKV_V_SOURCE_K_PREFIX && geometry.value_dim > geometry.head_dim) {
    return refuse(Option::kValueDim, str_cat("is above head_dim=", geometry.head_dim,
                                             ", of which it is a part: v_source=k_prefix"));
  }
  if (geometry.rounds == 2 && !std::has_single_bit(static_cast<uint32_t>(geometry.head_dim))) {
    return refuse(Option::kRounds, str_cat("needs a power of two, head_dim=", geometry.head_dim));
  }
  PKV_RETURN_IF_ERROR(check_geometry(geometry));
  return geometry;
}

CodecOptions Config::codec_options() const {
  return {.center = is(Option::kCenter, "on"),
          .balance = is(Option::kBalance, "on"),
          .fit_picked = is(Option::kFit, "picked"),
          .isolate = is(Option::kNonfinite, "isolate")};
}

absl::StatusOr<StepOptions> Config::step_options() const {
  PKV_RETURN_IF_ERROR(check_step());
  StepOptions options{};
  options.k = static_cast<int32_t>(to_integer(value(Option::kK)));
  options.vote_group = choice(Option::kVoteGroup);
  options.rho_of = choice(Option::kRhoOf);
  options.rank = choice(Option::kRank);
  options.tail = tail();
  options.tail_samples = static_cast<int32_t>(to_integer(value(Option::kTailSamples)));
  options.k_min = static_cast<int32_t>(to_integer(value(Option::kKMin)));
  options.weigh_norms = is(Option::kValueNorm, "on");
  options.soft_cap = to_float(value(Option::kSoftCap));
  options.share = to_double(value(Option::kShare));

  if (is(Option::kScale, "auto")) {
    PKV_ASSIGN_OR_RETURN(const int32_t dim, head_dim());
    options.scale = format::inv_sqrt(dim);
  } else {
    options.scale = to_float(value(Option::kScale));
  }
  if (!is(Option::kCandidates, "auto")) {
    const int64_t ppm = format::share_ppm(to_double(value(Option::kCandidates)));
    options.rule = format::candidate_rule<1>({{INT64_MAX, ppm}}, options.k);
  } else if (is_paper_) {
    options.rule = format::candidate_rule(format::kPaperSchedule, options.k);
  } else {
    options.rule = format::candidate_rule(format::kDefaultSchedule, options.k);
  }
  return options;
}

// An option that another one leaves without effect may hold its default only.
absl::Status Config::check_step() const {
  if (is(Option::kVoteGroup, "heads") && !is(Option::kVote, "graded")) {
    return refuse(Option::kVoteGroup, "needs vote=graded");
  }
  if (is(Option::kRhoOf, "centroids") && !is(Option::kVote, "tier")) {
    return refuse(Option::kRhoOf, "needs vote=tier");
  }
  if (!is(Option::kTail, "drop") && is(Option::kVSource, "none")) {
    return refuse(Option::kTail, "needs values, there are none: v_source=none");
  }
  if (is(Option::kTail, "drop") && !is(Option::kTailSamples, "512")) {
    return refuse(Option::kTailSamples, "is not used: tail=drop");
  }
  const bool is_adaptive = !is(Option::kShare, "0");
  if (is_adaptive && !is(Option::kRank, "group")) {
    return refuse(Option::kShare, "needs rank=group");
  }
  if (!is_adaptive && !is(Option::kKMin, "1")) {
    return refuse(Option::kKMin, "is not used: share=0");
  }
  if (is_adaptive && to_integer(value(Option::kKMin)) > to_integer(value(Option::kK))) {
    return refuse(Option::kKMin, str_cat("is above k=", value(Option::kK)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Config::head_dim() const {
  if (value(Option::kHeadDim).empty()) {
    return absl::InvalidArgumentError(
        str_cat("head_dim is not set, accepted: ", option_info(Option::kHeadDim).accepts));
  }
  return static_cast<int32_t>(to_integer(value(Option::kHeadDim)));
}

int32_t Config::choice(Option option) const { return choice_number(option, value(option)); }

int32_t Config::tail() const {
  if (is(Option::kTail, "drop")) return PKV_TAIL_DROP;
  if (is(Option::kTail, "mean")) return PKV_TAIL_MEAN;
  return is(Option::kTail, "sampled") ? PKV_TAIL_SAMPLED : PKV_TAIL_SKETCH;
}

// docs/algorithm.md, section 3.5.
void Config::set_sketch(pkv_geometry& geometry) const {
  constexpr int32_t kSampledStride = 16;
  if (tail() == PKV_TAIL_SAMPLED) {
    geometry.sketch_bits = 4;
    geometry.sketch_stride = kSampledStride;
  } else if (tail() == PKV_TAIL_SKETCH) {
    geometry.sketch_bits = is(Option::kTail, "sketch2") ? 2 : 4;
    geometry.sketch_stride = 1;
  }
}

absl::Status Config::refuse(Option option, std::string_view reason) const {
  return absl::InvalidArgumentError(
      str_cat(option_info(option).name, "=", value(option), " ", reason));
}

}  // namespace pkv
