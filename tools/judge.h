// The figures of `pariskv eval`: one answer after the other against full attention.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/exact.h"
#include "tools/method.h"
#include "tools/trace.h"

namespace pkv::cli {

// A mean that may be over nothing.
class Mean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  std::optional<double> value() const {
    if (count_ == 0) return std::nullopt;
    return sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

// Means over queries and heads; docs/cli.md defines them. A recall without anything to find (k = 0,
// or a zone without tokens) does not count.
class Judge {
 public:
  void add(const Trace& trace, const Exact& exact, const Answer& answer);

  std::optional<double> recall() const { return recall_.value(); }
  std::optional<double> candidate_recall() const { return candidate_recall_.value(); }
  std::optional<double> candidate_share() const { return candidate_share_.value(); }
  double mass() const { return mass_.value().value_or(0); }
  double error() const { return error_.value().value_or(0); }
  double microseconds() const;  // median
  int64_t answers() const { return static_cast<int64_t>(microseconds_.size()); }

 private:
  void add_recall(const Exact& exact, const Answer& answer, int64_t kv_head);
  void add_query_head(const Trace& trace, const Exact& exact, const Answer& answer,
                      int64_t query_head);

  Mean recall_;
  Mean candidate_recall_;
  Mean candidate_share_;
  Mean mass_;
  Mean error_;
  std::vector<double> microseconds_;
};

// |got - wanted| / |wanted|, Euclidean norms; where `wanted` is 0, |got|.
double relative_error(std::span<const double> wanted, std::span<const float> got);

// Share of `wanted` that is in `found`. `wanted` is not empty, `found` has no entry twice.
double share_found(std::span<const int32_t> wanted, std::span<const int32_t> found);

}  // namespace pkv::cli
