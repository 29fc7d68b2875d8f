// docs/algorithm.md, section 6.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu_ref/rotate.h"
#include "core/format/half.h"
#include "core/format/levels.h"
#include "tests/unit/cpu_ref/oracle.h"
#include "tests/unit/cpu_ref/reference.h"

namespace pkv {
namespace {

using test::all_candidates;
using test::Candidates;
using test::geometry_of;
using test::Hits;
using test::kInf;
using test::log_sum_exp;
using test::Oracle;
using test::reference_fold;
using test::Tensor;
using test::with_sketch;

void fill_codec(Oracle& oracle, uint32_t seed) {
  test::Random random(seed);
  for (float& mu : oracle.center) mu = random.uniform();
  for (float& s : oracle.balance) s = 1.0F + 0.5F * random.uniform();
}

// q'_g of KV head 0.
std::vector<float> rotated_query(Oracle& oracle, const float* q) {
  const auto codec = oracle.codec();
  std::vector<float> y;
  for (int32_t j = 0; j < oracle.geometry.head_dim; ++j) y.push_back(q[j] * codec.inv_balance[j]);
  cpu_ref::rotate(cpu_ref::key_rotation(codec), y.data());
  return y;
}

float bias_of(Oracle& oracle, const float* q) {
  std::vector<float> terms;
  for (int32_t j = 0; j < oracle.geometry.head_dim; ++j) {
    terms.push_back(q[j] * oracle.center[static_cast<size_t>(j)]);
  }
  return reference_fold(terms);
}

// sign_j * level[code_j] of a record.
std::vector<long double> levels_of(const Oracle& oracle, const Oracle::Record& record) {
  const int32_t d = oracle.geometry.head_dim;
  const int32_t planes = oracle.geometry.codec == PKV_CODEC_SCALAR5 ? 4 : 3;
  std::vector<long double> result;
  for (int32_t j = 0; j < d; ++j) {
    int32_t code = 0;
    for (int32_t p = 0; p < planes; ++p) {
      code += ((record.codes[static_cast<size_t>(p * d / 8 + j / 8)] >> (j % 8)) & 1) << p;
    }
    long double level = 0;
    switch (oracle.geometry.codec) {
      case PKV_CODEC_POLAR4: level = format::kPolarLevels[code]; break;
      case PKV_CODEC_SCALAR4: level = format::kScalar4Levels[code]; break;
      default: level = format::kScalar5Levels[code]; break;
    }
    const bool is_plus = ((record.signs[static_cast<size_t>(j / 8)] >> (j % 8)) & 1) != 0;
    result.push_back(is_plus ? level : -level);
  }
  return result;
}

TEST_CASE("rerank: estimates are the product of the query with the decoded record") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4, PKV_CODEC_SCALAR5}) {
    for (const int32_t d : {8, 24, 128, 576}) {
      CAPTURE(codec);
      CAPTURE(d);
      const int32_t n = 20;
      Oracle oracle(geometry_of(d, 0, codec), n);
      fill_codec(oracle, 1);
      Tensor keys = Tensor::random({1, 1, n, d}, 2);
      oracle.encode(keys);
      Tensor queries = Tensor::random({1, 3, d}, 3);
      const Candidates candidates = all_candidates(n);
      const Hits hits = oracle.rerank(oracle.rerank_args(queries, {n}, candidates, 4));
      const bool is_power = (d & (d - 1)) == 0;
      const long double gain = is_power ? d : 1;
      for (int32_t g = 0; g < 3; ++g) {
        const auto y = rotated_query(oracle, queries.row(0, g));
        const float bias = bias_of(oracle, queries.row(0, g));
        float M = 0;
        for (const float v : y) M = std::max(M, std::fabs(v));
        for (int32_t t = 0; t < n; ++t) {
          const auto record = oracle.record(0, t);
          const auto level = levels_of(oracle, record);
          const float w = format::bf16_to_float(record.factors[0]);
          long double with_integers = 0;  // the sum that section 6.1 writes
          long double with_query = 0;     // of the rotated query itself
          long double magnitude = 0;
          long double level_sum = 0;
          for (size_t j = 0; j < y.size(); ++j) {
            const float factor =
                codec == PKV_CODEC_POLAR4 ? format::bf16_to_float(record.factors[j / 8]) : w;
            const long double weight = level[j] * static_cast<long double>(factor) / gain;
            const float c = std::rint(32512.0F * y[j] / M);
            with_integers +=
                weight * static_cast<long double>(c) * static_cast<long double>(M) / 32512.0L;
            with_query += weight * static_cast<long double>(y[j]);
            magnitude += std::fabs(weight * static_cast<long double>(y[j]));
            level_sum += std::fabs(weight);
          }
          magnitude += std::fabs(static_cast<long double>(bias));
          const auto est = static_cast<long double>(hits.estimates[static_cast<size_t>(g * n + t)]);
          const long double expected = (codec == PKV_CODEC_POLAR4 ? with_query : with_integers) +
                                       static_cast<long double>(bias);
          // Six fp32 roundings at most: 6 * 2^-24 < 1e-6.
          CHECK(std::fabs(est - expected) <= 1e-6L * magnitude);
          // Integers are within half a step of M / 32512 of the query.
          CHECK(std::fabs(est - with_query - static_cast<long double>(bias)) <=
                0.51L * level_sum * static_cast<long double>(M) / 32512.0L + 1e-6L * magnitude);
        }
      }
    }
  }
}

