// docs/algorithm.md, section 3.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "backends/cpu_ref/store.h"
#include "core/format/half.h"
#include "core/format/inv_sqrt.h"
#include "core/format/levels.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/cpu_ref/reference.h"

namespace pkv {
namespace {

using test::geometry_of;
using test::Oracle;
using test::reference_fold;
using test::Tensor;
using test::with_sketch;

// y = rotate(s * (k - mu)) of KV head 0. The rotation has its own test.
std::vector<float> rotated_key(Oracle& oracle, const float* key) {
  std::vector<float> y;
  for (size_t j = 0; j < oracle.center.size(); ++j) {
    const float difference = key[j] - oracle.center[j];
    y.push_back(oracle.balance[j] * difference);
  }
  cpu_ref::rotate(cpu_ref::key_rotation(oracle.codec()), y.data());
  return y;
}

std::vector<float> squares(const std::vector<float>& y) {
  std::vector<float> result;
  for (const float v : y) result.push_back(v * v);
  return result;
}

std::vector<float> magnitudes(const std::vector<float>& y) {
  std::vector<float> result;
  for (const float v : y) result.push_back(std::fabs(v));
  return result;
}

int32_t code_at(const std::vector<uint8_t>& codes, int32_t planes, int32_t dim, int32_t j) {
  int32_t code = 0;
  for (int32_t p = 0; p < planes; ++p) {
    const int32_t byte = codes[static_cast<size_t>(p * dim / 8 + j / 8)];
    code += ((byte >> (j % 8)) & 1) * (1 << p);
  }
  return code;
}

int32_t count_below(const float* thresholds, int32_t count, float u, float magnitude) {
  int32_t code = 0;
  while (code < count && thresholds[code] * u < magnitude) ++code;  // ascending thresholds
  return code;
}

void fill_codec(Oracle& oracle, uint32_t seed) {
  test::Random random(seed);
  for (float& mu : oracle.center) mu = random.uniform();
  for (float& s : oracle.balance) s = 1.0F + 0.5F * random.uniform();
  for (float& mu : oracle.value_center) mu = random.uniform();
}

TEST_CASE("encode: signs, codes and factors of scalar keys are those of the definition") {
  for (const int32_t codec : {PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const int32_t d : {8, 24, 64, 128, 136}) {
      CAPTURE(codec);
      CAPTURE(d);
      Oracle oracle(geometry_of(d, 0, codec), 20);
      fill_codec(oracle, 5);
      Tensor keys = Tensor::random({1, 1, 20, d}, 6);
      for (int32_t j = 0; j < d; ++j) {  // a few units in the last place from the centre
        const float mu = oracle.center[static_cast<size_t>(j)];
        keys.row(0, 0, 19)[j] = std::nextafter(mu, j % 3 == 0 ? 9.0F : -9.0F);
      }
      oracle.encode(keys);
      const bool is_5 = codec == PKV_CODEC_SCALAR5;
      const int32_t planes = is_5 ? 4 : 3;
      const float* thresholds = is_5 ? format::kNormal5Thresholds : format::kNormal4Thresholds;
      const int32_t* levels = is_5 ? format::kScalar5Levels : format::kScalar4Levels;
      for (int64_t t = 0; t < 20; ++t) {
        const auto record = oracle.record(0, t);
        const auto y = rotated_key(oracle, keys.row(0, 0, t));
        const float n2 = reference_fold(squares(y));
        const float u = std::sqrt(n2) * format::inv_sqrt(d);
        std::vector<float> terms;
        for (int32_t j = 0; j < d; ++j) {
          const float magnitude = std::fabs(y[static_cast<size_t>(j)]);
          const int32_t code = count_below(thresholds, is_5 ? 15 : 7, u, magnitude);
          REQUIRE(code_at(record.codes, planes, d, j) == code);
          REQUIRE(code_at(record.signs, 1, d, j) == (y[static_cast<size_t>(j)] >= 0 ? 1 : 0));
          terms.push_back(static_cast<float>(levels[code]) * magnitude);
        }
        CHECK(record.factors[0] == format::float_to_bf16(n2 / reference_fold(terms)));
        CHECK(record.vote_factor == format::float_to_bf16(n2 / reference_fold(magnitudes(y))));
      }
    }
  }
}

TEST_CASE("encode: polar4 has a unit and a factor for each subspace") {
  const int32_t d = 40;
  Oracle oracle(geometry_of(d, 0, PKV_CODEC_POLAR4, PKV_VOTE_TIER), 20);
  fill_codec(oracle, 7);
  Tensor keys = Tensor::random({1, 1, 20, d}, 8);
  oracle.encode(keys);
  for (int64_t t = 0; t < 20; ++t) {
    const auto record = oracle.record(0, t);
    const auto y = rotated_key(oracle, keys.row(0, 0, t));
    for (int32_t b = 0; b < d / 8; ++b) {
      const std::vector<float> part(y.begin() + 8 * b, y.begin() + 8 * b + 8);
      const float rho = std::sqrt(reference_fold(squares(part)));
      std::vector<float> terms;
      for (int32_t j = 0; j < 8; ++j) {
        const float magnitude = std::fabs(part[static_cast<size_t>(j)]);
        const int32_t code = count_below(format::kPolarThresholds, 7, rho, magnitude);
        REQUIRE(code_at(record.codes, 3, d, 8 * b + j) == code);
        terms.push_back(format::kPolarLevels[code] * magnitude);
      }
      const float alpha = reference_fold(terms) / rho;
      CHECK(record.factors[static_cast<size_t>(b)] == format::float_to_bf16(rho / alpha));
    }
    // 3.7: the pattern is counted
    for (int32_t b = 0; b < d / 8; ++b) {
      CHECK(oracle.occupancy[static_cast<size_t>(b * 256 + record.signs[static_cast<size_t>(b)])] >
            0);
    }
  }
}

// A key of d = 8 whose rotated form is y: with one round y = FWHT(sigma * k), so k = sigma *
// FWHT(y) / 8, exact for integers below 2^20.
void set_rotated(Oracle& oracle, const std::array<float, 8>& y, float* key) {
  for (int32_t j = 0; j < 8; ++j) {
    float sum = 0;
    for (int32_t i = 0; i < 8; ++i) {
      sum += std::popcount(static_cast<uint32_t>(i & j)) % 2 == 0 ? y[static_cast<size_t>(i)]
                                                                  : -y[static_cast<size_t>(i)];
    }
    key[j] = oracle.signs_1[static_cast<size_t>(j)] * sum / 8.0F;
  }
}

TEST_CASE("encode: a magnitude equal to its threshold is not above it") {
  Oracle oracle(geometry_of(8), 1);
  test::Random random(3);
  std::array<float, 8> y = {};
  bool is_found = false;
  for (int32_t attempt = 0; attempt < 100000 && !is_found; ++attempt) {
    for (float& v : y) v = std::rint(random.uniform() * 131072.0F);
    // y[1] changes u a little: a few steps find the integer that is closest to its own threshold.
    float product = 0;
    for (int32_t step = 0; step < 4; ++step) {
      const float n2 = reference_fold(squares({y.begin(), y.end()}));
      product = format::kNormal4Thresholds[1] * (std::sqrt(n2) * format::inv_sqrt(8));
      is_found = product == y[1];
      y[1] = std::rint(product);
    }
  }
  REQUIRE(is_found);
  Tensor keys({1, 1, 1, 8});
  set_rotated(oracle, y, keys.row(0, 0, 0));
  REQUIRE(rotated_key(oracle, keys.row(0, 0, 0)) == std::vector<float>(y.begin(), y.end()));
  oracle.encode(keys);
  CHECK(code_at(oracle.record(0, 0).codes, 3, 8, 1) == 1);  // above the first threshold only
}

TEST_CASE("encode: a single coordinate gives equal magnitudes and plain factors") {
  // d = 64: |y| = 1 everywhere, u = 8 * (1/8) = 1, three of the thresholds are below it.
  Oracle oracle(geometry_of(64), 1);
  Tensor keys({1, 1, 1, 64});
  keys.row(0, 0, 0)[3] = 1.0F;
  oracle.encode(keys);
  const auto record = oracle.record(0, 0);
  for (int32_t j = 0; j < 64; ++j) CHECK(code_at(record.codes, 3, 64, j) == 3);
  CHECK(record.factors[0] == format::float_to_bf16(1.0F / 87.0F));
  CHECK(format::bf16_to_float(record.vote_factor) == 1.0F);
}

TEST_CASE("encode: zero keys have codes and factors 0 and all sign bits set") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const float zero : {0.0F, -0.0F}) {
      CAPTURE(codec);
      Oracle oracle(geometry_of(24, 0, codec), 1);
      Tensor keys({1, 1, 1, 24});
      std::fill(keys.data().begin(), keys.data().end(), zero);
      CHECK(oracle.encode(keys) == std::vector<int64_t>{-1});
      const auto record = oracle.record(0, 0);
      for (const uint8_t byte : record.signs) CHECK(byte == 0xff);
      for (const uint8_t byte : record.codes) CHECK(byte == 0);
      for (const uint16_t factor : record.factors) CHECK(factor == 0);
      CHECK(record.vote_factor == 0);
      CHECK(oracle.good_counts[0] == 1);
    }
  }
}

