// docs/algorithm.md, section 8.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/format/half.h"
#include "core/format/levels.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/cpu_ref/reference.h"

namespace pkv {
namespace {

using test::Candidates;
using test::geometry_of;
using test::kInf;
using test::kNan;
using test::log_sum_exp;
using test::Oracle;
using test::Tensor;

constexpr int32_t kD = 16;
constexpr int32_t kDv = 24;
constexpr int32_t kHeads = 4;  // 2 KV heads, G = 2
constexpr int32_t kKv = 2;
constexpr int32_t kBatch = 2;
constexpr int32_t kN = 12;  // indexed keys
constexpr int32_t kK = 5;   // slots
constexpr int32_t kC = 7;   // candidates
constexpr float kScale = 0.3F;

// What a scene's tail is made of.
struct Shape {
  int32_t sketch_bits = 0;
  int32_t stride = 1;
  int32_t samples = 512;  // T
  int32_t n = kN;         // kC: every key of rows 0 to 2 is a candidate
};

// 6.4, written a second time.
std::vector<int64_t> sample_positions(const Shape& shape) {
  const int64_t p = shape.sketch_bits == 0 ? 1 : shape.stride;
  int64_t m = 0;
  while (m * p < shape.n) ++m;
  const int64_t c = m < shape.samples ? m : shape.samples;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < c; ++i) positions.push_back(p * (i * m / c));
  return positions;
}

// Two sequences with a sink of 4, a dense tail of up to 6, and indexed keys of which 7 are
// candidates and up to 5 fetched. Everything beyond a length or count is NaN. One key is bad.
struct Scene {
  Shape shape;
  Oracle oracle;
  Tensor queries = Tensor::random({kBatch, kHeads, kD}, 1);
  Tensor keys = Tensor::random({kBatch, kKv, shape.n, kD}, 2);
  Tensor values = Tensor::random({kBatch, kKv, shape.n, kDv}, 3);
  Tensor sink_keys = Tensor::random({kBatch, kKv, 4, kD}, 4);
  Tensor sink_values = Tensor::random({kBatch, kKv, 4, kDv}, 5);
  Tensor tail_keys = Tensor::random({kBatch, kKv, 6, kD}, 6);
  Tensor tail_values = Tensor::random({kBatch, kKv, 6, kDv}, 7);
  std::vector<int64_t> tail_lengths = {6, 3};
  Tensor row_keys = Tensor({kBatch, kKv, kK, kD});
  Tensor row_values = Tensor({kBatch, kKv, kK, kDv});
  std::vector<int32_t> counts = {5, 3, 0, 4};
  std::vector<int32_t> positions;
  Candidates candidates;
  Tensor estimates = Tensor::random({kBatch, kHeads, kC}, 8);
  Tensor sample_estimates;
  std::vector<float> rest_lse;
  Tensor output = Tensor({kBatch, kHeads, kDv});
  std::vector<float> lse = std::vector<float>(kBatch * kHeads, kNan);

