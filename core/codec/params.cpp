#include "core/codec/params.h"

#include <cmath>
#include <cstddef>
#include <string_view>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/philox.h"
#include "core/format/rotation.h"

namespace pkv {
namespace {

std::vector<float> signs(uint64_t seed, uint32_t stream, int32_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  fill_signs(seed, stream, out);
  return out;
}

// sigma_2 belongs to a second round or a second block (2.3).
bool needs_second_signs(int32_t dim, int32_t rounds) {
  const format::RotationPlan plan = format::rotation_plan(dim, rounds);
  return !plan.is_power_of_two || plan.rounds == 2;
}

absl::Status check_size(std::string_view name, std::size_t size, int32_t heads, int32_t dim) {
  PKV_ASSIGN_OR_RETURN(const int64_t wanted,
                       checked_product(name, {{"kv_heads", heads}, {"dim", dim}}));
  if (size == static_cast<uint64_t>(wanted)) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, ": ", size, " numbers, accepted: ", wanted,
                                            " (kv_heads=", heads, " times ", dim, ")"));
}

// Whether r = fp32(1 / s) is a number to multiply with.
bool is_scale(float s) { return std::isfinite(s) && s > 0 && std::isfinite(1.0F / s); }

template <class Predicate>
absl::Status check_numbers(std::string_view name, std::span<const float> numbers, int32_t dim,
                           std::string_view accepted, Predicate is_accepted) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (is_accepted(numbers[i])) continue;
    const auto width = static_cast<std::size_t>(dim);
    return absl::InvalidArgumentError(str_cat(name, "[KV head ", i / width, ", coordinate ",
                                              i % width, "]=", numbers[i],
                                              ", accepted: ", accepted));
  }
  return absl::OkStatus();
}

const float* pointer(const std::vector<float>& numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

}  // namespace

void fill_signs(uint64_t seed, uint32_t stream, std::span<float> out) {
  for (std::size_t j = 0; j < out.size(); ++j) {
    out[j] = format::sign_element(seed, stream, static_cast<int64_t>(j));
  }
}

absl::StatusOr<CodecParams> CodecParams::create(const pkv_geometry& geometry,
                                                std::span<const float> center,
                                                std::span<const float> balance,
                                                std::span<const float> value_center) {
  PKV_RETURN_IF_ERROR(check_geometry(geometry));
  const int32_t heads = geometry.kv_heads;
  const int32_t dim = geometry.head_dim;
  const int32_t value_dim = geometry.sketch_bits == 0 ? 0 : geometry.value_dim;
  const auto is_finite = [](float x) { return std::isfinite(x); };
  PKV_RETURN_IF_ERROR(check_size("center", center.size(), heads, dim));
  PKV_RETURN_IF_ERROR(check_size("balance", balance.size(), heads, dim));
  PKV_RETURN_IF_ERROR(check_size("value_center", value_center.size(), heads, value_dim));
  PKV_RETURN_IF_ERROR(check_numbers("center", center, dim, "finite", is_finite));
  PKV_RETURN_IF_ERROR(
      check_numbers("balance", balance, dim, "finite and > 0, with a finite reciprocal", is_scale));
  PKV_RETURN_IF_ERROR(check_numbers("value_center", value_center, value_dim, "finite", is_finite));

  CodecParams params;
  params.geometry_ = geometry;
  params.geometry_.struct_size = sizeof(pkv_geometry);
  params.center_.assign(center.begin(), center.end());
  params.balance_.assign(balance.begin(), balance.end());
  for (const float s : balance) params.inv_balance_.push_back(1.0F / s);
  params.value_center_.assign(value_center.begin(), value_center.end());
  params.signs_1_ = signs(geometry.seed, format::kStreamKey1, dim);
  if (needs_second_signs(dim, geometry.rounds)) {
    params.signs_2_ = signs(geometry.seed, format::kStreamKey2, dim);
  }
  if (value_dim > 0) {
    params.value_signs_1_ = signs(geometry.seed, format::kStreamValue1, value_dim);
    if (needs_second_signs(value_dim, 1)) {
      params.value_signs_2_ = signs(geometry.seed, format::kStreamValue2, value_dim);
    }
  }
  return params;
}

pkv_codec_params CodecParams::view() const {
  pkv_codec_params out{};
  out.geometry = &geometry_;
  out.center = pointer(center_);
  out.balance = pointer(balance_);
  out.inv_balance = pointer(inv_balance_);
  out.signs_1 = pointer(signs_1_);
  out.signs_2 = pointer(signs_2_);
  out.value_center = pointer(value_center_);
  out.value_signs_1 = pointer(value_signs_1_);
  out.value_signs_2 = pointer(value_signs_2_);
  return out;
}

}  // namespace pkv
