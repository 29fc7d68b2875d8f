#include "tests/conformance/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace pkv::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Vectors of `d` numbers, `tokens` to a row.
struct Vectors {
  std::vector<float> x;
  int64_t count;
  int64_t tokens;
  int64_t d;

  float* at(int64_t i) { return x.data() + i * d; }
  // Whether vector i is the middle one of its row.
  bool is_middle(int64_t i) const { return i % tokens == tokens / 2; }
};

Vectors normal_vectors(Random& random, const Shape& shape) {
  Vectors vectors = {std::vector<float>(static_cast<size_t>(count_of(shape))), 0, 0, shape.back()};
  vectors.tokens = shape[shape.size() - 2];
  vectors.count = count_of(shape) / vectors.d;
  for (float& value : vectors.x) value = random.normal();
  return vectors;
}

[[noreturn]] void refuse(std::string_view kind) {
  throw std::logic_error("no numbers of kind " + std::string(kind));
}

void scale(Vectors& vectors, float factor) {
  for (float& value : vectors.x) value *= factor;
}

// Of a size whose squares, summed over a rotated vector, stay finite in fp32.
float largest_scale(pkv_dtype dtype) { return dtype == PKV_DTYPE_F16 ? 1.5e4F : 4e15F; }
// Subnormal in the dtype.
float smallest_scale(pkv_dtype dtype) { return dtype == PKV_DTYPE_F16 ? 1e-6F : 1e-39F; }

// `value` in one element of the chosen vectors.
template <class Choose>
void plant(Random& random, Vectors& vectors, float value, Choose choose) {
  for (int64_t i = 0; i < vectors.count; ++i) {
    if (choose(i)) vectors.at(i)[random.below(vectors.d)] = value;
  }
}

// Each vector becomes a copy of one of the first `distinct` of its row.
void repeat(Random& random, Vectors& vectors, int64_t distinct) {
  for (int64_t i = 0; i < vectors.count; ++i) {
    const int64_t row = i / vectors.tokens * vectors.tokens;
    const int64_t from = row + random.below(distinct);
    if (from < i) std::copy_n(vectors.at(from), vectors.d, vectors.at(i));
  }
}

void spread_exponents(Random& random, Vectors& vectors, int lowest, int highest, float limit) {
  for (int64_t i = 0; i < vectors.count; ++i) {
    const int exponent = lowest + static_cast<int>(random.below(highest - lowest + 1));
    for (int64_t j = 0; j < vectors.d; ++j) {
      float& value = vectors.at(i)[j];
      value = std::fmin(std::fmax(std::ldexp(value, exponent), -limit), limit);
    }
  }
}

void set_channels(Random& random, Vectors& vectors) {
  for (int64_t j = 0; j < vectors.d; ++j) {
    const float size = random.below(8) == 0 ? 12.0F : 0.5F + random.uniform();
    const float offset = 3.0F * random.normal();
    for (int64_t i = 0; i < vectors.count; ++i) {
      vectors.at(i)[j] = size * vectors.at(i)[j] + offset;
    }
  }
}

void mix(Vectors& vectors) {
  for (int64_t i = 0; i < vectors.count; ++i) {
    // 2e-23: squares near the smallest subnormal of fp32.
    const float factors[] = {1.0F, 0.0F, 2e-23F, -0.0F, 1e-30F};
    for (int64_t j = 0; j < vectors.d; ++j) vectors.at(i)[j] *= factors[i % 5];
  }
}

void round_to_integers(Vectors& vectors) {
  for (float& value : vectors.x) value = value > 0.6F ? 1.0F : value < -0.6F ? -1.0F : 0.0F;
}

// All elements of a vector near its mean, as in real keys with a large common part.
void align(Vectors& vectors) {
  for (int64_t i = vectors.count; i-- > 0;) {
    for (int64_t j = 0; j < vectors.d; ++j) {
      vectors.at(i)[j] = 10.0F * vectors.x[static_cast<size_t>(j)] + 0.01F * vectors.at(i)[j];
    }
  }
}

float limit_of(pkv_dtype dtype) { return dtype == PKV_DTYPE_F16 ? 6e4F : 3e38F; }

}  // namespace