  explicit Scene(const Shape& shape_of = {})
      : shape(shape_of),
        oracle(test::with_sketch(geometry_of(kD, kDv, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, kKv),
                                 shape_of.sketch_bits, shape_of.stride),
               shape_of.n, kBatch) {
    test::Random random(9);
    for (float& mu : oracle.value_center) mu = random.uniform();
    if (shape.n == kN) keys.row(0, 0, 2)[1] = kNan;
    oracle.encode(keys, values);
    candidates.stride = kC;
    for (int32_t r = 0; r < kBatch * kKv; ++r) {
      // Candidates 1 + r % 2, 3, .., fetched in an order of their own.
      const int32_t count = r == 3 ? 6 : kC;
      for (int32_t c = 0; c < kC; ++c) {
        const int32_t position = shape.n == kC ? c : c + c / 2 + r % 2;
        candidates.positions.push_back(c < count ? position : -1);
      }
      candidates.counts.push_back(count);
      for (int32_t slot = 0; slot < kK; ++slot) {
        const bool is_used = slot < counts[static_cast<size_t>(r)];
        const int32_t c = (3 * slot + 1) % count;
        const int32_t position = candidates.positions[static_cast<size_t>(r * kC + c)];
        positions.push_back(is_used ? position : -1);
        for (int32_t j = 0; j < kD; ++j) {
          row_keys.row(r / 2, r % 2, slot)[j] =
              is_used ? keys.row(r / 2, r % 2, position)[j] : kNan;
        }
        for (int32_t j = 0; j < kDv; ++j) {
          row_values.row(r / 2, r % 2, slot)[j] =
              is_used ? values.row(r / 2, r % 2, position)[j] : kNan;
        }
      }
    }
    for (int32_t head = 0; head < kKv; ++head) {
      for (int64_t t = tail_lengths[1]; t < 6; ++t) {
        std::fill_n(tail_keys.row(1, head, t), kD, kNan);
        std::fill_n(tail_values.row(1, head, t), kDv, kNan);
      }
    }
    for (int32_t i = 0; i < kBatch * kHeads; ++i) rest_lse.push_back(0.3F * static_cast<float>(i));
    for (int32_t head = 0; head < kHeads; ++head) {  // beyond the count of row 3
      if (head / 2 == 1) estimates.row(1, head)[6] = kNan;
    }
    fill_sample_estimates();
  }

  bool is_bad(int32_t r, int64_t position) const {
    return shape.n == kN && r == 0 && position == 2;
  }

  pkv_attend_args args(int32_t tail) {
    pkv_attend_args args = {};
    args.struct_size = sizeof args;
    args.query_heads = kHeads;
    args.tail = tail;
    args.tail_samples = shape.samples;
    args.part_count = 2;
    args.scale = kScale;
    args.k = kK;
    args.codec = oracle.codec();
    args.batch = oracle.batch_of({shape.n, shape.n});
    args.queries = queries.view();
    args.parts[0].keys = sink_keys.view();
    args.parts[0].values = sink_values.view();
    args.parts[1].keys = tail_keys.view();
    args.parts[1].values = tail_values.view();
    args.parts[1].lengths = tail_lengths.data();
    args.row_keys = row_keys.view();
    args.row_values = row_values.view();
    args.positions = positions.data();
    args.counts = counts.data();
    args.candidates = candidates.positions.data();
    args.candidates_stride = candidates.stride;
    args.candidate_counts = candidates.counts.data();
    args.estimates = estimates.data().data();
    args.rest_lse = rest_lse.data();
    args.sample_estimates = sample_estimates.data().data();
    args.value_sums = oracle.value_sums.data();
    args.good_counts = oracle.good_counts.data();
    args.store = oracle.store;
    args.output = output.view();
    args.lse = lse.data();
    return args;
  }

  void run(int32_t tail) {
    const pkv_attend_args a = args(tail);
    oracle.run(oracle.table->attend, a);
  }