TEST_CASE("encode: a key whose squares underflow is a zero key with its own signs") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4}) {
    for (const float size : {1e-24F, 1e-40F}) {
      CAPTURE(size);
      Oracle oracle(geometry_of(24, 0, codec), 1);
      Tensor keys({1, 1, 1, 24});
      keys.row(0, 0, 0)[0] = size;
      keys.row(0, 0, 0)[20] = -size;
      oracle.encode(keys);
      const auto record = oracle.record(0, 0);
      const auto y = rotated_key(oracle, keys.row(0, 0, 0));
      int32_t positive = 0;
      for (int32_t j = 0; j < 24; ++j) {
        CHECK(code_at(record.signs, 1, 24, j) == (y[static_cast<size_t>(j)] >= 0 ? 1 : 0));
        positive += y[static_cast<size_t>(j)] >= 0 ? 1 : 0;
      }
      CHECK(positive < 24);
      for (const uint8_t byte : record.codes) CHECK(byte == 0);
      for (const uint16_t factor : record.factors) CHECK(factor == 0);
    }
  }
}

TEST_CASE(
    "encode: a polar4 subspace whose squares underflow has codes and factor 0, the others not") {
  Oracle oracle(geometry_of(16, 0, PKV_CODEC_POLAR4), 1);
  Tensor keys({1, 1, 1, 16});
  for (int32_t j = 0; j < 16; ++j) {
    // y = 8 in coordinate 0 and 0 elsewhere: FWHT(y) is 8 everywhere.
    keys.row(0, 0, 0)[j] = oracle.signs_1[static_cast<size_t>(j)] * 0.5F;
  }
  oracle.encode(keys);
  const auto record = oracle.record(0, 0);
  CHECK(record.factors[0] != 0);
  CHECK(record.factors[1] == 0);
  CHECK(code_at(record.codes, 3, 16, 0) == 7);
  for (int32_t j = 1; j < 16; ++j) CHECK(code_at(record.codes, 3, 16, j) == 0);
}

