#include "tools/exact.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "tools/element.h"

namespace pkv::cli {
namespace {

constexpr int64_t kBlock = 32;  // tokens converted to double at a time
constexpr int kLanes = 8;       // head_dim is a multiple of it; sums side by side vectorise

// Rows [begin, begin + count) of one KV head in double.
class Block {
 public:
  Block(const TraceTensor& tensor, int64_t kv_head)
      : tensor_(tensor),
        kv_head_(kv_head),
        dim_(tensor.shape[2]),
        floats_(static_cast<size_t>(kBlock * dim_)),
        doubles_(static_cast<size_t>(kBlock * dim_)) {}

  const double* load(int64_t begin, int64_t count) {
    to_float(tensor_.dtype, tensor_.row(kv_head_, begin), count * dim_, floats_.data());
    std::copy_n(floats_.begin(), count * dim_, doubles_.begin());
    return doubles_.data();
  }

 private:
  const TraceTensor& tensor_;
  int64_t kv_head_;
  int64_t dim_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

double dot(const double* a, const double* b, int64_t dim) {
  double sums[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= dim; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[j + lane] * b[j + lane];
  }
  for (; j < dim; ++j) sums[0] += a[j] * b[j];
  return std::accumulate(sums, sums + kLanes, 0.0);
}

// scale * <q_g, k_t> of one KV head's group: [G, tokens].
void compute_logits(const Trace& trace, int64_t query, int64_t kv_head, int64_t tokens,
                    double* logits) {
  const int64_t dim = trace.head_dim();
  const int64_t group = trace.group();
  const double scale = trace.scale_value();
  std::vector<float> floats(static_cast<size_t>(group * dim));
  to_float(trace.queries.dtype, trace.queries.row(query, kv_head * group), group * dim,
           floats.data());
  const std::vector<double> queries(floats.begin(), floats.end());
  Block block(trace.keys, kv_head);
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t count = std::min(kBlock, tokens - begin);
    const double* keys = block.load(begin, count);
    for (int64_t g = 0; g < group; ++g) {
      const double* q = queries.data() + g * dim;
      double* out = logits + g * tokens + begin;
      for (int64_t t = 0; t < count; ++t) out[t] = scale * dot(q, keys + t * dim, dim);
    }
  }
}

void softmax(double* row, int64_t tokens) {
  const double most = *std::max_element(row, row + tokens);
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    row[t] = std::exp(row[t] - most);
    sum += row[t];
  }
  for (int64_t t = 0; t < tokens; ++t) row[t] /= sum;
}

// sum_t weights[g, t] * v_t of one KV head's group: [G, dv].
void weigh_values(const Trace& trace, int64_t kv_head, int64_t tokens, const double* weights,
                  double* output) {
  const int64_t dim = trace.value_dim();
  Block block(trace.values, kv_head);
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t count = std::min(kBlock, tokens - begin);
    const double* values = block.load(begin, count);
    for (int64_t g = 0; g < trace.group(); ++g) {
      double* out = output + g * dim;
      for (int64_t t = 0; t < count; ++t) {
        const double weight = weights[g * tokens + begin + t];
        const double* value = values + t * dim;
        for (int64_t j = 0; j < dim; ++j) out[j] += weight * value[j];
      }
    }
  }
}

void mean_over_group(const double* logits, int64_t group, int64_t tokens, double* scores) {
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t g = 0; g < group; ++g) sum += logits[g * tokens + t];
    scores[t] = sum / static_cast<double>(group);
  }
}

}  // namespace

std::span<const double> Exact::weights_of(int64_t query_head) const {
  return std::span(weights).subspan(static_cast<size_t>(query_head * regions.tokens),
                                    static_cast<size_t>(regions.tokens));
}

std::span<const int32_t> Exact::best_of(int64_t kv_head) const {
  return std::span(best).subspan(static_cast<size_t>(kv_head * wanted),
                                 static_cast<size_t>(wanted));
}

std::vector<int32_t> best_positions(std::span<const double> scores, int64_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const double left = scores[static_cast<size_t>(a)];
    const double right = scores[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

Exact attend_exactly(const Trace& trace, int64_t query, const Regions& regions, int64_t k) {
  using Clock = std::chrono::steady_clock;
  const int64_t tokens = regions.tokens;
  const int64_t group = trace.group();
  Exact exact;
  exact.regions = regions;
  exact.wanted = std::min(k, regions.zone_tokens());
  exact.weights.resize(static_cast<size_t>(trace.query_heads() * tokens));
  exact.output.resize(static_cast<size_t>(trace.query_heads() * trace.value_dim()));
  exact.scores.resize(static_cast<size_t>(trace.kv_heads() * tokens));
  for (int64_t head = 0; head < trace.kv_heads(); ++head) {
    double* weights = exact.weights.data() + head * group * tokens;
    double* scores = exact.scores.data() + head * tokens;
    const auto start = Clock::now();
    compute_logits(trace, query, head, tokens, weights);
    mean_over_group(weights, group, tokens, scores);
    const std::vector<int32_t> best =
        best_positions({scores + regions.sink_end, static_cast<size_t>(regions.zone_tokens())}, k);
    exact.search_us += std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    exact.best.insert(exact.best.end(), best.begin(), best.end());
    for (int64_t g = 0; g < group; ++g) softmax(weights + g * tokens, tokens);
    weigh_values(trace, head, tokens, weights,
                 exact.output.data() + head * group * trace.value_dim());
  }
  return exact;
}

}  // namespace pkv::cli
