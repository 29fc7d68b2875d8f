#include "tests/conformance/rerank_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fmt/core.h"
#include "tests/conformance/failure.h"
#include "tests/conformance/rerank_bounds.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

Hits reference(const Bench& bench, const Codec& codec, const Zone& zone, const RerankInput& input) {
  return bench.expected([&](const Place& place, uint8_t fill) {
    return run_rerank(place, fill, codec, zone, input);
  });
}

// All candidates are hits: their scores.
RerankInput of_all(const RerankInput& input) {
  RerankInput all = input;
  all.share = 0.0;
  all.k_min = 0;
  all.k = static_cast<int32_t>(input.candidates_stride);
  all.wants_estimates = true;
  all.wants_rest = false;
  all.wants_samples = false;
  return all;
}

// The good samples take the candidates' place: their estimates.
RerankInput of_samples(const RerankInput& input, const std::vector<RowBounds>& bounds) {
  RerankInput samples = of_all(input);
  samples.k = 0;
  samples.candidates_stride = input.tail_samples;
  for (size_t r = 0; r < bounds.size(); ++r) {
    samples.candidates[r].clear();
    if (bounds[r].is_bad_query()) continue;
    for (const int32_t position : bounds[r].samples()) {
      if (bounds[r].is_good(position)) samples.candidates[r].push_back(position);
    }
  }
  return samples;
}

// 6.4 for one row, from the estimates of the good samples: what the stage must deliver.
void expect_samples(const RerankInput& input, const RowBounds& row, const Rows<float>& estimates,
                    ExpectedHits& expected) {
  const auto scale = static_cast<double>(input.scale);
  const auto R = static_cast<double>(row.length()) - static_cast<double>(row.candidates().size());
  double X = 0.0;
  for (int32_t g = 0; g < row.group(); ++g) {
    std::vector<float> all(static_cast<size_t>(input.tail_samples),
                           std::numeric_limits<float>::quiet_NaN());
    double sum = 0.0;
    double largest = -std::numeric_limits<double>::infinity();
    std::vector<double> logits;
    int64_t seen = 0;
    size_t good = 0;
    for (size_t i = 0; i < row.samples().size() && !row.is_bad_query(); ++i) {
      const int32_t position = row.samples()[i];
      if (!row.is_candidate(position)) ++seen;
      if (!row.is_good(position)) continue;
      all[i] = estimates[row.head(g)][good++];
      if (row.is_candidate(position)) continue;
      logits.push_back(capped(scale * static_cast<double>(all[i]), input.soft_cap));
      largest = std::max(largest, logits.back());
      X = std::max(X, std::fabs(logits.back()));
    }
    for (const double logit : logits) sum += std::exp(logit - largest);
    const double rest = largest + std::log(sum / static_cast<double>(seen) * R);
    if (input.wants_samples) expected.hits.sample_estimates[row.head(g)] = all;
    if (!input.wants_rest) continue;
    expected.hits.rest_lse[row.head(g)] =
        static_cast<float>(logits.empty() ? -std::numeric_limits<double>::infinity() : rest);
  }
  if (input.wants_rest) expected.rest_tolerance.push_back(row.rest(X));
}

// One row of a result.
class RowJudge {
 public:
  // `scores`: the reference's, in the order of its hits at `positions`.
  RowJudge(const RerankInput& input, size_t r, const std::vector<int32_t>& positions,
           const std::vector<float>& scores, double error)
      : input_(input), r_(r), candidates_(input.candidates[r]), error_(error) {
    is_bad_query_ = !positions.empty() && positions.front() == -1;
    scores_.resize(candidates_.size());
    for (size_t slot = 0; slot < candidates_.size() && !is_bad_query_; ++slot) {
      scores_[index_of(positions[slot])] = static_cast<double>(scores[slot]);
    }
    sorted_ = scores_;
    std::sort(sorted_.rbegin(), sorted_.rend());
  }

  void judge(const std::vector<int32_t>& positions, const std::vector<float>& scores,
             int32_t count) const {
    judge_count(count);
    judge_order(positions, scores, count);
    judge_choice(positions, scores, count);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw Failure(fmt::format("row {}: {}", r_, text));
  }

