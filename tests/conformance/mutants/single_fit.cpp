// Fit in fp32: sums of blocks of at most 1,024 rows, the blocks in double. docs/algorithm.md,
// section 2.2. Heads whose rows are not all usable are left to cpu_ref.
#include <algorithm>

#include "tests/conformance/mutants/single.h"

namespace pkv::mutants {
namespace {

// The sum of term(t), 0 <= t < count.
template <class Term>
double block_sum(int64_t count, Term term) {
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += 1024) {
    float block = 0.0F;
    for (int64_t t = begin; t < std::min(begin + 1024, count); ++t) block += term(t);
    sum += static_cast<double>(block);
  }
  return sum;
}

void fit_keys(const pkv_fit_args& a, int32_t head) {
  const int64_t n = a.keys.shape[1];
  const int32_t d = a.geometry->head_dim;
  const int32_t dv = a.values.ndim == 0 ? 0 : a.geometry->value_dim;
  if (a.key_counts[head] != n) return;
  const auto weight = [&](int64_t t) {
    return a.weights == nullptr ? 1.0F : static_cast<float>(a.weights[head * n + t]);
  };
  for (int32_t j = 0; j < d; ++j) {
    const auto x = [&](int64_t t) { return element(a.keys, {head, t}, j) - a.pivot[head * d + j]; };
    a.key_sums[head * d + j] = block_sum(n, [&](int64_t t) { return weight(t) * x(t); });
    a.key_squares[head * d + j] =
        block_sum(n, [&](int64_t t) { return weight(t) * (x(t) * x(t)); });
  }
  for (int32_t j = 0; a.value_sums != nullptr && j < dv; ++j) {
    a.value_sums[head * dv + j] = block_sum(n, [&](int64_t t) {
      return element(a.values, {head, t}, j);
    });
  }
}

void fit_queries(const pkv_fit_args& a, int32_t head) {
  if (a.queries.ndim == 0) return;
  const int32_t d = a.geometry->head_dim;
  const int64_t m = a.queries.shape[1];
  const int64_t G = a.queries.shape[0] / a.geometry->kv_heads;
  const bool is_sum = a.queries_as == PKV_FIT_QUERIES_SUM;
  if (a.query_counts[head] != (is_sum ? m : m * G)) return;
  for (int32_t j = 0; j < d; ++j) {
    const auto q = [&](int64_t g, int64_t position) {
      return element(a.queries, {head * G + g, position}, j);
    };
    const auto square = [&](int64_t row) {
      float x = is_sum ? q(0, row) : q(row / m, row % m);
      for (int64_t g = 1; is_sum && g < G; ++g) x = x + q(g, row);
      return x * x;
    };
    a.query_squares[head * d + j] = block_sum(a.query_counts[head], square);
  }
}

pkv_status fit(pkv_backend_device* device, pkv_backend_stream* stream, const pkv_fit_args* args,
               void* scratch) {
  const pkv_status status = sound().fit.run(device, stream, args, scratch);
  for (int32_t head = 0; status == PKV_OK && head < args->geometry->kv_heads; ++head) {
    fit_keys(*args, head);
    fit_queries(*args, head);
  }
  return status;
}

constexpr Mutant kMutants[] = {
    {"single_fit", [](pkv_backend& t) { t.fit.run = fit; }},
};

}  // namespace

std::span<const Mutant> single_fit() { return kMutants; }

}  // namespace pkv::mutants