std::vector<float> key_numbers(Random& random, std::string_view kind, const Shape& shape,
                               pkv_dtype dtype) {
  Vectors keys = normal_vectors(random, shape);
  if (keys.count == 0 || kind == "normal") return keys.x;
  if (kind == "channels") {
    set_channels(random, keys);
  } else if (kind == "duplicates") {
    repeat(random, keys, keys.tokens / 6 + 1);
  } else if (kind == "equal") {
    repeat(random, keys, 1);
  } else if (kind == "integers") {
    round_to_integers(keys);
  } else if (kind == "aligned") {
    align(keys);
  } else if (kind == "zero") {
    for (float& value : keys.x) value = 0.0F;
  } else if (kind == "minus_zero") {
    for (float& value : keys.x) value = -0.0F;
  } else if (kind == "mixed") {
    mix(keys);
  } else if (kind == "denormal") {
    scale(keys, smallest_scale(dtype));
    if (dtype != PKV_DTYPE_F16) spread_exponents(random, keys, -20, 0, 1.0F);
  } else if (kind == "huge") {
    scale(keys, largest_scale(dtype));
  } else if (kind == "overflow") {
    spread_exponents(random, keys, 30, 126, limit_of(dtype));
  } else if (kind == "one_nan") {
    plant(random, keys, kNan, [&](int64_t i) { return keys.is_middle(i); });
  } else if (kind == "one_inf") {
    plant(random, keys, -kInfinity, [&](int64_t i) { return keys.is_middle(i); });
  } else if (kind == "all_bad") {
    plant(random, keys, kNan, [](int64_t) { return true; });
  } else {
    refuse(kind);
  }
  return keys.x;
}

std::vector<float> query_numbers(Random& random, std::string_view kind, const Shape& shape,
                                 int32_t group, pkv_dtype dtype) {
  Vectors queries = normal_vectors(random, shape);
  if (queries.count == 0 || kind == "normal") return queries.x;
  const int64_t heads = shape[1];
  const int64_t middle = shape[0] / 2;
  const auto is_middle = [&](int64_t i) { return i == middle * heads + heads / 2; };
  if (kind == "zero") {
    for (float& value : queries.x) value = 0.0F;
  } else if (kind == "minus_zero") {
    for (float& value : queries.x) value = -0.0F;
  } else if (kind == "denormal") {
    scale(queries, smallest_scale(dtype));
  } else if (kind == "huge") {
    scale(queries, largest_scale(dtype) / 256.0F);
  } else if (kind == "large") {
    scale(queries, 100.0F);
  } else if (kind == "integers") {
    round_to_integers(queries);
  } else if (kind == "opposite") {
    for (int64_t i = 1; i < queries.count; i += 2) {
      for (int64_t j = 0; j < queries.d; ++j) queries.at(i)[j] = -queries.at(i - 1)[j];
    }
  } else if (kind == "one_nan") {
    plant(random, queries, kNan, is_middle);
  } else if (kind == "one_inf") {
    plant(random, queries, kInfinity, is_middle);
  } else if (kind == "sum_overflow" || kind == "sum_square") {
    // All elements x: the square is d x^2, the rotated one at most d times that. The larger one is
    // 2^126, that of the sum G^2 as much.
    const auto d = static_cast<float>(queries.d);
    const float x = std::ldexp(1.0F, 63) / (kind == "sum_square" ? std::sqrt(d) : d);
    for (int64_t i = middle * heads; i < middle * heads + group; ++i) {
      for (int64_t j = 0; j < queries.d; ++j) queries.at(i)[j] = x;
    }
  } else {
    refuse(kind);
  }
  return queries.x;
}

std::vector<float> value_numbers(Random& random, std::string_view kind, const Shape& shape,
                                 pkv_dtype dtype) {
  Vectors values = normal_vectors(random, shape);
  for (float& value : values.x) value += 0.5F;
  if (values.count == 0 || kind == "normal") return values.x;
  if (kind == "zero") {
    for (int64_t i = 0; i < values.count; i += 3) {
      for (int64_t j = 0; j < values.d; ++j) values.at(i)[j] = 0.0F;
    }
  } else if (kind == "huge") {
    scale(values, largest_scale(dtype));
  } else if (kind == "one_nan") {
    plant(random, values, kNan, [&](int64_t i) { return values.is_middle(i); });
  } else if (kind == "one_inf") {
    plant(random, values, kInfinity, [&](int64_t i) { return values.is_middle(i); });
  } else if (kind == "large_square") {
    // The squares of normal values sum to about 1.25 dv: to 2^124.3 with this factor.
    const float large = std::ldexp(1.0F, 62) / std::sqrt(static_cast<float>(values.d));
    for (int64_t i = 0; i < values.count; i += 2) {
      for (int64_t j = 0; j < values.d; ++j) values.at(i)[j] *= large;
    }
  } else if (kind == "overflow") {
    spread_exponents(random, values, 40, 126, limit_of(dtype));
  } else {
    refuse(kind);
  }
  return values.x;
}

}  // namespace pkv::conformance
