// Attend in fp32, in one pass with a running maximum. docs/algorithm.md, section 8.
#include <algorithm>
#include <cmath>

#include "tests/conformance/mutants/single.h"

namespace pkv::mutants {
namespace {

constexpr float kNothing = -INFINITY;

// Weights, values, and the values of sketches in rotated space.
struct State {
  float max = kNothing;
  float sum = 0.0F;
  float sketched = 0.0F;  // weight of the sketches
  std::vector<float> out;
  std::vector<float> rotated;

  explicit State(size_t dv) : out(dv), rotated(dv) {}

  // The weight of a token with this logit.
  float enter(float logit) {
    if (logit == kNothing) return 0.0F;
    if (logit > max) {
      const float shrink = max == kNothing ? 0.0F : std::exp(max - logit);
      sum *= shrink;
      sketched *= shrink;
      for (float& value : out) value *= shrink;
      for (float& value : rotated) value *= shrink;
      max = logit;
    }
    const float weight = std::exp(logit - max);
    sum += weight;
    return weight;
  }
};

// In the value of the pseudo-token.
enum class Fault {
  kNone,
  kTrusting,        // l = 1
  kHalfAtSixteen,   // l = N / (N + 16)
  kNeverWhole,      // l = N / (N + 32) even where every key is a sample
  kAlwaysWhole,     // with tail = sampled too
  kByCount,         // N = number of samples
  kUnweighted,      // v_hat = their plain mean
  kWithCandidates,  // sketch: candidates among them
  kWithFetched,     // sampled: fetched keys among them
  kRestOnly,        // sampled: no candidates among them
  kFirstPositions,  // sample i at p * i
};

class Head {
 public:
  Head(const pkv_attend_args& a, int64_t i, int32_t query_head, Fault fault)
      : a_(a),
        fault_(fault),
        g_(*a.codec.geometry),
        i_(i),
        query_head_(query_head),
        kv_head_(query_head / (a.query_heads / g_.kv_heads)),
        state_(static_cast<size_t>(g_.value_dim)) {}

  // The log-sum-exp; the output is written.
  float attend() {
    if (a_.sink_logits != nullptr) state_.enter(a_.sink_logits[query_head_]);
    for (int32_t p = 0; p < a_.part_count; ++p) add_part(a_.parts[p]);
    const int64_t r = i_ * g_.kv_heads + kv_head_;
    for (int64_t slot = 0; a_.k > 0 && slot < a_.counts[r]; ++slot) {
      add_token(a_.row_keys.dtype, vector_at(a_.row_keys, {i_, kv_head_, slot}),
                vector_at(a_.row_values, {i_, kv_head_, slot}), a_.row_values.dtype);
    }
    if (a_.tail != PKV_TAIL_DROP) add_tail(r);
    for (int32_t j = 0; j < g_.value_dim; ++j) {
      set_element(a_.output, {i_, query_head_}, j, state_.out[static_cast<size_t>(j)] / state_.sum);
    }
    return state_.max + std::log(state_.sum);
  }

 private:
  void add_part(const pkv_part& part) {
    const int64_t length = part.lengths != nullptr ? part.lengths[i_] : part.keys.shape[2];
    const int64_t start = part.starts != nullptr ? part.starts[i_] : 0;
    const auto at = [&](const pkv_tensor& tensor, const pkv_pages& pages, int64_t t) {
      return pages.table == nullptr ? vector_at(tensor, {i_, kv_head_, t})
                                    : vector_at(pages, a_.batch.sequences[i_], kv_head_, start + t);
    };
    for (int64_t t = 0; t < length; ++t) {
      add_token(part.keys.dtype, at(part.keys, part.key_pages, t),
                at(part.values, part.value_pages, t), part.values.dtype);
    }
  }

  void add_token(pkv_dtype key_dtype, const uint8_t* key, const uint8_t* value,
                 pkv_dtype value_dtype) {
    float dot = 0.0F;
    for (int32_t j = 0; j < g_.head_dim; ++j) {
      dot += element(a_.queries, {i_, query_head_}, j) * element(key_dtype, key, j);
    }
    const float weight = state_.enter(logit(dot));
    for (size_t j = 0; j < state_.out.size(); ++j) {
      state_.out[j] += weight * element(value_dtype, value, static_cast<int64_t>(j));
    }
  }

