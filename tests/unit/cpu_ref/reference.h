// Definitions of docs/algorithm.md written a second time, for tests: no loop here is shared with
// the code under test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace pkv::test {

using Matrix = std::vector<std::vector<double>>;

// fold (section 0) by its recursion: the fold of the lower half plus upper half, element by
// element.
inline float reference_fold(std::vector<float> x) {
  if (x.empty()) return 0.0F;
  if (x.size() == 1) return x[0];
  const size_t half = std::bit_ceil(x.size()) / 2;
  std::vector<float> sums(half);
  for (size_t i = 0; i < half; ++i) sums[i] = x[i] + (i + half < x.size() ? x[i + half] : 0.0F);
  return reference_fold(sums);
}

// Sylvester's Hadamard matrix of 2^p rows at `first` within the identity of dim rows, times scale.
inline Matrix hadamard_block(int32_t dim, int32_t p, int32_t first, double scale) {
  Matrix H(static_cast<size_t>(dim), std::vector<double>(static_cast<size_t>(dim), 0.0));
  for (int32_t i = 0; i < dim; ++i) {
    for (int32_t j = 0; j < dim; ++j) {
      const int32_t bi = i - first;
      const int32_t bj = j - first;
      const bool inside = bi >= 0 && bj >= 0 && bi < (1 << p) && bj < (1 << p);
      const bool odd = inside && std::popcount(static_cast<uint32_t>(bi & bj)) % 2 != 0;
      const double outside = i == j ? 1.0 : 0.0;
      H[static_cast<size_t>(i)][static_cast<size_t>(j)] = inside ? (odd ? -scale : scale) : outside;
    }
  }
  return H;
}

// left * diag(signs) * right
inline Matrix product(const Matrix& left, const std::vector<float>& signs, const Matrix& right) {
  const size_t D = left.size();
  Matrix result(D, std::vector<double>(D, 0.0));
  for (size_t i = 0; i < D; ++i) {
    for (size_t m = 0; m < D; ++m) {
      const double factor = left[i][m] * static_cast<double>(signs[m]);
      if (factor == 0.0) continue;
      for (size_t j = 0; j < D; ++j) result[i][j] += factor * right[m][j];
    }
  }
  return result;
}

struct ReferenceRotation {
  Matrix R;  // y = R x
  double gain;
};

// Section 2.3 as a matrix.
inline ReferenceRotation reference_rotation(int32_t dim, int32_t rounds,
                                            const std::vector<float>& signs_1,
                                            const std::vector<float>& signs_2) {
  const auto p = static_cast<int32_t>(std::floor(std::log2(dim)));
  const int32_t size = 1 << p;
  ReferenceRotation result;
  if (size == dim && rounds == 1) {
    result.R = hadamard_block(dim, p, 0, 1.0);
    result.gain = dim;
  } else if (size == dim) {
    result.R =
        product(hadamard_block(dim, p, 0, 1.0 / dim), signs_2, hadamard_block(dim, p, 0, 1.0));
    result.gain = 1.0;
  } else {
    const double c = std::pow(2.0, -0.5 * p);
    result.R =
        product(hadamard_block(dim, p, dim - size, c), signs_2, hadamard_block(dim, p, 0, c));
    result.gain = 1.0;
  }
  for (auto& row : result.R) {
    for (size_t j = 0; j < row.size(); ++j) row[j] *= static_cast<double>(signs_1[j]);
  }
  return result;
}

// ln sum exp in long double.
inline long double log_sum_exp(const std::vector<long double>& x) {
  long double max = -INFINITY;
  for (const long double v : x) max = std::fmax(max, v);
  if (std::isinf(max)) return max;
  long double sum = 0;
  for (const long double v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

}  // namespace pkv::test
