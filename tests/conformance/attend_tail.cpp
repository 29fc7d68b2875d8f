#include "tests/conformance/attend_tail.h"

#include <algorithm>
#include <cmath>

#include "tests/conformance/model.h"
#include "tests/conformance/tolerance.h"

namespace pkv::conformance {
namespace {

// The weighted samples of one query head (section 8, sampled).
struct Samples {
  std::vector<int32_t> positions;
  std::vector<double> logits;
  double X = 0.0;  // the largest |logit|
};

class Tail {
 public:
  Tail(const Codec& codec, const Zone& zone, const AttendInput& input, int64_t i,
       int32_t query_head)
      : codec_(codec.of_sequence(input.batch.sequences[static_cast<size_t>(i)])),
        zone_(zone),
        input_(input),
        n_(input.batch.lengths[static_cast<size_t>(i)]) {
    kv_head_ = query_head / (input.query_heads / codec.heads());
    r_ = static_cast<size_t>(i * codec.heads() + kv_head_);
    q_ = static_cast<size_t>(i * input.query_heads + query_head);
    const int32_t sequence = input.batch.sequences[static_cast<size_t>(i)];
    row_ = static_cast<size_t>(int64_t{sequence} * codec.heads() + kv_head_);
  }

  TailSizes sizes() {
    const auto dv = static_cast<size_t>(codec_.dv());
    result_.largest.assign(dv, 0.0);
    result_.shrink.assign(dv, 0.0);
    add_candidates();
    add_rest();
    if (reads_samples(input_.tail)) add_samples(samples());
    const std::vector<double> mean = mean_value();
    for (size_t j = 0; j < dv; ++j) {
      result_.largest[j] = std::fabs(mean[j]);
      if (sketched_ > 0) {
        result_.largest[j] = std::max(result_.largest[j], std::fabs(center(j)) + sketch_size_);
      }
    }
    result_.sketch_error = sketch_value(codec_.dv(), sketched_, sketch_size_);
    return result_;
  }

 private:
  bool is_fetched(int32_t position) const {
    if (input_.k == 0) return false;
    const std::vector<int32_t>& positions = input_.positions[r_];
    const auto end = positions.begin() + input_.counts[r_];
    return std::find(positions.begin(), end, position) != end;
  }
  bool is_candidate(int32_t position) const {
    const std::vector<int32_t>& candidates = input_.candidates[r_];
    return std::find(candidates.begin(), candidates.end(), position) != candidates.end();
  }
  double center(size_t j) const {
    const auto dv = static_cast<size_t>(codec_.dv());
    return codec_.value_center[static_cast<size_t>(kv_head_) * dv + j];
  }

  std::vector<double> sketch(int32_t position) {
    std::vector<double> sketch = sketch_of(codec_, zone_.rows[row_], position);
    sketch_size_ = std::max(sketch_size_, sketch_size(codec_, sketch));
    ++sketched_;
    return sketch;
  }

  // Candidates that were not fetched: tokens of their own, or part of the pseudo-token's mass.
  void add_candidates() {
    const std::vector<int32_t>& candidates = input_.candidates[r_];
    for (size_t c = 0; c < candidates.size(); ++c) {
      if (is_fetched(candidates[c])) continue;
      const auto estimate = static_cast<double>(input_.estimates[q_][c]);
      result_.eps = std::max(result_.eps, 2.0 * estimated_logit(scale(), estimate));
      ++result_.entries;
      if (input_.tail == PKV_TAIL_SKETCH) sketch(candidates[c]);
    }
  }

  void add_rest() {
    const auto rest = static_cast<double>(input_.rest_lse[q_]);
    if (std::isfinite(rest)) result_.eps = std::max(result_.eps, 2.0 * kUnit * std::fabs(rest));
    ++result_.entries;
  }

  // The good ones: with sampled those that were not fetched, with sketches no candidates.
  Samples samples() const {
    Samples result;
    const std::vector<int32_t> all = sample_positions(codec_.geometry, n_, input_.tail_samples);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto estimate = static_cast<double>(input_.sample_estimates[q_][i]);
      const bool is_out =
          input_.tail == PKV_TAIL_SKETCH ? is_candidate(all[i]) : is_fetched(all[i]);
      if (is_out || std::isnan(estimate)) continue;
      result.positions.push_back(all[i]);
      result.logits.push_back(capped(scale() * estimate, input_.soft_cap));
      result.X = std::max(result.X, std::fabs(result.logits.back()));
    }
    return result;
  }

  // l v_hat + (1 - l) v_mean.
  void add_samples(const Samples& samples) {
    if (samples.positions.empty()) return;
    const auto dv = static_cast<size_t>(codec_.dv());
    const auto count = static_cast<int64_t>(samples.positions.size());
    const double largest = *std::max_element(samples.logits.begin(), samples.logits.end());
    double sum = 0.0;
    double squares = 0.0;
    std::vector<double> rotated(dv);
    for (size_t i = 0; i < samples.positions.size(); ++i) {
      const double o = std::exp(samples.logits[i] - largest);
      sum += o;
      squares += o * o;
      const std::vector<double> sketch = this->sketch(samples.positions[i]);
      for (size_t j = 0; j < dv; ++j) rotated[j] += o * sketch[j];
    }
    result_.entries += count;
    result_.eps = std::max(result_.eps, 2.0 * samples.X * kUnit);
    const bool is_every_key = codec_.geometry.sketch_stride == 1 && n_ <= input_.tail_samples;
    if (input_.tail == PKV_TAIL_SKETCH && is_every_key) return;  // l = 1
    const double N = sum * sum / squares;
    const double l = N / (N + 32.0);
    for (double& value : rotated) value /= sum;
    const std::vector<double> turned = unrotate_value(codec_, rotated);
    const std::vector<double> mean = mean_value();
    for (size_t j = 0; j < dv; ++j) {
      const double moved = std::fabs(center(j) + turned[j] - mean[j]);
      result_.shrink[j] = l * shrink_error(samples.X, count, input_.soft_cap) * moved;
    }
  }

  std::vector<double> mean_value() const {
    const auto dv = static_cast<size_t>(codec_.dv());
    const auto good = static_cast<double>(zone_.good_counts[row_]);
    std::vector<double> mean(dv);
    for (size_t j = 0; good > 0.0 && j < dv; ++j) mean[j] = zone_.value_sums[row_ * dv + j] / good;
    return mean;
  }

  double scale() const { return static_cast<double>(input_.scale); }

  Codec codec_;  // of the entry's sequence
  const Zone& zone_;
  const AttendInput& input_;
  int64_t n_;
  int32_t kv_head_ = 0;
  size_t r_ = 0;    // of the call
  size_t q_ = 0;    // query head of the call
  size_t row_ = 0;  // of the zone
  int64_t sketched_ = 0;
  double sketch_size_ = 0.0;  // the largest
  TailSizes result_;
};

}  // namespace

TailSizes tail_sizes(const Codec& codec, const Zone& zone, const AttendInput& input, int64_t i,
                     int32_t query_head) {
  return Tail(codec, zone, input, i, query_head).sizes();
}

}  // namespace pkv::conformance