  float logit(float product) const { return capped(a_.scale * product, a_.soft_cap); }

  bool is_fetched(int64_t r, int32_t position) const {
    if (a_.k == 0) return false;
    const int32_t* first = a_.positions + r * a_.k;
    return std::find(first, first + a_.counts[r], position) != first + a_.counts[r];
  }

  void add_tail(int64_t r) {
    const int64_t q = i_ * a_.query_heads + query_head_;
    const int64_t row = int64_t{a_.batch.sequences[i_]} * g_.kv_heads + kv_head_;
    float rest = a_.rest_lse[q];
    for (int32_t c = 0; c < a_.candidate_counts[r]; ++c) {
      const int32_t position = a_.candidates[r * a_.candidates_stride + c];
      if (is_fetched(r, position)) continue;
      const float logit = this->logit(a_.estimates[q * a_.candidates_stride + c]);
      if (a_.tail == PKV_TAIL_SKETCH) {
        add_sketch(row, position, state_.enter(logit));
      } else {
        const float top = std::max(rest, logit);
        if (top != kNothing) rest = top + std::log(std::exp(rest - top) + std::exp(logit - top));
      }
    }
    add_pseudo_token(r, row, rest);
    if (!reads_samples()) return;
    unrotate(state_.rotated, a_.codec.value_signs_1, a_.codec.value_signs_2);
    const float* center = codec_row(a_.codec, a_.codec.value_center, i_, kv_head_, g_.value_dim);
    for (size_t j = 0; j < state_.out.size(); ++j) {
      state_.out[j] += state_.sketched * center[j] + state_.rotated[j];
    }
  }

  bool reads_samples() const { return a_.tail == PKV_TAIL_SKETCH || a_.tail == PKV_TAIL_SAMPLED; }

  bool is_candidate(int64_t r, int32_t position) const {
    const int32_t* first = a_.candidates + r * a_.candidates_stride;
    return std::binary_search(first, first + a_.candidate_counts[r], position);
  }

  bool is_left_out(int64_t r, int32_t position) const {
    if (a_.tail == PKV_TAIL_SKETCH) {
      return fault_ != Fault::kWithCandidates && is_candidate(r, position);
    }
    if (fault_ == Fault::kRestOnly && is_candidate(r, position)) return true;
    return fault_ != Fault::kWithFetched && is_fetched(r, position);
  }

  // l v_hat + (1 - l) v_mean.
  void add_pseudo_token(int64_t r, int64_t row, float logit) {
    const int64_t good = a_.good_counts[row];
    const float weight = good == 0 ? 0.0F : state_.enter(logit);
    if (weight == 0.0F) return;
    const float l = reads_samples() ? add_samples(r, row, weight) : 0.0F;
    for (size_t j = 0; j < state_.out.size(); ++j) {
      const double sum = a_.value_sums[row * g_.value_dim + static_cast<int64_t>(j)];
      state_.out[j] += weight * (1.0F - l) * static_cast<float>(sum / static_cast<double>(good));
    }
  }

  // Adds weight * l * v_hat and returns l.
  float add_samples(int64_t r, int64_t row, float weight) {
    const int64_t n = a_.batch.lengths[i_];
    const float* estimates =
        a_.sample_estimates + (i_ * a_.query_heads + query_head_) * int64_t{a_.tail_samples};
    std::vector<int32_t> positions = sample_positions(g_, n, a_.tail_samples);
    if (fault_ == Fault::kFirstPositions) {
      for (size_t i = 0; i < positions.size(); ++i) {
        positions[i] = static_cast<int32_t>(i) * g_.sketch_stride;
      }
    }
    std::vector<size_t> used;
    float max = kNothing;
    for (size_t i = 0; i < positions.size(); ++i) {
      if (is_left_out(r, positions[i]) || std::isnan(estimates[i])) continue;
      used.push_back(i);
      max = std::max(max, logit(estimates[i]));
    }
    float sum = 0.0F;
    float squares = 0.0F;
    std::vector<float> o;
    for (const size_t i : used) {
      o.push_back(fault_ == Fault::kUnweighted ? 1.0F : std::exp(logit(estimates[i]) - max));
      sum += o.back();
      squares += o.back() * o.back();
    }
    if (used.empty()) return 0.0F;
    const bool is_whole = g_.sketch_stride == 1 && n <= a_.tail_samples;
    const float l = trust(sum, squares, static_cast<float>(used.size()), is_whole);
    for (size_t u = 0; u < used.size(); ++u) {
      add_sketch(row, positions[used[u]], weight * l * (o[u] / sum));
    }
    return l;
  }

