// docs/algorithm.md, section 8.1, against the formulas in long double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/unit/cpu_ref/oracle.h"

namespace pkv {
namespace {

using test::Candidates;
using test::Oracle;
using test::Tensor;

constexpr int32_t kD = 16;
constexpr int32_t kHeads = 3;  // one group
constexpr int64_t kTokens = 12;
constexpr float kScale = 0.7F;

long double capped(long double logit, float cap) {
  const auto c = static_cast<long double>(cap);
  return cap == 0.0F ? logit : c * std::tanh(logit / c);
}

TEST_CASE("attend: capped logits, and a sink that takes its share and gives nothing") {
  Oracle oracle(test::geometry_of(kD, kD), 1);
  Tensor queries = Tensor::random({1, kHeads, kD}, 1);
  Tensor keys = Tensor::random({1, 1, kTokens, kD}, 2);
  Tensor values = Tensor::random({1, 1, kTokens, kD}, 3);
  for (const float cap : {0.0F, 0.25F, 3.0F, 1e6F}) {
    for (const std::vector<float>& sinks :
         {std::vector<float>{}, std::vector<float>{2.0F, -test::kInf, -3.0F},
          std::vector<float>{90.0F, 0.0F, 1000.0F}}) {
      CAPTURE(cap);
      CAPTURE(sinks.size());
      Tensor output({1, kHeads, kD});
      std::vector<float> lse(kHeads);
      pkv_attend_args args = {};
      args.struct_size = sizeof args;
      args.query_heads = kHeads;
      args.tail = PKV_TAIL_DROP;
      args.part_count = 1;
      args.scale = kScale;
      args.soft_cap = cap;
      args.sink_logits = sinks.empty() ? nullptr : sinks.data();
      args.codec = oracle.codec();
      args.batch = oracle.batch_of({1});
      args.queries = queries.view();
      args.parts[0].keys = keys.view();
      args.parts[0].values = values.view();
      args.output = output.view();
      args.lse = lse.data();
      oracle.run(oracle.table->attend, args);
      for (int32_t head = 0; head < kHeads; ++head) {
        std::vector<long double> logits;
        for (int64_t t = 0; t < kTokens; ++t) {
          long double dot = 0;
          for (int32_t j = 0; j < kD; ++j) {
            dot += static_cast<long double>(queries.row(0, head)[j]) *
                   static_cast<long double>(keys.row(0, 0, t)[j]);
          }
          logits.push_back(capped(static_cast<long double>(kScale) * dot, cap));
        }
        if (!sinks.empty()) logits.push_back(static_cast<long double>(sinks[head]));
        const long double max = *std::max_element(logits.begin(), logits.end());
        long double sum = 0;
        for (const long double logit : logits) sum += std::exp(logit - max);
        CHECK(static_cast<double>(lse[head]) ==
              doctest::Approx(static_cast<double>(max + std::log(sum))).epsilon(1e-6));
        for (int32_t j = 0; j < kD; ++j) {
          long double expected = 0;
          for (int64_t t = 0; t < kTokens; ++t) {
            expected += std::exp(logits[static_cast<size_t>(t)] - max) *
                        static_cast<long double>(values.row(0, 0, t)[j]);
          }
          CHECK(static_cast<double>(output.row(0, head)[j]) ==
                doctest::Approx(static_cast<double>(expected / sum)).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("attend: with nothing else to attend to, lse is the sink and the output 0") {
  Oracle oracle(test::geometry_of(kD, kD), 1);
  Tensor queries = Tensor::random({1, kHeads, kD}, 1);
  queries.row(0, 0)[0] = 0.0F;
  Tensor output({1, kHeads, kD});
  std::vector<float> lse(kHeads);
  const std::vector<float> sinks = {2.5F, -test::kInf, -40.0F};
  pkv_attend_args args = {};
  args.struct_size = sizeof args;
  args.query_heads = kHeads;
  args.tail = PKV_TAIL_DROP;
  args.scale = kScale;
  args.sink_logits = sinks.data();
  args.codec = oracle.codec();
  args.batch = oracle.batch_of({0});
  args.queries = queries.view();
  args.output = output.view();
  args.lse = lse.data();
  oracle.run(oracle.table->attend, args);
  CHECK(lse == sinks);
  CHECK(output.data() == std::vector<float>(kHeads * kD, 0.0F));
  // 4.4: a bad query has no sink either.
  queries.row(0, 0)[0] = test::kNan;
  oracle.run(oracle.table->attend, args);
  CHECK(lse == std::vector<float>(kHeads, -test::kInf));
}

TEST_CASE("rerank: group scores and the rest are of capped logits, the mean of plain estimates") {
  constexpr int32_t kN = 40;
  Oracle oracle(test::geometry_of(kD), kN);
  Tensor keys = Tensor::random({1, 1, kN, kD}, 4);
  oracle.encode(keys);
  Tensor queries = Tensor::random({1, kHeads, kD}, 5);
  Candidates candidates = test::all_candidates(25);
  for (const float cap : {0.0F, 0.5F, 4.0F}) {
    CAPTURE(cap);
    pkv_rerank_args args = oracle.rerank_args(queries, {kN}, candidates, 25);
    args.scale = kScale;
    args.soft_cap = cap;
    const test::Hits hits = oracle.rerank(args);
    const auto logit = [&](int32_t g, int32_t c) {
      return capped(static_cast<long double>(kScale) *
                        static_cast<long double>(hits.estimates[static_cast<size_t>(g * 25 + c)]),
                    cap);
    };
    for (int32_t slot = 0; slot < 25; ++slot) {
      const int32_t c = hits.positions[static_cast<size_t>(slot)];
      long double score = 0;
      for (int32_t g = 0; g < kHeads; ++g) {
        long double sum = 0;
        for (int32_t other = 0; other < 25; ++other) sum += std::exp(logit(g, other));
        score += std::exp(logit(g, c)) / sum;
      }
      CHECK(static_cast<double>(hits.scores[static_cast<size_t>(slot)]) ==
            doctest::Approx(static_cast<double>(std::log(score))).epsilon(1e-6));
    }
    for (int32_t g = 0; g < kHeads; ++g) {
      // Every key is a sample; the rest are those behind the candidates.
      long double rest = 0;
      for (int32_t position = 25; position < kN; ++position) {
        const float estimate = hits.sample_estimates[static_cast<size_t>(g * 512 + position)];
        rest += std::exp(
            capped(static_cast<long double>(kScale) * static_cast<long double>(estimate), cap));
      }
      CHECK(static_cast<double>(hits.rest_lse[static_cast<size_t>(g)]) ==
            doctest::Approx(static_cast<double>(std::log(rest))).epsilon(1e-6));
    }
    args.rank = PKV_RANK_MEAN;
    const test::Hits mean = oracle.rerank(args);
    args.soft_cap = 0.0F;
    CHECK(oracle.rerank(args).scores == mean.scores);
  }
}

}  // namespace
}  // namespace pkv