 private:
  // Numbers of their own: nothing says that attend compares them with those of candidates.
  void fill_sample_estimates() {
    sample_estimates = Tensor::random({kBatch, kHeads, shape.samples}, 10);
    const auto taken = sample_positions(shape);
    for (int32_t i = 0; i < kBatch; ++i) {
      for (int32_t head = 0; head < kHeads; ++head) {
        float* row = sample_estimates.row(i, head);
        for (size_t s = 0; s < static_cast<size_t>(shape.samples); ++s) {
          if (s >= taken.size() || is_bad(i * kKv + head / 2, taken[s])) row[s] = kNan;
        }
      }
    }
  }
};

// A token as the definition sees it.
struct Entry {
  long double logit;
  std::vector<long double> value;
};

Entry original(Scene& scene, int32_t i, int32_t head, Tensor& keys, Tensor& values, int64_t t) {
  const int32_t kv_head = head / 2;
  long double dot = 0;
  for (int32_t j = 0; j < kD; ++j) {
    dot += static_cast<long double>(scene.queries.row(i, head)[j]) *
           static_cast<long double>(keys.row(i, kv_head, t)[j]);
  }
  const float* v = values.row(i, kv_head, t);
  return {static_cast<long double>(kScale) * dot, {v, v + kDv}};
}

bool is_fetched(const Scene& scene, int32_t r, int64_t position) {
  const auto* first = scene.positions.data() + static_cast<ptrdiff_t>(r) * kK;
  const auto* last = first + scene.counts[static_cast<size_t>(r)];
  return std::find(first, last, position) != last;
}

bool is_candidate(const Scene& scene, int32_t r, int64_t position) {
  const auto* first = scene.candidates.positions.data() + static_cast<ptrdiff_t>(r) * kC;
  const auto* last = first + scene.candidates.counts[static_cast<size_t>(r)];
  return std::find(first, last, position) != last;
}

// mu_v + unrotate(w_v * sign * a[code]) by the explicit matrix.
std::vector<long double> sketched_value(Scene& scene, int32_t r, int64_t position) {
  const Oracle& oracle = scene.oracle;
  const auto record = scene.oracle.record(r, position);
  const auto rotation =
      test::reference_rotation(kDv, 1, oracle.value_signs_1, oracle.value_signs_2);
  const int32_t bits = oracle.geometry.sketch_bits;
  std::vector<long double> y;
  for (int32_t j = 0; j < kDv; ++j) {
    int32_t code = 0;
    for (int32_t p = 0; p < bits - 1; ++p) {
      code += ((record.value_codes[static_cast<size_t>(p * kDv / 8 + j / 8)] >> (j % 8)) & 1) << p;
    }
    const long double level = bits == 2 ? static_cast<long double>(format::kNormal2Levels[code])
                                        : static_cast<long double>(format::kScalar4Levels[code]);
    const bool is_plus = ((record.value_signs[static_cast<size_t>(j / 8)] >> (j % 8)) & 1) != 0;
    const auto w = static_cast<long double>(format::bf16_to_float(record.value_factor));
    y.push_back(w * (is_plus ? level : -level));
  }
  std::vector<long double> v;
  for (int32_t j = 0; j < kDv; ++j) {
    long double x = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      x += static_cast<long double>(rotation.R[i][static_cast<size_t>(j)]) * y[i];
    }
    const auto mu = oracle.value_center[static_cast<size_t>(r % kKv * kDv + j)];
    v.push_back(static_cast<long double>(mu) + x / static_cast<long double>(rotation.gain));
  }
  return v;
}

std::vector<long double> mean_value(Scene& scene, int32_t r) {
  std::vector<long double> mean(kDv, 0.0L);
  int64_t count = 0;
  for (int64_t t = 0; t < scene.shape.n; ++t) count += scene.is_bad(r, t) ? 0 : 1;
  for (int64_t t = 0; t < scene.shape.n; ++t) {
    if (scene.is_bad(r, t)) continue;
    for (int32_t j = 0; j < kDv; ++j) {
      mean[static_cast<size_t>(j)] +=
          static_cast<long double>(scene.values.row(r / kKv, r % kKv, t)[j]) /
          static_cast<long double>(count);
    }
  }
  return mean;
}

// l * v_hat + (1 - l) * v_mean
std::vector<long double> rest_value(Scene& scene, int32_t tail, int32_t i, int32_t head) {
  const int32_t r = i * kKv + head / 2;
  const std::vector<long double> mean = mean_value(scene, r);
  if (tail == PKV_TAIL_MEAN) return mean;
  const auto taken = sample_positions(scene.shape);
  std::vector<long double> v_hat(kDv, 0.0L);
  long double sum = 0;
  long double squares = 0;
  for (size_t s = 0; s < taken.size(); ++s) {
    const float estimate = scene.sample_estimates.row(i, head)[s];
    if (std::isnan(estimate)) continue;
    const bool is_left_out = tail == PKV_TAIL_SAMPLED ? is_fetched(scene, r, taken[s])
                                                      : is_candidate(scene, r, taken[s]);
    if (is_left_out) continue;
    const long double o =
        std::exp(static_cast<long double>(kScale) * static_cast<long double>(estimate));
    const auto x = sketched_value(scene, r, taken[s]);
    for (size_t j = 0; j < kDv; ++j) v_hat[j] += o * x[j];
    sum += o;
    squares += o * o;
  }
  if (sum == 0) return mean;
  const long double N = sum * sum / squares;
  const bool is_whole = tail == PKV_TAIL_SKETCH && scene.shape.n <= scene.shape.samples;
  const long double l = is_whole ? 1.0L : N / (N + 32.0L);
  std::vector<long double> value;
  for (size_t j = 0; j < kDv; ++j) value.push_back(l * v_hat[j] / sum + (1.0L - l) * mean[j]);
  return value;
}

