// Rerank in fp32: estimates of polar4, scores, samples and the rest's mass. docs/algorithm.md,
// section 6. Without adaptive k.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/conformance/half.h"
#include "tests/conformance/mutants/single.h"

namespace pkv::mutants {
namespace {

float log_sum(const std::vector<float>& x) {
  float max = -INFINITY;
  for (const float value : x) max = std::max(max, value);
  if (max == -INFINITY) return max;
  float sum = 0.0F;
  for (const float value : x) sum += std::exp(value - max);
  return max + std::log(sum);
}

float limited(float e) { return std::isnan(e) ? -1e30F : std::clamp(e, -1e30F, 1e30F); }

// In the rest's mass.
enum class Fault {
  kNone,
  kRestOfGood,      // the mean over the good samples alone
  kRestOfZone,      // R = n
  kWithCandidates,  // candidates among the samples count too
};

class Row {
 public:
  Row(const pkv_rerank_args& a, int64_t r)
      : a_(a),
        g_(*a.codec.geometry),
        r_(r),
        G_(a.query_heads / g_.kv_heads),
        i_(r / g_.kv_heads),
        kv_head_(static_cast<int32_t>(r % g_.kv_heads)),
        store_row_(int64_t{a.batch.sequences[i_]} * g_.kv_heads + kv_head_),
        levels_(polar_levels()) {
    const float* r_of_head = codec_row(a.codec, a.codec.inv_balance, i_, kv_head_, g_.head_dim);
    const float* mu = codec_row(a.codec, a.codec.center, i_, kv_head_, g_.head_dim);
    for (int32_t g = 0; g < G_; ++g) {
      std::vector<float> y;
      float base = 0.0F;
      for (int32_t j = 0; j < g_.head_dim; ++j) {
        const float q = element(a.queries, {i_, kv_head_ * G_ + g}, j);
        y.push_back(q * r_of_head[j]);
        base += q * mu[j];
      }
      rotate(y, a.codec.signs_1, a.codec.signs_2, g_.rounds);
      queries_.push_back(y);
      base_.push_back(base);
    }
  }

  // polar4, candidates and keys of the rest alike.
  float estimate(int32_t g, const CanonicalRecord& record) const {
    const std::vector<float> level = record.keys(levels_);
    const auto of_head = static_cast<size_t>(g);
    const bool is_one_round = (g_.head_dim & (g_.head_dim - 1)) == 0 && g_.rounds == 1;
    const float gain = is_one_round ? static_cast<float>(g_.head_dim) : 1.0F;
    float sum = 0.0F;
    for (int32_t b = 0; b < g_.head_dim / 8; ++b) {
      float product = 0.0F;
      for (int32_t j = 8 * b; j < 8 * b + 8; ++j) {
        product += level[static_cast<size_t>(j)] * queries_[of_head][static_cast<size_t>(j)];
      }
      sum += record.factor(b) * product;
    }
    return limited(sum / gain + base_[of_head]);
  }

  void write_estimates() const {
    for (int32_t c = 0; c < count(); ++c) {
      const CanonicalRecord record(g_, a_.store, store_row_, candidate(c));
      for (int32_t g = 0; g < G_; ++g) at(g, c) = estimate(g, record);
    }
  }

  void write_hits() const {
    std::vector<float> scores = this->scores();
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      return scores[static_cast<size_t>(x)] > scores[static_cast<size_t>(y)];
    });
    const int32_t hits = std::min(a_.k, count());
    for (int32_t slot = 0; slot < hits; ++slot) {
      const int32_t c = order[static_cast<size_t>(slot)];
      a_.positions[r_ * a_.k + slot] = candidate(c);
      a_.scores[r_ * a_.k + slot] = scores[static_cast<size_t>(c)];
    }
  }