TEST_CASE("rerank: a zero key scores its centre, a zero query 0") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4}) {
    Oracle oracle(geometry_of(16, 0, codec), 2);
    fill_codec(oracle, 4);
    Tensor keys({1, 1, 2, 16});
    std::copy(oracle.center.begin(), oracle.center.end(), keys.row(0, 0, 0));
    std::fill_n(keys.row(0, 0, 1), 16, 1.0F);
    oracle.encode(keys);
    Tensor queries = Tensor::random({1, 1, 16}, 5);
    const Candidates candidates = all_candidates(2);
    Hits hits = oracle.rerank(oracle.rerank_args(queries, {2}, candidates, 2));
    CHECK(hits.estimates[0] == bias_of(oracle, queries.row(0, 0)));
    std::fill_n(queries.row(0, 0), 16, 0.0F);
    hits = oracle.rerank(oracle.rerank_args(queries, {2}, candidates, 2));
    CHECK(hits.estimates == std::vector<float>{0, 0});
    CHECK(hits.positions == std::vector<int32_t>{0, 1});
  }
}

TEST_CASE("rerank: estimates are limited to 1e30, infinite minus infinite is -1e30") {
  for (const int32_t codec : {PKV_CODEC_POLAR4, PKV_CODEC_SCALAR4}) {
    Oracle oracle(geometry_of(8, 0, codec), 1);
    Tensor keys = Tensor::random({1, 1, 1, 8}, 6);
    oracle.encode(keys);
    Tensor queries({1, 3, 8});
    for (int32_t g = 0; g < 3; ++g) queries.row(0, g)[0] = queries.row(0, g)[4] = 1e17F;
    queries.row(0, 1)[0] = queries.row(0, 1)[4] = -1e17F;
    queries.row(0, 2)[4] = -1e17F;
    oracle.center.assign(8, 3e38F);  // after the encode: b_g = inf, -inf, NaN
    const Candidates candidates = all_candidates(1);
    const Hits hits = oracle.rerank(oracle.rerank_args(queries, {1}, candidates, 1));
    CHECK(hits.estimates == std::vector<float>{1e30F, -1e30F, -1e30F});
    CHECK(hits.counts[0] == 1);
    CHECK(std::isfinite(hits.scores[0]));
  }
}

struct Ranked {
  Oracle oracle;
  Tensor queries;
  Candidates candidates;

  static constexpr int32_t kN = 60;
  static constexpr int32_t kHeads = 3;