  float trust(float sum, float squares, float count, bool is_whole) const {
    const bool counts = a_.tail == PKV_TAIL_SKETCH || fault_ == Fault::kAlwaysWhole;
    if (is_whole && counts && fault_ != Fault::kNeverWhole) return 1.0F;
    if (fault_ == Fault::kTrusting) return 1.0F;
    const float N = fault_ == Fault::kByCount ? count : sum * sum / squares;
    return N / (N + (fault_ == Fault::kHalfAtSixteen ? 16.0F : 32.0F));
  }

  void add_sketch(int64_t row, int32_t position, float weight) {
    const CanonicalRecord record(g_, a_.store, row, position);
    const std::vector<float> levels = record.values(sketch_levels(g_.sketch_bits));
    state_.sketched += weight;
    for (size_t j = 0; j < levels.size(); ++j) {
      state_.rotated[j] += weight * record.value_factor() * levels[j];
    }
  }

  const pkv_attend_args& a_;
  Fault fault_;
  const pkv_geometry& g_;
  int64_t i_;
  int32_t query_head_;
  int32_t kv_head_;
  State state_;
};

// Heads with nothing to attend to, or a bad query, keep what cpu_ref wrote.
template <Fault kFault>
pkv_status attend(pkv_backend_device* device, pkv_backend_stream* stream,
                  const pkv_attend_args* args, void* scratch) {
  pkv_attend_args a = *args;
  std::vector<float> lse(static_cast<size_t>(a.batch.batch) * a.query_heads);
  a.lse = lse.data();
  const pkv_status status = sound().attend.run(device, stream, &a, scratch);
  if (status != PKV_OK) return status;
  for (int64_t i = 0; i < a.batch.batch; ++i) {
    for (int32_t head = 0; head < a.query_heads; ++head) {
      float& of_head = lse[static_cast<size_t>(i * a.query_heads + head)];
      if (of_head != kNothing) of_head = Head(a, i, head, kFault).attend();
    }
  }
  if (args->lse != nullptr) std::copy(lse.begin(), lse.end(), args->lse);
  return PKV_OK;
}

constexpr Mutant kMutants[] = {
    {"single_attend", [](pkv_backend& t) { t.attend.run = attend<Fault::kNone>; }},
    {"attend_trusts_samples", [](pkv_backend& t) { t.attend.run = attend<Fault::kTrusting>; }},
    {"attend_half_at_16", [](pkv_backend& t) { t.attend.run = attend<Fault::kHalfAtSixteen>; }},
    {"attend_never_whole", [](pkv_backend& t) { t.attend.run = attend<Fault::kNeverWhole>; }},
    {"attend_always_whole", [](pkv_backend& t) { t.attend.run = attend<Fault::kAlwaysWhole>; }},
    {"attend_samples_by_count", [](pkv_backend& t) { t.attend.run = attend<Fault::kByCount>; }},
    {"attend_samples_unweighted",
     [](pkv_backend& t) { t.attend.run = attend<Fault::kUnweighted>; }},
    {"attend_samples_candidates",
     [](pkv_backend& t) { t.attend.run = attend<Fault::kWithCandidates>; }},
    {"attend_samples_fetched", [](pkv_backend& t) { t.attend.run = attend<Fault::kWithFetched>; }},
    {"attend_samples_rest_only", [](pkv_backend& t) { t.attend.run = attend<Fault::kRestOnly>; }},
    {"attend_samples_first", [](pkv_backend& t) { t.attend.run = attend<Fault::kFirstPositions>; }},
};

}  // namespace

std::span<const Mutant> single_attend() { return kMutants; }

}  // namespace pkv::mutants