  // 6.4, estimates of polar4 by this class, of others as they are.
  void write_samples(Fault fault) const {
    const bool is_polar = g_.codec == PKV_CODEC_POLAR4;
    const int64_t n = a_.batch.lengths[i_];
    const int32_t* first = a_.candidates + r_ * a_.candidates_stride;
    const std::vector<int32_t> positions = sample_positions(g_, n, a_.tail_samples);
    std::vector<std::vector<float>> logits(static_cast<size_t>(G_));
    float seen = 0.0F;
    for (size_t i = 0; i < positions.size(); ++i) {
      const CanonicalRecord record(g_, a_.store, store_row_, positions[i]);
      const bool is_out = fault != Fault::kWithCandidates &&
                          std::binary_search(first, first + count(), positions[i]);
      if (!is_out && !(fault == Fault::kRestOfGood && record.is_bad())) ++seen;
      if (record.is_bad()) continue;
      for (int32_t g = 0; g < G_; ++g) {
        float& of_sample =
            a_.sample_estimates[(r_ * G_ + g) * a_.tail_samples + static_cast<int64_t>(i)];
        if (is_polar) of_sample = estimate(g, record);
        if (!is_out) logits[static_cast<size_t>(g)].push_back(logit(of_sample));
      }
    }
    if (a_.rest_lse == nullptr) return;
    const int64_t R = fault == Fault::kRestOfZone ? n : n - count();
    const float factor = seen == 0.0F ? 0.0F : std::log(static_cast<float>(R) / seen);
    for (int32_t g = 0; g < G_; ++g) {
      a_.rest_lse[r_ * G_ + g] = log_sum(logits[static_cast<size_t>(g)]) + factor;
    }
  }

 private:
  float logit(float estimate) const { return capped(a_.scale * estimate, a_.soft_cap); }
  int32_t count() const { return a_.candidate_counts[r_]; }
  int32_t candidate(int32_t c) const { return a_.candidates[r_ * a_.candidates_stride + c]; }
  float& at(int32_t g, int32_t c) const {
    return a_.estimates[(r_ * G_ + g) * a_.candidates_stride + c];
  }

  std::vector<float> scores() const {
    std::vector<float> lse;
    for (int32_t g = 0; g < G_; ++g) {
      std::vector<float> logits;
      for (int32_t c = 0; c < count(); ++c) logits.push_back(logit(at(g, c)));
      lse.push_back(log_sum(logits));
    }
    std::vector<float> scores;
    for (int32_t c = 0; c < count(); ++c) {
      std::vector<float> shares;
      float sum = at(0, c);
      for (int32_t g = 0; g < G_; ++g) {
        shares.push_back(logit(at(g, c)) - lse[static_cast<size_t>(g)]);
        if (g > 0) sum = sum + at(g, c);
      }
      scores.push_back(a_.rank == PKV_RANK_GROUP ? log_sum(shares) : sum / static_cast<float>(G_));
      if (a_.weigh_norms != 0) scores.back() = weighed(scores.back(), candidate(c));
    }
    return scores;
  }

  float weighed(float score, int32_t position) const {
    const float nv = CanonicalRecord(g_, a_.store, store_row_, position).value_norm();
    return nv == 0.0F ? -1e30F : score + std::log(nv);
  }

  const pkv_rerank_args& a_;
  const pkv_geometry& g_;
  int64_t r_;
  int32_t G_;
  int64_t i_;
  int32_t kv_head_;
  int64_t store_row_;
  Levels levels_;
  std::vector<std::vector<float>> queries_;  // [G][d] rotated
  std::vector<float> base_;                  // [G] <q, mu>
};

// cpu_ref's counts and fillers stay, and what it makes of bad queries.
template <Fault kFault>
pkv_status rerank(pkv_backend_device* device, pkv_backend_stream* stream,
                  const pkv_rerank_args* args, void* scratch) {
  const pkv_status status = sound().rerank.run(device, stream, args, scratch);
  const pkv_rerank_args& a = *args;
  if (status != PKV_OK || a.share > 0.0 || a.estimates == nullptr) return status;
  for (int64_t r = 0; r < int64_t{a.batch.batch} * a.codec.geometry->kv_heads; ++r) {
    const Row row(a, r);
    if (a.candidate_counts[r] == 0) continue;
    if (a.codec.geometry->codec == PKV_CODEC_POLAR4) row.write_estimates();
    row.write_hits();
    if (a.sample_estimates != nullptr) row.write_samples(kFault);
  }
  return PKV_OK;
}

constexpr Mutant kMutants[] = {
    {"single_rerank", [](pkv_backend& t) { t.rerank.run = rerank<Fault::kNone>; }},
    {"rerank_rest_of_good", [](pkv_backend& t) { t.rerank.run = rerank<Fault::kRestOfGood>; }},
    {"rerank_rest_of_zone", [](pkv_backend& t) { t.rerank.run = rerank<Fault::kRestOfZone>; }},
    {"rerank_rest_with_candidates",
     [](pkv_backend& t) { t.rerank.run = rerank<Fault::kWithCandidates>; }},
};

}  // namespace

std::span<const Mutant> single_rerank() { return kMutants; }

}  // namespace pkv::mutants