TEST_CASE("encode: bad keys are zero records with NaN factors, and are not counted") {
  const float bad[] = {test::kNan, test::kInf, -test::kInf, 1e19F, 3e38F};
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4}) {
    for (const int32_t d : {16, 24}) {
      CAPTURE(codec);
      CAPTURE(d);
      pkv_geometry geometry = geometry_of(d, 8, codec, PKV_VOTE_TIER);
      geometry.value_norm = 1;
      geometry = with_sketch(geometry, 4);
      Oracle oracle(geometry, 16);
      Tensor keys = Tensor::random({1, 1, 7, d}, 9);
      Tensor values = Tensor::random({1, 1, 7, 8}, 10);
      for (int64_t t = 1; t < 6; ++t) {
        for (int32_t j = 0; j < d; ++j) {
          // the huge ones in every coordinate, the others in the last one only
          if (t > 3 || j == d - 1) keys.row(0, 0, t)[j] = bad[t - 1];
        }
      }
      CHECK(oracle.encode(keys.view(), values.view(), 3) == std::vector<int64_t>{4});
      for (int64_t t = 1; t < 6; ++t) {
        const auto record = oracle.record(0, 3 + t);
        for (const auto* plane :
             {&record.signs, &record.codes, &record.value_signs, &record.value_codes}) {
          for (const uint8_t byte : *plane) CHECK(byte == 0);
        }
        for (const uint16_t factor : record.factors) CHECK(factor == 0x7fc0);
        CHECK(record.value_factor == 0x7fc0);
        CHECK(record.value_norm == 0x7fc0);
      }
      CHECK(oracle.good_counts[0] == 2);
      for (int32_t b = 0; b < d / 8; ++b) {
        int32_t counted = 0;
        for (int32_t p = 0; p < 256; ++p) {
          counted += oracle.occupancy[static_cast<size_t>(b * 256 + p)];
        }
        CHECK(counted == 2);
      }
      for (int32_t j = 0; j < 8; ++j) {
        CHECK(oracle.value_sums[static_cast<size_t>(j)] ==
              static_cast<double>(values.row(0, 0, 0)[j]) +
                  static_cast<double>(values.row(0, 0, 6)[j]));
      }
    }
  }
}

