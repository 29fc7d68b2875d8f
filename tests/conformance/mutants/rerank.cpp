// Faults of rerank.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/conformance/mutants/mutant.h"

namespace pkv::mutants {
namespace {

int64_t rows_of(const pkv_rerank_args& a) {
  return int64_t{a.batch.batch} * a.codec.geometry->kv_heads;
}

void raise_estimate(const pkv_rerank_args& a) {
  if (a.estimates == nullptr || rows_of(a) == 0 || a.candidate_counts[0] == 0) return;
  if (a.counts[0] == 0 && a.k > 0) return;
  next<float, uint32_t>(a.estimates[a.candidate_counts[0] - 1]);
}

// Far more than rounding explains: 64 units in the last place.
void shift_estimates(const pkv_rerank_args& a) {
  for (int32_t i = 0; i < 64; ++i) raise_estimate(a);
}

void swap_hits(const pkv_rerank_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    if (a.counts[r] < 2) continue;
    std::swap(a.positions[r * a.k], a.positions[r * a.k + 1]);
    std::swap(a.scores[r * a.k], a.scores[r * a.k + 1]);
  }
}

void swap_ties(const pkv_rerank_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    for (int32_t slot = 1; slot < a.counts[r]; ++slot) {
      const int64_t at = r * a.k + slot;
      if (a.scores[at] == a.scores[at - 1]) std::swap(a.positions[at], a.positions[at - 1]);
    }
  }
}

// The best candidate is left out for the next.
void miss_best(const pkv_rerank_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    if (a.counts[r] < 2 || a.k < 2) continue;
    a.positions[r * a.k] = a.positions[r * a.k + 1];
    a.scores[r * a.k] = a.scores[r * a.k + 1];
  }
}

void fill_with_zero(const pkv_rerank_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) {
    std::fill(a.positions + r * a.k + a.counts[r], a.positions + (r + 1) * a.k, 0);
  }
}

void raise_count(const pkv_rerank_args& a) {
  for (int64_t r = 0; r < rows_of(a); ++r) a.counts[r] = std::min(a.counts[r] + 1, a.k);
}

void take_base_two(const pkv_rerank_args& a) {
  for (int64_t q = 0; a.rest_lse != nullptr && q < int64_t{a.batch.batch} * a.query_heads; ++q) {
    a.rest_lse[q] *= 1.44269504F;
  }
}

void lose_rest(const pkv_rerank_args& a) {
  for (int64_t q = 0; a.rest_lse != nullptr && q < int64_t{a.batch.batch} * a.query_heads; ++q) {
    if (std::isinf(a.rest_lse[q])) a.rest_lse[q] = -1e30F;
  }
}

void sample_all(pkv_rerank_args& a) { a.tail_samples = INT32_MAX; }
void sample_one_less(pkv_rerank_args& a) { a.tail_samples = std::max(a.tail_samples - 1, 1); }
void forget_share(pkv_rerank_args& a) { a.share = 0.0; }
void forget_least(pkv_rerank_args& a) { a.k_min = 0; }
void forget_norms(pkv_rerank_args& a) { a.weigh_norms = 0; }
void rank_by_mean(pkv_rerank_args& a) {
  if (a.share == 0.0) a.rank = PKV_RANK_MEAN;
}
void ignore_scale(pkv_rerank_args& a) { a.scale = 1.0F; }
void forget_query_strides(pkv_rerank_args& a) { forget_strides(a.queries); }
void do_eight_entries(pkv_rerank_args& a) { a.batch.batch = std::min(a.batch.batch, 8); }

void lose_limit(const pkv_rerank_args& a) {
  if (a.estimates == nullptr) return;
  for (int64_t q = 0; q < int64_t{a.batch.batch} * a.query_heads; ++q) {
    const int64_t r = q / (a.query_heads / a.codec.geometry->kv_heads);
    for (int32_t c = 0; c < a.candidate_counts[r]; ++c) {
      float& estimate = a.estimates[q * a.candidates_stride + c];
      if (std::fabs(estimate) == 1e30F) estimate = std::copysign(INFINITY, estimate);
    }
  }
}

constexpr auto kRerank = &pkv_backend::rerank;

constexpr Mutant kMutants[] = {
    {"rerank_estimate_ulp",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, raise_estimate>; }},
    {"rerank_polar_estimate",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, shift_estimates>; }},
    {"rerank_score_order", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, swap_hits>; }},
    {"rerank_tie_order", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, swap_ties>; }},
    {"rerank_misses_best", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, miss_best>; }},
    {"rerank_filler", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, fill_with_zero>; }},
    {"rerank_stale_count",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, raise_count>; }},
    {"rerank_rest_base_2",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, take_base_two>; }},
    {"rerank_rest_not_inf", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, lose_rest>; }},
    {"rerank_rest_of_all", [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, sample_all>; }},
    {"rerank_rest_sample_off",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, sample_one_less>; }},
    {"rerank_ignores_share",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, forget_share>; }},
    {"rerank_ignores_k_min",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, forget_least>; }},
    {"rerank_ignores_norms",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, forget_norms>; }},
    {"rerank_by_mean", [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, rank_by_mean>; }},
    {"rerank_ignores_scale",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, ignore_scale>; }},
    {"rerank_ignores_strides",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, forget_query_strides>; }},
    {"rerank_eight_entries",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, do_eight_entries>; }},
    {"rerank_no_limit", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, lose_limit>; }},
};

}  // namespace

std::span<const Mutant> rerank_mutants() { return kMutants; }

}  // namespace pkv::mutants
