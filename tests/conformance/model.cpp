#include "tests/conformance/model.h"

#include <cmath>

#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

// Table P, and the largest levels of N2 and N4 (3.4, 3.5).
constexpr double kPolarLevels[8] = {.0425086671, .1280436506, .2152012185, .3053238204,
                                    .4002712711, .5030220635, .6193476459, .7648350837};
constexpr double kLargestN2 = 1.5104176085;
constexpr double kLargestN4 = 255;

enum Plane { kCodes = 2, kFactors = 3, kValueFactors = 6 };

void fwht(double* x, int32_t size) {
  for (int32_t H = 1; H < size; H *= 2) {
    for (int32_t i = 0; i < size; ++i) {
      if ((i & H) != 0) continue;
      const double a = x[i];
      const double b = x[i + H];
      x[i] = a + b;
      x[i + H] = a - b;
    }
  }
}

void multiply(std::vector<double>& x, const std::vector<float>& signs) {
  for (size_t j = 0; j < x.size(); ++j) x[j] *= static_cast<double>(signs[j]);
}

void scaled_fwht(double* x, int32_t size) {
  fwht(x, size);
  for (int32_t i = 0; i < size; ++i) x[i] /= std::sqrt(static_cast<double>(size));
}

int32_t code_of(const Records& row, int32_t planes, int32_t d, int64_t position, int32_t j) {
  int32_t code = 0;
  for (int32_t p = 0; p < planes; ++p) {
    const int64_t byte = (position * planes + p) * (d / 8) + j / 8;
    code |= ((row.planes[kCodes][static_cast<size_t>(byte)] >> (j % 8)) & 1) << p;
  }
  return code;
}

}  // namespace

double rotation_gain(const pkv_geometry& geometry) {
  return is_power_of_two(geometry.head_dim) && geometry.rounds == 1 ? geometry.head_dim : 1.0;
}

std::vector<double> rotate(const Codec& codec, std::span<const double> x) {
  std::vector<double> y(x.begin(), x.end());
  const int32_t D = codec.d();
  int32_t size = 1;
  while (2 * size <= D) size *= 2;
  multiply(y, codec.signs_1);
  if (size == D) {
    fwht(y.data(), D);
    if (codec.geometry.rounds == 1) return y;
    multiply(y, codec.signs_2);
    fwht(y.data(), D);
    for (double& value : y) value /= D;
    return y;
  }
  scaled_fwht(y.data(), size);
  multiply(y, codec.signs_2);
  scaled_fwht(y.data() + (D - size), size);
  return y;
}

int32_t factors_per_key(const pkv_geometry& geometry) {
  return geometry.codec == PKV_CODEC_POLAR4 ? geometry.head_dim / 8 : 1;
}

bool is_bad(const pkv_geometry& geometry, const Records& row, int64_t position) {
  return std::isnan(bf16_to_float(row.number(kFactors, position * factors_per_key(geometry))));
}

EstimateSizes::EstimateSizes(const Codec& codec, int32_t kv_head, std::span<const float> query)
    : codec_(codec) {
  std::vector<double> x;
  for (int32_t j = 0; j < codec.d(); ++j) {
    const auto parameter = static_cast<size_t>(kv_head) * codec.d() + j;
    const auto q = static_cast<double>(query[static_cast<size_t>(j)]);
    x.push_back(q * static_cast<double>(codec.inv_balance[parameter]));
    base_ += std::fabs(q * static_cast<double>(codec.center[parameter]));
  }
  rotated_ = rotate(codec, x);
  for (double& y : rotated_) y = std::fabs(y);
}

double EstimateSizes::polar(const Records& row, int64_t position) const {
  const int32_t S = codec_.d() / 8;
  double sum = 0.0;
  for (int32_t b = 0; b < S; ++b) {
    double product = 0.0;
    for (int32_t j = 8 * b; j < 8 * b + 8; ++j) {
      product +=
          kPolarLevels[code_of(row, 3, codec_.d(), position, j)] * rotated_[static_cast<size_t>(j)];
    }
    sum += static_cast<double>(bf16_to_float(row.number(kFactors, position * S + b))) * product;
  }
  return sum / rotation_gain(codec_.geometry) + base_;
}

double sketch_level(const pkv_geometry& geometry, const Records& row, int64_t position) {
  const double largest = geometry.sketch_bits == 2 ? kLargestN2 : kLargestN4;
  return largest * static_cast<double>(bf16_to_float(row.number(kValueFactors, position)));
}

}  // namespace pkv::conformance