TEST_CASE("encode: a bad value makes the key bad") {
  for (const float bad : {test::kNan, test::kInf, 1e19F}) {
    for (const int32_t sketch_bits : {0, 2}) {
      CAPTURE(bad);
      Oracle oracle(with_sketch(geometry_of(16, 8), sketch_bits), 2);
      Tensor keys = Tensor::random({1, 1, 2, 16}, 11);
      Tensor values = Tensor::random({1, 1, 2, 8}, 12);
      for (int32_t j = 0; j < 8; ++j) values.row(0, 0, 1)[j] = bad;
      CHECK(oracle.encode(keys, values) == std::vector<int64_t>{1});
      CHECK(oracle.record(0, 1).vote_factor == 0x7fc0);
      CHECK(oracle.record(0, 0).vote_factor != 0x7fc0);
    }
  }
}

TEST_CASE("encode: the value sketch is the quantised value about its centre") {
  for (const int32_t bits : {2, 4}) {
    CAPTURE(bits);
    pkv_geometry geometry = with_sketch(geometry_of(16, 24), bits);
    geometry.value_norm = 1;
    Oracle oracle(geometry, 8);
    fill_codec(oracle, 13);
    Tensor keys = Tensor::random({1, 1, 8, 16}, 14);
    Tensor values = Tensor::random({1, 1, 8, 24}, 15);
    for (int32_t j = 0; j < 24; ++j) {  // token 7: exactly the centre
      values.row(0, 0, 7)[j] = oracle.value_center[static_cast<size_t>(j)];
    }
    oracle.encode(keys, values);
    for (int64_t t = 0; t < 8; ++t) {
      const auto record = oracle.record(0, t);
      const std::vector<float> v(values.row(0, 0, t), values.row(0, 0, t) + 24);
      std::vector<float> y;
      for (size_t j = 0; j < 24; ++j) y.push_back(v[j] - oracle.value_center[j]);
      cpu_ref::rotate(cpu_ref::value_rotation(oracle.codec()), y.data());
      const float n2 = reference_fold(squares(y));
      const float u = std::sqrt(n2) * format::inv_sqrt(24);
      std::vector<float> terms;
      for (int32_t j = 0; j < 24; ++j) {
        const float magnitude = std::fabs(y[static_cast<size_t>(j)]);
        const int32_t code = bits == 2 ? count_below(&format::kNormal2Threshold, 1, u, magnitude)
                                       : count_below(format::kNormal4Thresholds, 7, u, magnitude);
        CHECK(code_at(record.value_codes, bits - 1, 24, j) == code);
        CHECK(code_at(record.value_signs, 1, 24, j) == (y[static_cast<size_t>(j)] >= 0 ? 1 : 0));
        const float level = bits == 2 ? format::kNormal2Levels[code]
                                      : static_cast<float>(format::kScalar4Levels[code]);
        terms.push_back(level * magnitude);
      }
      const uint16_t factor =
          n2 == 0 ? uint16_t{0} : format::float_to_bf16(n2 / reference_fold(terms));
      CHECK(record.value_factor == factor);
      CHECK((n2 == 0) == (t == 7));
      CHECK(record.value_norm == format::float_to_bf16(std::sqrt(reference_fold(squares(v)))));
    }
  }
}