std::vector<Entry> entries_of(Scene& scene, int32_t tail, int32_t i, int32_t head) {
  const int32_t r = i * kKv + head / 2;
  std::vector<Entry> entries;
  for (int64_t t = 0; t < 4; ++t) {
    entries.push_back(original(scene, i, head, scene.sink_keys, scene.sink_values, t));
  }
  for (int64_t t = 0; t < scene.tail_lengths[static_cast<size_t>(i)]; ++t) {
    entries.push_back(original(scene, i, head, scene.tail_keys, scene.tail_values, t));
  }
  for (int64_t slot = 0; slot < scene.counts[static_cast<size_t>(r)]; ++slot) {
    entries.push_back(original(scene, i, head, scene.keys, scene.values,
                               scene.positions[static_cast<size_t>(r * kK + slot)]));
  }
  if (tail == PKV_TAIL_DROP) return entries;

  std::vector<long double> masses = {
      static_cast<long double>(scene.rest_lse[static_cast<size_t>(i * kHeads + head)])};
  for (int32_t c = 0; c < scene.candidates.counts[static_cast<size_t>(r)]; ++c) {
    const int32_t position = scene.candidates.positions[static_cast<size_t>(r * kC + c)];
    if (is_fetched(scene, r, position)) continue;
    const long double logit = static_cast<long double>(kScale) *
                              static_cast<long double>(scene.estimates.row(i, head)[c]);
    if (tail == PKV_TAIL_SKETCH) {
      entries.push_back({logit, sketched_value(scene, r, position)});
    } else {
      masses.push_back(logit);
    }
  }
  entries.push_back({log_sum_exp(masses), rest_value(scene, tail, i, head)});
  return entries;
}

void check_all(Scene& scene, int32_t tail) {
  for (int32_t i = 0; i < kBatch; ++i) {
    for (int32_t head = 0; head < kHeads; ++head) {
      CAPTURE(i);
      CAPTURE(head);
      const auto entries = entries_of(scene, tail, i, head);
      std::vector<long double> logits;
      for (const Entry& entry : entries) logits.push_back(entry.logit);
      const long double lse = log_sum_exp(logits);
      CHECK(static_cast<double>(scene.lse[static_cast<size_t>(i * kHeads + head)]) ==
            doctest::Approx(static_cast<double>(lse)).epsilon(1e-6));
      for (int32_t j = 0; j < kDv; ++j) {
        long double expected = 0;
        for (const Entry& entry : entries) {
          expected += std::exp(entry.logit - lse) * entry.value[static_cast<size_t>(j)];
        }
        // Computed in double, rounded once: 2^-24 of a value of at most 4, and the matrix's c
        // against its fp32.
        CHECK(std::abs(static_cast<double>(scene.output.row(i, head)[j]) -
                       static_cast<double>(expected)) < 1e-6);
      }
    }
  }
}

TEST_CASE("attend drop: the softmax over parts and counted rows, nothing beyond is loaded") {
  Scene scene;
  scene.run(PKV_TAIL_DROP);
  check_all(scene, PKV_TAIL_DROP);
}

TEST_CASE("attend mean: the rest and the unfetched candidates are one token with the mean value") {
  Scene scene;
  scene.run(PKV_TAIL_MEAN);
  check_all(scene, PKV_TAIL_MEAN);
}

TEST_CASE("attend sampled: that token leans towards the samples as far as their number carries") {
  for (const Shape& shape :
       {Shape{4}, Shape{4, 1, 12}, Shape{4, 1, 11}, Shape{4, 1, 5}, Shape{4, 4}, Shape{4, 4, 2},
        Shape{4, 5, 3}, Shape{2, 2, 4}, Shape{4, 2, 1}}) {
    CAPTURE(shape.sketch_bits);
    CAPTURE(shape.stride);
    CAPTURE(shape.samples);
    Scene scene(shape);
    scene.run(PKV_TAIL_SAMPLED);
    check_all(scene, PKV_TAIL_SAMPLED);
  }
}