  explicit Ranked(pkv_geometry geometry)
      : oracle(geometry, kN), queries(Tensor::random({1, kHeads, geometry.head_dim}, 8)) {
    fill_codec(oracle, 7);
    Tensor keys = Tensor::random({1, 1, kN, geometry.head_dim}, 9);
    Tensor values = Tensor::random({1, 1, kN, 8}, 10);
    std::copy_n(keys.row(0, 0, 5), geometry.head_dim, keys.row(0, 0, 21));  // a tie
    std::fill_n(values.row(0, 0, 12), 8, 0.0F);                             // norm 0
    keys.row(0, 0, 40)[0] = test::kNan;
    if (geometry.value_dim == 0) {
      oracle.encode(keys);
    } else {
      oracle.encode(keys, values);
    }
    for (int32_t t = 0; t < kN; t += 3) candidates.positions.push_back(t);  // 0, 3, .., 57
    candidates.positions[13] = 38;                                          // not 39
    candidates.positions.push_back(-1);
    candidates.positions[2] = 5;  // not 6
    candidates.stride = static_cast<int64_t>(candidates.positions.size());
    candidates.counts = {static_cast<int32_t>(candidates.stride) - 1};
  }

  pkv_rerank_args args(int32_t k) { return oracle.rerank_args(queries, {kN}, candidates, k); }
  int32_t count() const { return candidates.counts[0]; }
};

long double logit(const Ranked& ranked, const Hits& hits, float scale, int32_t g, int32_t c) {
  return static_cast<long double>(scale) *
         static_cast<long double>(
             hits.estimates[static_cast<size_t>(g * ranked.candidates.stride + c)]);
}

// 6.2 from the estimates, in long double.
std::vector<long double> group_scores(const Ranked& ranked, const Hits& hits, float scale) {
  std::vector<long double> lse;
  for (int32_t g = 0; g < Ranked::kHeads; ++g) {
    std::vector<long double> logits;
    for (int32_t c = 0; c < ranked.count(); ++c) logits.push_back(logit(ranked, hits, scale, g, c));
    lse.push_back(log_sum_exp(logits));
  }
  std::vector<long double> scores;
  for (int32_t c = 0; c < ranked.count(); ++c) {
    std::vector<long double> shares;
    for (int32_t g = 0; g < Ranked::kHeads; ++g) {
      shares.push_back(logit(ranked, hits, scale, g, c) - lse[static_cast<size_t>(g)]);
    }
    scores.push_back(log_sum_exp(shares));
  }
  return scores;
}

// Index of a position among the candidates.
size_t index_of(const Ranked& ranked, int32_t position) {
  const auto& all = ranked.candidates.positions;
  return static_cast<size_t>(std::find(all.begin(), all.end(), position) - all.begin());
}

void check_order(const Hits& hits, int32_t count) {
  CHECK(hits.counts[0] == count);
  for (size_t slot = 1; slot < static_cast<size_t>(count); ++slot) {
    const bool is_after = hits.scores[slot] < hits.scores[slot - 1] ||
                          (hits.scores[slot] == hits.scores[slot - 1] &&
                           hits.positions[slot] > hits.positions[slot - 1]);
    CHECK(is_after);
  }
  for (size_t slot = static_cast<size_t>(count); slot < hits.positions.size(); ++slot) {
    CHECK(hits.positions[slot] == -1);
    CHECK(hits.scores[slot] == -kInf);
  }
}

TEST_CASE("rerank: group scores, their order, ties by position, fillers beyond the candidates") {
  for (const float scale : {0.2F, 50.0F, 1e6F}) {  // with 1e6 a plain exp would overflow
    CAPTURE(scale);
    Ranked ranked(geometry_of(16));
    auto args = ranked.args(25);
    args.scale = scale;
    const Hits hits = ranked.oracle.rerank(args);
    check_order(hits, 20);
    const auto expected = group_scores(ranked, hits, scale);
    for (size_t slot = 0; slot < 20; ++slot) {
      const long double score = expected[index_of(ranked, hits.positions[slot])];
      CHECK(static_cast<double>(hits.scores[slot]) ==
            doctest::Approx(static_cast<double>(score)).epsilon(1e-6));
    }
    const auto five = std::find(hits.positions.begin(), hits.positions.end(), 5);
    REQUIRE(five != hits.positions.end());
    CHECK(*(five + 1) == 21);  // equal keys: neighbours, the smaller position first

    // The first k of the same order.
    auto few = ranked.args(7);
    few.scale = scale;
    const Hits best = ranked.oracle.rerank(few, /*with_tail=*/false);
    check_order(best, 7);
    CHECK(std::equal(best.positions.begin(), best.positions.end(), hits.positions.begin()));
    CHECK(std::equal(best.scores.begin(), best.scores.end(), hits.scores.begin()));
  }
}