  // Number of candidates if it is none.
  size_t index_of(int32_t position) const {
    const auto at = std::lower_bound(candidates_.begin(), candidates_.end(), position);
    const bool is_there = at != candidates_.end() && *at == position;
    return is_there ? static_cast<size_t>(at - candidates_.begin()) : candidates_.size();
  }

  // 6.3: the smallest c whose best hold `target` of the weight.
  int64_t smallest_count(const std::vector<double>& weights, double target) const {
    double held = 0.0;
    size_t c = 0;
    while (c < weights.size() && held < target) held += weights[c++];
    return static_cast<int64_t>(c);
  }

  void judge_count(int32_t count) const {
    const auto candidates = static_cast<int64_t>(is_bad_query_ ? 0 : candidates_.size());
    const int64_t most = std::min<int64_t>(input_.k, candidates);
    int64_t low = most;
    int64_t high = most;
    if (input_.share > 0.0 && most > 0) {
      std::vector<double> weights = sorted_;
      double total = 0.0;
      for (double& weight : weights) total += weight = std::exp(weight - sorted_.front());
      // Each weight is off by the relative 2 error, their sum by its roundings; either side.
      const double slack = 2.0 * (2.0 * error_ + sum_roundings(candidates) * kUnit);
      const int64_t least = std::min<int64_t>(input_.k_min, candidates);
      const double target = input_.share * total;
      low = std::clamp(smallest_count(weights, target * (1.0 - slack)), least, most);
      high = std::clamp(smallest_count(weights, target * (1.0 + slack)), least, most);
    }
    if (count >= low && count <= high) return;
    fail(low == high ? fmt::format("count: expected {}, got {}", low, count)
                     : fmt::format("count: expected {} to {}, got {}", low, high, count));
  }

  // That of the scores which the backend gave itself; fillers behind.
  void judge_order(const std::vector<int32_t>& positions, const std::vector<float>& scores,
                   int32_t count) const {
    for (size_t slot = 0; slot < positions.size(); ++slot) {
      if (slot >= static_cast<size_t>(count)) {
        if (positions[slot] == -1 && scores[slot] == -std::numeric_limits<float>::infinity()) {
          continue;
        }
        fail(fmt::format("unused slot {}: expected position -1 and score -inf, got {} and {}", slot,
                         positions[slot], scores[slot]));
      }
      if (slot == 0) continue;
      const bool is_ordered =
          scores[slot - 1] > scores[slot] ||
          (scores[slot - 1] == scores[slot] && positions[slot - 1] < positions[slot]);
      if (is_ordered) continue;
      fail(fmt::format("slot {}: position {} with score {:.9g} behind position {} with {:.9g}",
                       slot, positions[slot], scores[slot], positions[slot - 1], scores[slot - 1]));
    }
  }

  // Every key above s_k + 2 e is found, none below s_k - 2 e, and each score is within e.
  void judge_choice(const std::vector<int32_t>& positions, const std::vector<float>& scores,
                    int32_t count) const {
    std::vector<bool> is_hit(candidates_.size());
    for (size_t slot = 0; slot < static_cast<size_t>(count); ++slot) {
      const size_t c = index_of(positions[slot]);
      if (c == candidates_.size()) {
        fail(fmt::format("slot {}: position {} is no candidate", slot, positions[slot]));
      }
      if (!is_close(scores_[c], static_cast<double>(scores[slot]), error_)) {
        fail(fmt::format("score of position {}: expected {:.9g}, got {:.9g}, tolerance {:.3g}",
                         positions[slot], scores_[c], scores[slot], error_));
      }
      is_hit[c] = true;
    }
    if (count == 0) return;
    const double last = sorted_[static_cast<size_t>(count) - 1];
    for (size_t c = 0; c < candidates_.size(); ++c) {
      const bool is_missing = !is_hit[c] && scores_[c] > last + 2.0 * error_;
      const bool is_extra = is_hit[c] && scores_[c] < last - 2.0 * error_;
      if (!is_missing && !is_extra) continue;
      fail(fmt::format("position {} with score {:.9g} is {}; the last hit's score is {:.9g}",
                       candidates_[c], scores_[c], is_extra ? "a hit" : "no hit", last));
    }
  }