TEST_CASE(
    "encode: with a stride only its multiples carry a sketch, the rest of a record is the same") {
  for (const int32_t stride : {2, 16, 65536}) {
    CAPTURE(stride);
    Oracle every(with_sketch(geometry_of(16, 24), 4), 40);
    Oracle some(with_sketch(geometry_of(16, 24), 4, stride), 40);
    fill_codec(every, 13);
    fill_codec(some, 13);
    Tensor keys = Tensor::random({1, 1, 33, 16}, 14);
    Tensor values = Tensor::random({1, 1, 33, 24}, 15);
    every.encode(keys.view(), values.view(), 5);
    some.encode(keys.view(), values.view(), 5);
    for (int64_t t = 5; t < 38; ++t) {
      CAPTURE(t);
      const auto expected = every.record(0, t);
      const auto record = some.record(0, t);
      CHECK(record.signs == expected.signs);
      CHECK(record.codes == expected.codes);
      CHECK(record.factors == expected.factors);
      CHECK(record.vote_factor == expected.vote_factor);
      if (t % stride != 0) continue;
      CHECK(record.value_signs == expected.value_signs);
      CHECK(record.value_codes == expected.value_codes);
      CHECK(record.value_factor == expected.value_factor);
    }
    CHECK(some.value_sums == every.value_sums);
    // Sketches outside 5 .. 37 were not written.
    const cpu_ref::RecordRow row(some.geometry, some.store, 0, 0);
    for (int64_t t = 0; t < 40; t += stride) {
      CHECK((*row.value_factor(t) == 0xA5A5) == (t < 5 || t >= 38));
    }
  }
}

TEST_CASE("encode: a value too large for the sketch alone makes the key bad where one is due") {
  // 8 numbers of 3.5e18: their squares sum to 9.8e37; rotated, gain 8, to more than fp32 holds.
  Oracle oracle(with_sketch(geometry_of(16, 8), 4, 4), 12);
  Tensor keys = Tensor::random({1, 1, 12, 16}, 14);
  Tensor values({1, 1, 12, 8});
  std::fill(values.data().begin(), values.data().end(), 3.5e18F);
  CHECK(oracle.encode(keys, values) == std::vector<int64_t>{0});
  for (int64_t t = 0; t < 12; ++t) {
    CHECK((oracle.record(0, t).vote_factor == 0x7fc0) == (t % 4 == 0));
  }
  CHECK(oracle.record(0, 4).value_factor == 0x7fc0);
  CHECK(oracle.good_counts[0] == 9);
}

std::vector<uint8_t> store_bytes(const Oracle& oracle, int64_t rows) {
  const auto* base = static_cast<const uint8_t*>(oracle.store.base);
  return {base, base + rows * oracle.store.row_bytes};
}