TEST_CASE("attend sampled: without a sample that was not fetched the value is the mean") {
  Scene scene({4, 16});  // one sample: position 0, a fetched candidate of row 0
  REQUIRE(is_fetched(scene, 0, 0));
  scene.run(PKV_TAIL_SAMPLED);
  check_all(scene, PKV_TAIL_SAMPLED);
  const auto expected = scene.output.data();
  scene.run(PKV_TAIL_MEAN);
  for (size_t j = 0; j < 2 * kDv; ++j) CHECK(scene.output.data()[j] == expected[j]);
  CHECK_FALSE(std::equal(expected.begin() + 2 * kDv, expected.end(),
                         scene.output.data().begin() + 2 * kDv));
  // Samples at bad keys alone are none either.
  std::fill(scene.sample_estimates.data().begin(), scene.sample_estimates.data().end(), kNan);
  const auto mean = scene.output.data();
  scene.run(PKV_TAIL_SAMPLED);
  CHECK(scene.output.data() == mean);
}

TEST_CASE("attend: every key a candidate, no mass of the rest") {
  for (const int32_t tail : {PKV_TAIL_MEAN, PKV_TAIL_SAMPLED, PKV_TAIL_SKETCH}) {
    for (const int32_t samples : {512, 3}) {
      CAPTURE(tail);
      CAPTURE(samples);
      Scene scene({4, 1, samples, kC});
      for (int32_t head = 0; head < kBatch * kHeads; ++head) {
        if (head < 6) scene.rest_lse[static_cast<size_t>(head)] = -kInf;  // not row 3
      }
      scene.run(tail);
      check_all(scene, tail);
    }
  }
}

TEST_CASE("attend sketch: unfetched candidates are tokens, the rest is all keys or their samples") {
  for (const Shape& shape :
       {Shape{2}, Shape{4}, Shape{4, 1, 12}, Shape{4, 1, 11}, Shape{2, 1, 3}, Shape{4, 1, 1}}) {
    CAPTURE(shape.sketch_bits);
    CAPTURE(shape.samples);
    Scene scene(shape);
    scene.run(PKV_TAIL_SKETCH);
    check_all(scene, PKV_TAIL_SKETCH);
  }
}

TEST_CASE("attend sketch: k = 0 needs no rows") {
  for (const int32_t tail : {PKV_TAIL_SKETCH, PKV_TAIL_SAMPLED}) {
    Scene scene({4});
    std::fill(scene.counts.begin(), scene.counts.end(), 0);
    auto args = scene.args(tail);
    args.k = 0;
    args.row_keys = args.row_values = pkv_tensor{};
    args.positions = args.counts = nullptr;
    scene.oracle.run(scene.oracle.table->attend, args);
    check_all(scene, tail);
  }
}

TEST_CASE("attend: estimates far above every exact logit do not overflow") {
  for (const int32_t tail : {PKV_TAIL_MEAN, PKV_TAIL_SKETCH, PKV_TAIL_SAMPLED}) {
    Scene scene({2});
    for (float& estimate : scene.estimates.data()) estimate += 1e4F;
    for (float& estimate : scene.sample_estimates.data()) estimate += 1e4F;
    scene.run(tail);
    check_all(scene, tail);
    // 1e30 is the limit of an estimate.
    for (float& estimate : scene.estimates.data()) estimate = 1e30F;
    for (float& estimate : scene.sample_estimates.data()) {
      if (!std::isnan(estimate)) estimate = 1e30F;
    }
    scene.run(tail);
    for (const float x : scene.output.data()) CHECK(std::isfinite(x));
  }
}