TEST_CASE("rerank: the mean of the estimates, in fp32 and in the order of the heads") {
  Ranked ranked(geometry_of(16));
  auto args = ranked.args(20);
  args.rank = PKV_RANK_MEAN;
  const Hits hits = ranked.oracle.rerank(args);
  check_order(hits, 20);
  for (size_t slot = 0; slot < 20; ++slot) {
    const size_t c = index_of(ranked, hits.positions[slot]);
    const auto stride = static_cast<size_t>(ranked.candidates.stride);
    const float sum =
        (hits.estimates[c] + hits.estimates[stride + c]) + hits.estimates[2 * stride + c];
    CHECK(hits.scores[slot] == sum / 3.0F);
  }
}

TEST_CASE("rerank: value norms add their logarithm, a norm of 0 scores -1e30") {
  for (const int32_t rank : {PKV_RANK_MEAN, PKV_RANK_GROUP}) {
    pkv_geometry geometry = geometry_of(16, 8);
    geometry.value_norm = 1;
    Ranked ranked(geometry);
    auto args = ranked.args(20);
    args.rank = rank;
    const Hits plain = ranked.oracle.rerank(args);
    args.weigh_norms = 1;
    const Hits weighed = ranked.oracle.rerank(args);
    check_order(weighed, 20);
    for (size_t slot = 0; slot < 20; ++slot) {
      const int32_t position = plain.positions[slot];
      const auto found = std::find(weighed.positions.begin(), weighed.positions.end(), position);
      REQUIRE(found != weighed.positions.end());
      const float score = weighed.scores[static_cast<size_t>(found - weighed.positions.begin())];
      if (position == 12) {
        CHECK(score == -1e30F);
        continue;
      }
      const auto nv =
          static_cast<double>(format::bf16_to_float(ranked.oracle.record(0, position).value_norm));
      const double expected = static_cast<double>(plain.scores[slot]) + std::log(nv);
      CHECK(std::abs(static_cast<double>(score) - expected) <= 1e-6 * (std::abs(expected) + 1.0));
    }
  }
}

TEST_CASE("rerank: adaptive k takes the fewest hits that hold the share, within its limits") {
  Ranked ranked(geometry_of(16));
  auto args = ranked.args(20);
  args.scale = 1.0F;
  const Hits all = ranked.oracle.rerank(args);
  const auto expected = group_scores(ranked, all, args.scale);
  long double total = 0;
  for (const long double score : expected) total += std::exp(score);
  CHECK(static_cast<double>(total) == doctest::Approx(3.0));  // each head's softmax sums to 1
  std::vector<int32_t> seen;
  for (const double share : {1e-9, 0.3, 0.6, 0.9, 0.99, 1.0}) {
    CAPTURE(share);
    int32_t count = 0;
    for (long double held = 0; held < static_cast<long double>(share) * total * (1 - 1e-12L);) {
      held += std::exp(expected[index_of(ranked, all.positions[static_cast<size_t>(count++)])]);
    }
    args.share = share;
    args.k_min = 0;
    check_order(ranked.oracle.rerank(args), count);
    seen.push_back(count);
    args.k_min = 4;
    CHECK(ranked.oracle.rerank(args).counts[0] == std::max(count, 4));
    args.k_min = 1000;
    CHECK(ranked.oracle.rerank(args).counts[0] == 20);
  }
  CHECK(seen.front() == 1);
  CHECK(seen[1] < seen[4]);
  auto few = ranked.args(3);
  few.share = 1.0;
  CHECK(ranked.oracle.rerank(few).counts[0] == 3);
}