  const RerankInput& input_;
  size_t r_;
  const std::vector<int32_t>& candidates_;
  double error_;
  bool is_bad_query_ = false;
  std::vector<double> scores_;  // in the order of candidates_
  std::vector<double> sorted_;  // descending
};

void judge_estimates(const RowBounds& row, size_t r, const Hits& all, const Hits& got) {
  for (int32_t g = 0; g < row.group(); ++g) {
    const size_t head = row.head(g);
    expect_close(fmt::format("estimates of row {}, head {} of its group", r, g),
                 all.estimates[head], got.estimates[head],
                 [&](size_t c) { return row.estimate(g, row.candidates()[c]); });
  }
}

// Of polar4; the unused entries and those at bad keys are NaN.
void judge_samples(const RowBounds& row, size_t r, const Hits& expected, const Hits& got) {
  for (int32_t g = 0; g < row.group(); ++g) {
    const size_t head = row.head(g);
    const auto tolerance = [&](size_t i) {
      return i < row.samples().size() ? row.estimate(g, row.samples()[i]) : 0.0;
    };
    expect_close(fmt::format("sample_estimates of row {}, head {} of its group", r, g),
                 expected.sample_estimates[head], got.sample_estimates[head], tolerance);
  }
}

void judge_rest(const RowBounds& row, size_t r, const ExpectedHits& expected, const Hits& got) {
  for (int32_t g = 0; g < row.group(); ++g) {
    const size_t head = row.head(g);
    const auto a = static_cast<double>(expected.hits.rest_lse[head]);
    const auto b = static_cast<double>(got.rest_lse[head]);
    if (is_close(a, b, expected.rest_tolerance[r])) continue;
    throw Failure(fmt::format("rest_lse[{}]: expected {:.9g}, got {:.9g}, tolerance {:.3g}", head,
                              a, b, expected.rest_tolerance[r]));
  }
}

}  // namespace

ExpectedHits expected_hits(const Bench& bench, const Codec& codec, const Zone& zone,
                           const RerankInput& input) {
  ExpectedHits expected;
  expected.hits = reference(bench, codec, zone, input);
  expected.all = reference(bench, codec, zone, of_all(input));
  if (!input.wants_rest && !input.wants_samples) return expected;
  std::vector<RowBounds> bounds;
  for (size_t r = 0; r < input.candidates.size(); ++r) bounds.emplace_back(codec, zone, input, r);
  const Hits samples = reference(bench, codec, zone, of_samples(input, bounds));
  for (const RowBounds& row : bounds) expect_samples(input, row, samples.estimates, expected);
  return expected;
}

void judge_hits(const Codec& codec, const Zone& zone, const RerankInput& input,
                const ExpectedHits& expected, const Hits& got) {
  if (codec.geometry.codec != PKV_CODEC_POLAR4) {
    expect_bits("estimates", expected.hits.estimates, got.estimates);
    expect_bits("sample_estimates", expected.hits.sample_estimates, got.sample_estimates);
  }
  if (is_exact(codec, input)) {
    expect_bits("positions", expected.hits.positions, got.positions);
    expect_bits("scores", expected.hits.scores, got.scores);
    expect_bits("counts", expected.hits.counts, got.counts);
  }
  for (size_t r = 0; r < input.candidates.size(); ++r) {
    const RowBounds row(codec, zone, input, r);
    if (input.wants_estimates) judge_estimates(row, r, expected.all, got);
    RowJudge(input, r, expected.all.positions[r], expected.all.scores[r], row.score(expected.all))
        .judge(got.positions[r], got.scores[r], got.counts[r]);
    if (input.wants_rest) judge_rest(row, r, expected, got);
    if (input.wants_samples) judge_samples(row, r, expected.hits, got);
  }
}

void judge_rerank(const Bench& bench, const Codec& codec, const Zone& zone,
                  const RerankInput& input) {
  const Hits got = bench.result([&](const Place& place, uint8_t fill) {
    return run_rerank(place, fill, codec, zone, input);
  });
  judge_hits(codec, zone, input, expected_hits(bench, codec, zone, input), got);
}

}  // namespace pkv::conformance
