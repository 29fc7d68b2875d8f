// ln of a sum of exponentials, in double, with a running maximum.
#pragma once

#include <cmath>
#include <limits>

namespace pkv::cpu_ref {

class LogSum {
 public:
  // Adds exp(x).
  void add(double x) {
    if (x == kNothing) return;
    if (x > max_) {
      sum_ = sum_ * std::exp(max_ - x) + 1.0;
      max_ = x;
    } else {
      sum_ += std::exp(x - max_);
    }
  }

  // -inf if nothing was added.
  double value() const { return max_ == kNothing ? kNothing : max_ + std::log(sum_); }

 private:
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  double max_ = kNothing;
  double sum_ = 0.0;
};

}  // namespace pkv::cpu_ref