TEST_CASE("attend: a row of weight 0 is not read") {
  Scene scene;
  // One key of the sink gives a logit about 1e5 above the others, whose weights are 0 in double.
  for (int32_t i = 0; i < kBatch; ++i) {
    for (int32_t head = 0; head < kHeads; head += 2) {
      for (int32_t j = 0; j < kD; ++j) {
        scene.queries.row(i, head + 1)[j] = scene.queries.row(i, head)[j];
        scene.sink_keys.row(i, head / 2, 0)[j] = 1e5F * scene.queries.row(i, head)[j];
      }
      scene.sink_values.row(i, head / 2, 1)[0] = kInf;
      scene.tail_values.row(i, head / 2, 0)[3] = kNan;
    }
  }
  const auto args = scene.args(PKV_TAIL_DROP);
  scene.oracle.run(scene.oracle.table->attend, args);
  for (int32_t i = 0; i < kBatch; ++i) {
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int32_t j = 0; j < kDv; ++j) {
        CHECK(scene.output.row(i, head)[j] == scene.sink_values.row(i, head / 2, 0)[j]);
      }
    }
  }
}

TEST_CASE("attend: nothing to attend to is output 0 and lse -inf") {
  for (const int32_t tail : {PKV_TAIL_DROP, PKV_TAIL_MEAN, PKV_TAIL_SKETCH, PKV_TAIL_SAMPLED}) {
    CAPTURE(tail);
    Scene scene({2});
    std::fill(scene.counts.begin(), scene.counts.end(), 0);
    std::fill(scene.candidates.counts.begin(), scene.candidates.counts.end(), 0);
    std::fill(scene.rest_lse.begin(), scene.rest_lse.end(), -kInf);
    std::fill(scene.oracle.good_counts.begin(), scene.oracle.good_counts.end(), 0);
    std::fill(scene.output.data().begin(), scene.output.data().end(), 5.0F);
    auto args = scene.args(tail);
    args.part_count = 0;
    scene.oracle.run(scene.oracle.table->attend, args);
    for (const float x : scene.output.data()) {
      CHECK(x == 0.0F);
      CHECK_FALSE(std::signbit(x));
    }
    for (const float x : scene.lse) CHECK(x == -kInf);
  }
}

TEST_CASE("attend: a bad query gives 0 and -inf to its whole group, others are untouched") {
  Scene scene;
  const auto args = scene.args(PKV_TAIL_MEAN);
  scene.oracle.run(scene.oracle.table->attend, args);
  const auto output = scene.output.data();
  const auto lse = scene.lse;
  scene.queries.row(1, 2)[0] = kNan;  // KV head 1 of sequence 1
  scene.oracle.run(scene.oracle.table->attend, args);
  for (size_t head = 0; head < kBatch * kHeads; ++head) {
    const bool is_bad = head == 6 || head == 7;
    CHECK(scene.lse[head] == (is_bad ? -kInf : lse[head]));
    for (size_t j = 0; j < kDv; ++j) {
      CHECK(scene.output.data()[head * kDv + j] == (is_bad ? 0.0F : output[head * kDv + j]));
    }
  }
}

TEST_CASE("attend: outputs of half types are the fp32 outputs rounded, lse is optional") {
  Scene scene;
  auto args = scene.args(PKV_TAIL_MEAN);
  scene.oracle.run(scene.oracle.table->attend, args);
  for (const pkv_dtype dtype : {PKV_DTYPE_F16, PKV_DTYPE_BF16}) {
    std::vector<uint16_t> half(scene.output.data().size(), 0xffff);
    args.output.data = half.data();
    args.output.dtype = dtype;
    args.lse = nullptr;
    scene.oracle.run(scene.oracle.table->attend, args);
    for (size_t i = 0; i < half.size(); ++i) {
      const float x = scene.output.data()[i];
      CHECK(half[i] ==
            (dtype == PKV_DTYPE_F16 ? format::float_to_f16(x) : format::float_to_bf16(x)));
    }
  }
}

TEST_CASE("attend: an empty batch") {
  Scene scene;
  auto args = scene.args(PKV_TAIL_MEAN);
  args.batch = scene.oracle.batch_of({});
  scene.oracle.run(scene.oracle.table->attend, args);
  CHECK(std::isnan(scene.lse[0]));
}

}  // namespace
}  // namespace pkv
