#include "core/codec/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/codec/geometry.h"

namespace pkv {
namespace {

// Keys that are all the same, but not the pivot, leave rounding where their spread would be.
constexpr double kSmallestSpread = 0x1p-40;
constexpr double kSmallestBalance = 1.0 / 16;
constexpr double kLargestBalance = 16;

// One KV head: its part of every array.
struct Head {
  int index;
  int64_t count;   // of used keys
  int64_t weight;  // W, of these
  int64_t query_count;
  std::span<const float> pivot;
  std::span<const double> sums;
  std::span<const double> squares;
  std::span<const double> query_squares;
  std::span<const double> value_sums;
};

absl::Status refuse(std::string_view array, int head, std::size_t coordinate, double value,
                    std::string_view accepted) {
  return absl::InvalidArgumentError(str_cat(array, "[KV head ", head, ", coordinate ", coordinate,
                                            "]=", value, ", accepted: ", accepted));
}

// Differences of two fp32 numbers have a mean of at most twice the largest one.
absl::Status check_sums(std::string_view array, const Head& head, std::span<const double> sums,
                        int64_t count) {
  const double limit = 2.0 * std::numeric_limits<float>::max() * static_cast<double>(count);
  for (std::size_t j = 0; j < sums.size(); ++j) {
    if (!(std::abs(sums[j]) <= limit)) {
      return refuse(array, head.index, j, sums[j], str_cat("a sum of ", count, " fp32 numbers"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_squares(std::string_view array, int head, std::span<const double> squares) {
  for (std::size_t j = 0; j < squares.size(); ++j) {
    if (!std::isfinite(squares[j]) || squares[j] < 0) {
      return refuse(array, head, j, squares[j], "finite and >= 0");
    }
  }
  return absl::OkStatus();
}

absl::Status check_count(std::string_view array, int head, int64_t count) {
  if (count >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(array, "[KV head ", head, "]=", count, ", accepted: >= 0"));
}

absl::Status check_pointers(const pkv_fit_args& sums) {
  const auto refuse_null = [](std::string_view name) {
    return absl::InvalidArgumentError(str_cat(name, "=NULL, accepted: an array"));
  };
  if (sums.geometry == nullptr) return refuse_null("geometry");
  if (sums.pivot == nullptr) return refuse_null("pivot");
  if (sums.key_counts == nullptr) return refuse_null("key_counts");
  if (sums.key_weights == nullptr) return refuse_null("key_weights");
  if (sums.key_sums == nullptr) return refuse_null("key_sums");
  if (sums.key_squares == nullptr) return refuse_null("key_squares");
  if ((sums.query_counts == nullptr) != (sums.query_squares == nullptr)) {
    return refuse_null(sums.query_counts == nullptr ? "query_counts" : "query_squares");
  }
  return absl::OkStatus();
}

template <class Number>
std::span<const Number> part(const Number* array, int head, int32_t dim) {
  if (array == nullptr) return {};
  return {array + int64_t{head} * dim, static_cast<std::size_t>(dim)};
}

Head head_of(const pkv_fit_args& sums, int head) {
  const pkv_geometry& g = *sums.geometry;
  Head out{};
  out.index = head;
  out.count = sums.key_counts[head];
  out.weight = sums.key_weights[head];
  out.query_count = sums.query_counts == nullptr ? 0 : sums.query_counts[head];
  out.pivot = part(sums.pivot, head, g.head_dim);
  out.sums = part(sums.key_sums, head, g.head_dim);
  out.squares = part(sums.key_squares, head, g.head_dim);
  out.query_squares = part(sums.query_squares, head, g.head_dim);
  out.value_sums = part(sums.value_sums, head, g.value_dim);
  return out;
}

// Sums of a head without keys, or without queries, mean nothing and are not looked at.
absl::Status check_head(const Head& head) {
  PKV_RETURN_IF_ERROR(check_count("key_counts", head.index, head.count));
  PKV_RETURN_IF_ERROR(check_count("key_weights", head.index, head.weight));
  PKV_RETURN_IF_ERROR(check_count("query_counts", head.index, head.query_count));
  if (head.count > 0) {
    for (std::size_t j = 0; j < head.pivot.size(); ++j) {
      if (!std::isfinite(head.pivot[j])) {
        return refuse("pivot", head.index, j, static_cast<double>(head.pivot[j]), "finite");
      }
    }
    PKV_RETURN_IF_ERROR(check_sums("key_sums", head, head.sums, head.weight));
    PKV_RETURN_IF_ERROR(check_squares("key_squares", head.index, head.squares));
    PKV_RETURN_IF_ERROR(check_sums("value_sums", head, head.value_sums, head.count));
  }
  if (head.query_count > 0) {
    PKV_RETURN_IF_ERROR(check_squares("query_squares", head.index, head.query_squares));
  }
  return absl::OkStatus();
}

// rk_j: spread about the mean, or about 0 with center = off.
double key_rms(const Head& head, std::size_t j, bool center_on) {
  const auto weight = static_cast<double>(head.weight);
  const double c = head.pivot[j];
  const double mean = head.sums[j] / weight;       // of k - c
  const double square = head.squares[j] / weight;  // of (k - c)^2
  const double spread = center_on ? square - mean * mean : square + c * (2 * mean + c);
  const double terms = center_on ? square : square + c * c;
  return spread > kSmallestSpread * terms ? std::sqrt(spread) : 0.0;
}

void fit_balance(const Head& head, bool center_on, std::span<float> balance) {
  std::fill(balance.begin(), balance.end(), 1.0F);
  if (head.weight == 0 || head.query_count == 0) return;
  std::vector<double> raw(balance.size(), 0.0);  // 0: not both are > 0
  double log_sum = 0;
  int used = 0;
  for (std::size_t j = 0; j < raw.size(); ++j) {
    const double rk = key_rms(head, j, center_on);
    const double rq = std::sqrt(head.query_squares[j] / static_cast<double>(head.query_count));
    if (!(rk > 0 && rq > 0)) continue;
    raw[j] = std::sqrt(rq) / std::sqrt(rk);  // sqrt(rq / rk), whose quotient might overflow
    log_sum += std::log(raw[j]);
    ++used;
  }
  if (used == 0) return;
  const double geomean = std::exp(log_sum / used);
  for (std::size_t j = 0; j < raw.size(); ++j) {
    if (raw[j] == 0) continue;
    balance[j] =
        static_cast<float>(std::clamp(raw[j] / geomean, kSmallestBalance, kLargestBalance));
  }
}

// base_j + sums_j / weight, rounded once. `base` may be empty: 0.
absl::Status fit_mean(std::string_view name, const Head& head, std::span<const float> base,
                      std::span<const double> sums, int64_t weight, std::span<float> out) {
  for (std::size_t j = 0; j < sums.size(); ++j) {
    const double start = base.empty() ? 0.0 : static_cast<double>(base[j]);
    const double mean = start + sums[j] / static_cast<double>(weight);
    out[j] = static_cast<float>(mean);
    if (!std::isfinite(out[j])) return refuse(name, head.index, j, mean, "finite in fp32");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FittedParams> fit_params(const pkv_fit_args& sums, bool center_on, bool balance_on) {
  PKV_RETURN_IF_ERROR(check_pointers(sums));
  const pkv_geometry& g = *sums.geometry;
  PKV_RETURN_IF_ERROR(check_geometry(g));
  const auto heads = static_cast<std::size_t>(g.kv_heads);
  const auto dim = static_cast<std::size_t>(g.head_dim);
  const auto value_dim = static_cast<std::size_t>(g.value_dim);
  FittedParams fitted;
  fitted.center.assign(heads * dim, 0.0F);
  fitted.balance.assign(heads * dim, 1.0F);
  fitted.value_center.assign(heads * value_dim, 0.0F);
  for (int h = 0; h < g.kv_heads; ++h) {
    const Head head = head_of(sums, h);
    PKV_RETURN_IF_ERROR(check_head(head));
    const auto at = static_cast<std::size_t>(h);
    const auto center = std::span(fitted.center).subspan(at * dim, dim);
    const auto balance = std::span(fitted.balance).subspan(at * dim, dim);
    const auto value_center = std::span(fitted.value_center).subspan(at * value_dim, value_dim);
    if (balance_on) fit_balance(head, center_on, balance);
    if (center_on && head.weight > 0) {
      PKV_RETURN_IF_ERROR(fit_mean("center", head, head.pivot, head.sums, head.weight, center));
    }
    if (head.count > 0) {
      PKV_RETURN_IF_ERROR(
          fit_mean("value_center", head, {}, head.value_sums, head.count, value_center));
    }
  }
  fitted.inv_balance.reserve(fitted.balance.size());
  for (const float s : fitted.balance) fitted.inv_balance.push_back(1.0F / s);
  return fitted;
}

}  // namespace pkv