void check_pieces(int32_t stride) {
  const pkv_geometry geometry =
      with_sketch(geometry_of(24, 16, PKV_CODEC_POLAR4, PKV_VOTE_TIER, 2), 2, stride);
  Oracle whole(geometry, 9, 3);
  Oracle pieces(geometry, 9, 3);
  Tensor keys = Tensor::random({3, 2, 9, 24}, 16);
  Tensor values = Tensor::random({3, 2, 9, 16}, 17);
  keys.row(1, 1, 4)[0] = test::kNan;
  whole.encode(keys, values);

  for (const auto& [start, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {5, 4}}) {
    Tensor some_keys({3, 2, count, 24});
    Tensor some_values({3, 2, count, 16});
    const int32_t order[] = {2, 0, 1};
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t t = 0; t < count; ++t) {
          std::copy_n(keys.row(order[i], head, start + t), 24, some_keys.row(i, head, t));
          std::copy_n(values.row(order[i], head, start + t), 16, some_values.row(i, head, t));
        }
      }
    }
    const auto first_bad = pieces.encode(some_keys.view(), some_values.view(), start, {2, 0, 1});
    CHECK(first_bad == std::vector<int64_t>{-1, -1, -1, -1, -1, start == 4 ? 4 : -1});
  }
  CHECK(store_bytes(whole, 6) == store_bytes(pieces, 6));
  CHECK(whole.occupancy == pieces.occupancy);
  CHECK(whole.value_sums == pieces.value_sums);
  CHECK(whole.good_counts == pieces.good_counts);
  CHECK(whole.good_counts == std::vector<int64_t>{9, 9, 9, 8, 9, 9});
}

TEST_CASE("encode: appending in pieces equals appending at once, in any order of sequences") {
  for (const int32_t stride : {1, 3, 16}) {
    CAPTURE(stride);
    check_pieces(stride);
  }
}

TEST_CASE("encode: half types and strides give the records of the same numbers") {
  Tensor keys = Tensor::random({1, 2, 5, 16}, 18);
  // The same numbers [t, h, 2d] apart, backwards in t, as bf16 and f16.
  for (const pkv_dtype dtype : {PKV_DTYPE_BF16, PKV_DTYPE_F16}) {
    std::vector<uint16_t> bits(5 * 2 * 32, 0x7fc0);
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t t = 0; t < 5; ++t) {
        for (int32_t j = 0; j < 16; ++j) {
          float& x = keys.row(0, head, t)[j];
          const bool is_f16 = dtype == PKV_DTYPE_F16;
          const uint16_t half = is_f16 ? format::float_to_f16(x) : format::float_to_bf16(x);
          x = is_f16 ? format::f16_to_float(half) : format::bf16_to_float(half);
          bits[static_cast<size_t>(((4 - t) * 2 + head) * 32 + 16 + j)] = half;
        }
      }
    }
    pkv_tensor view = keys.view();
    const int64_t strides[] = {0, 32, -64, 1};
    view.data = bits.data();
    view.byte_offset = 2 * (4 * 64 + 16);
    view.strides = strides;
    view.dtype = dtype;
    Oracle dense(geometry_of(16, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 5);
    Oracle strided(geometry_of(16, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), 5);
    dense.encode(keys);
    strided.encode(view, pkv_tensor{});
    CHECK(store_bytes(dense, 2) == store_bytes(strided, 2));
    CHECK(dense.good_counts == std::vector<int64_t>{5, 5});
  }
}

TEST_CASE("encode: an empty batch and empty entries change nothing") {
  Oracle oracle(geometry_of(16), 4);
  const auto before = store_bytes(oracle, 1);
  Tensor none({0, 1, 4, 16});
  CHECK(oracle.encode(none).empty());
  Tensor empty({1, 1, 0, 16});
  CHECK(oracle.encode(empty) == std::vector<int64_t>{-1});
  CHECK(store_bytes(oracle, 1) == before);
}

}  // namespace
}  // namespace pkv
