// A product of query and key as a logit: scaled, and capped. docs/algorithm.md, section 8.1.
#pragma once

#include <cmath>

namespace pkv::cpu_ref {

class Logit {
 public:
  Logit(float scale, float soft_cap)
      : scale_(static_cast<double>(scale)), soft_cap_(static_cast<double>(soft_cap)) {}

  double operator()(double product) const {
    const double logit = scale_ * product;
    return soft_cap_ == 0.0 ? logit : soft_cap_ * std::tanh(logit / soft_cap_);
  }
  // Of an estimate (6.1).
  double operator()(float estimate) const { return (*this)(static_cast<double>(estimate)); }

 private:
  double scale_;
  double soft_cap_;  // 0: none
};

}  // namespace pkv::cpu_ref
