#include "tests/conformance/model.h"

#include <cmath>

#include "tests/conformance/half.h"

namespace pkv::conformance {
namespace {

// Tables P, N2 and N4 (3.4, 3.5).
constexpr double kPolarLevels[8] = {.0425086671, .1280436506, .2152012185, .3053238204,
                                    .4002712711, .5030220635, .6193476459, .7648350837};
constexpr double kN2Levels[2] = {.4527800346, 1.5104176085};
constexpr double kN4Integers[8] = {11, 37, 61, 87, 117, 151, 193, 255};

enum Plane {
  kCodes = 2,
  kFactors = 3,
  kValueSigns = 4,
  kValueCodes = 5,
  kValueFactors = 6,
};

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

int32_t largest_power(int32_t dim) {
  int32_t size = 1;
  while (2 * size <= dim) size *= 2;
  return size;
}

// Bit j of the bytes of `plane` from `byte` on.
int32_t bit_of(const Records& row, int plane, int64_t byte, int32_t j) {
  return (row.planes[plane][static_cast<size_t>(byte + j / 8)] >> (j % 8)) & 1;
}

// Code of coordinate j of `d` in an entry of `planes` bit planes.
int32_t code_of(const Records& row, int plane, int32_t planes, int32_t d, int64_t entry,
                int32_t j) {
  int32_t code = 0;
  for (int32_t p = 0; p < planes; ++p) {
    code |= bit_of(row, plane, (entry * planes + p) * (d / 8), j) << p;
  }
  return code;
}

bool is_finite_square(const std::vector<double>& y) {
  double sum = 0.0;
  for (const double value : y) sum += value * value;
  return std::isfinite(static_cast<float>(sum));
}

}  // namespace

double rotation_gain(const pkv_geometry& geometry) {
  return is_power_of_two(geometry.head_dim) && geometry.rounds == 1 ? geometry.head_dim : 1.0;
}

std::vector<double> rotate(const Codec& codec, std::span<const double> x) {
  std::vector<double> y(x.begin(), x.end());
  const int32_t D = codec.d();
  const int32_t size = largest_power(D);
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

std::vector<double> unrotate_value(const Codec& codec, std::vector<double> y) {
  const int32_t D = codec.dv();
  const int32_t size = largest_power(D);
  if (size == D) {
    fwht(y.data(), D);
    for (double& value : y) value /= D;
  } else {
    scaled_fwht(y.data() + (D - size), size);
    multiply(y, codec.value_signs_2);
    scaled_fwht(y.data(), size);
  }
  multiply(y, codec.value_signs_1);
  return y;
}

std::vector<int32_t> sample_positions(const pkv_geometry& geometry, int64_t n, int32_t most) {
  const int64_t p = geometry.sketch_bits == 0 ? 1 : geometry.sketch_stride;
  int64_t m = 0;  // multiples of p below n
  while (m * p < n) ++m;
  const int64_t c = m < most ? m : most;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < c; ++i) positions.push_back(static_cast<int32_t>(p * (i * m / c)));
  return positions;
}

bool is_bad_query(const Codec& codec, int32_t kv_head, std::span<const float> queries) {
  const auto d = static_cast<size_t>(codec.d());
  std::vector<double> sum(d);
  for (size_t first = 0; first < queries.size(); first += d) {
    std::vector<double> x(d);
    for (size_t j = 0; j < d; ++j) {
      const float r = codec.inv_balance[static_cast<size_t>(kv_head) * d + j];
      x[j] = static_cast<double>(queries[first + j]) * static_cast<double>(r);
      sum[j] += x[j];
    }
    if (!is_finite_square(rotate(codec, x))) return true;
  }
  return !is_finite_square(rotate(codec, sum));
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
      product += kPolarLevels[code_of(row, kCodes, 3, codec_.d(), position, j)] *
                 rotated_[static_cast<size_t>(j)];
    }
    sum += static_cast<double>(bf16_to_float(row.number(kFactors, position * S + b))) * product;
  }
  return sum / rotation_gain(codec_.geometry) + base_;
}

std::vector<double> sketch_of(const Codec& codec, const Records& row, int64_t position) {
  const pkv_geometry& g = codec.geometry;
  const int64_t entry = position / g.sketch_stride;
  const double w = bf16_to_float(row.number(kValueFactors, entry));
  std::vector<double> sketch;
  for (int32_t j = 0; j < codec.dv(); ++j) {
    const int32_t code = code_of(row, kValueCodes, g.sketch_bits - 1, codec.dv(), entry, j);
    const double a = g.sketch_bits == 2 ? kN2Levels[code] : kN4Integers[code];
    const bool is_positive = bit_of(row, kValueSigns, entry * (codec.dv() / 8), j) != 0;
    sketch.push_back(is_positive ? w * a : -w * a);
  }
  return sketch;
}

double sketch_size(const Codec& codec, const std::vector<double>& sketch) {
  double squares = 0.0;
  for (const double value : sketch) squares += value * value;
  const double gain = is_power_of_two(codec.dv()) ? codec.dv() : 1.0;
  return std::sqrt(squares / gain);
}

}  // namespace pkv::conformance