// Estimates of all n positions [G, n]; those of bad keys do not matter.
std::vector<float> all_estimates(Ranked& ranked) {
  const Candidates everyone = all_candidates(Ranked::kN);
  return ranked.oracle.rerank(ranked.oracle.rerank_args(ranked.queries, {Ranked::kN}, everyone, 1))
      .estimates;
}

// 6.4, written a second time: sample i of a row is the key at the share i / c of the steps.
std::vector<int64_t> sample_positions(int64_t n, int64_t p, int64_t T) {
  std::vector<int64_t> steps;  // multiples of p
  for (int64_t position = 0; position < n; position += p) steps.push_back(position);
  const auto m = static_cast<int64_t>(steps.size());
  const int64_t c = std::min(m, T);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < c; ++i) result.push_back(steps[static_cast<size_t>(i * m / c)]);
  return result;
}

TEST_CASE("rerank: estimates at the samples, and the rest's mass of those that are no candidates") {
  struct Case {
    int32_t codec, sketch_bits, stride;
  };
  for (const Case& c : {Case{PKV_CODEC_SCALAR4, 0, 0}, Case{PKV_CODEC_SCALAR4, 4, 1},
                        Case{PKV_CODEC_SCALAR4, 4, 4}, Case{PKV_CODEC_POLAR4, 2, 7},
                        Case{PKV_CODEC_SCALAR5, 4, 16}, Case{PKV_CODEC_SCALAR4, 4, 1000}}) {
    CAPTURE(c.stride);
    Ranked ranked(with_sketch(geometry_of(16, 8, c.codec), c.sketch_bits, c.stride));
    const auto estimates = all_estimates(ranked);
    const auto& taken = ranked.candidates.positions;
    const auto is_candidate = [&](int64_t position) {
      return std::find(taken.begin(), taken.end(), static_cast<int32_t>(position)) != taken.end();
    };
    for (const int32_t T : {1, 2, 7, 15, 39, 40, 41, 59, 60, 61, 512}) {  // n = 60, R = 40
      CAPTURE(T);
      auto args = ranked.args(5);
      args.tail_samples = T;
      args.scale = 0.5F;
      const Hits hits = ranked.oracle.rerank(args);
      const auto samples = sample_positions(Ranked::kN, std::max(c.stride, 1), T);
      for (int32_t g = 0; g < Ranked::kHeads; ++g) {
        long double sum = 0;
        int64_t seen = 0;
        const float* found = hits.sample_estimates.data() + static_cast<ptrdiff_t>(g) * T;
        for (size_t i = 0; i < static_cast<size_t>(T); ++i) {
          if (i >= samples.size() || samples[i] == 40) {  // unused, or at the bad key
            CHECK(std::isnan(found[i]));
          } else {
            CHECK(found[i] == estimates[static_cast<size_t>(g * Ranked::kN + samples[i])]);
          }
          if (i >= samples.size() || is_candidate(samples[i])) continue;
          ++seen;
          if (samples[i] == 40) continue;
          sum += std::exp(0.5L * static_cast<long double>(found[i]));
        }
        const float rest = hits.rest_lse[static_cast<size_t>(g)];
        if (sum == 0) {
          CHECK(rest == -kInf);
        } else {
          sum = sum / static_cast<long double>(seen) * 40.0L;
          CHECK(static_cast<double>(rest) ==
                doctest::Approx(static_cast<double>(std::log(sum))).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("rerank: the rest's mass and the samples' estimates are each optional") {
  Ranked ranked(with_sketch(geometry_of(16, 8), 4, 4));
  const auto args = ranked.args(5);
  const Hits both = ranked.oracle.rerank(args);
  Hits apart = both;
  std::fill(apart.rest_lse.begin(), apart.rest_lse.end(), 3.0F);
  std::fill(apart.sample_estimates.begin(), apart.sample_estimates.end(), 3.0F);
  auto one = args;
  one.rest_lse = apart.rest_lse.data();
  ranked.oracle.rerank(one, /*with_tail=*/false);
  CHECK(apart.rest_lse == both.rest_lse);
  one = args;
  one.sample_estimates = apart.sample_estimates.data();
  ranked.oracle.rerank(one, /*with_tail=*/false);
  for (size_t i = 0; i < both.sample_estimates.size(); ++i) {
    const bool is_same =
        apart.sample_estimates[i] == both.sample_estimates[i] ||
        (std::isnan(apart.sample_estimates[i]) && std::isnan(both.sample_estimates[i]));
    CHECK(is_same);
  }
}

TEST_CASE("rerank: no rest, no candidates, no keys") {
  Ranked ranked(geometry_of(16));
  const Candidates everyone = all_candidates(Ranked::kN);
  const Hits full =
      ranked.oracle.rerank(ranked.oracle.rerank_args(ranked.queries, {Ranked::kN}, everyone, 0));
  CHECK(full.counts[0] == 0);
  for (const float rest : full.rest_lse) CHECK(rest == -kInf);
  for (size_t i = 0; i < full.sample_estimates.size();
       ++i) {  // candidates are samples all the same
    CHECK(std::isnan(full.sample_estimates[i]) == (i % 512 >= Ranked::kN || i % 512 == 40));
  }

  Candidates none = everyone;
  none.counts = {0};
  const Hits empty =
      ranked.oracle.rerank(ranked.oracle.rerank_args(ranked.queries, {Ranked::kN}, none, 4));
  check_order(empty, 0);
  for (const float rest : empty.rest_lse) CHECK(std::isfinite(rest));

  const Hits nothing =
      ranked.oracle.rerank(ranked.oracle.rerank_args(ranked.queries, {0}, none, 4));
  check_order(nothing, 0);
  for (const float rest : nothing.rest_lse) CHECK(rest == -kInf);
  for (const float estimate : nothing.sample_estimates) CHECK(std::isnan(estimate));
}

TEST_CASE("rerank: a bad query has no hits and no rest, other rows are untouched") {
  const int32_t n = 10;
  Oracle oracle(geometry_of(16, 0, PKV_CODEC_SCALAR4, PKV_VOTE_GRADED, 2), n, 2);
  Tensor keys = Tensor::random({2, 2, n, 16}, 11);
  oracle.encode(keys);
  Tensor queries = Tensor::random({2, 4, 16}, 12);
  Candidates candidates;
  for (int32_t row = 0; row < 4; ++row) {
    for (int32_t t = 0; t < 5; ++t) candidates.positions.push_back(2 * t);
  }
  candidates.counts = {5, 5, 5, 4};
  candidates.stride = 5;
  const Hits before = oracle.rerank(oracle.rerank_args(queries, {n, n}, candidates, 3));
  queries.row(1, 1)[3] = test::kNan;  // row 2
  const Hits hits = oracle.rerank(oracle.rerank_args(queries, {n, n}, candidates, 3));
  CHECK(hits.counts == std::vector<int32_t>{3, 3, 0, 3});
  for (size_t i = 0; i < hits.positions.size(); ++i) {
    CHECK(hits.positions[i] == (i / 3 == 2 ? -1 : before.positions[i]));
    CHECK(hits.scores[i] == (i / 3 == 2 ? -kInf : before.scores[i]));
  }
  for (size_t head = 0; head < 8; ++head) {
    CHECK(hits.rest_lse[head] == (head / 2 == 2 ? -kInf : before.rest_lse[head]));
    for (size_t i = head * 512; i < head * 512 + 512; ++i) {
      const bool is_used = head / 2 != 2 && i % 512 < n;
      CHECK(std::isnan(hits.sample_estimates[i]) != is_used);
      if (is_used) CHECK(hits.sample_estimates[i] == before.sample_estimates[i]);
    }
  }
}

TEST_CASE("rerank: an empty batch") {
  Oracle oracle(geometry_of(16), 4);
  Tensor none({0, 1, 16});
  const Candidates candidates;
  CHECK(oracle.rerank(oracle.rerank_args(none, {}, candidates, 3)).positions.empty());
}

}  // namespace
}  // namespace pkv
