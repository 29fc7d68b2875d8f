// Faults of rerank.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/conformance/mutants/mutant.h"
#include "tests/conformance/mutants/single.h"

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

// Calls change(estimate, row, position or -1 for an unused entry) for the samples' estimates.
template <class Change>
void for_samples(const pkv_rerank_args& a, Change change) {
  const pkv_geometry& g = *a.codec.geometry;
  for (int64_t q = 0; a.sample_estimates != nullptr && q < int64_t{a.batch.batch} * a.query_heads;
       ++q) {
    const int64_t r = q / (a.query_heads / g.kv_heads);
    const std::vector<int32_t> positions =
        sample_positions(g, a.batch.lengths[r / g.kv_heads], a.tail_samples);
    for (size_t i = 0; i < static_cast<size_t>(a.tail_samples); ++i) {
      const int32_t position = i < positions.size() ? positions[i] : -1;
      change(a.sample_estimates[q * a.tail_samples + static_cast<int64_t>(i)], r, position);
    }
  }
}

void raise_samples(const pkv_rerank_args& a) {
  for_samples(a, [](float& estimate, int64_t, int32_t) {
    if (estimate == estimate) next<float, uint32_t>(estimate);
  });
}

void shift_samples(const pkv_rerank_args& a) {
  for (int32_t i = 0; i < 64; ++i) raise_samples(a);
}

void clear_unused_samples(const pkv_rerank_args& a) {
  for_samples(a, [](float& estimate, int64_t, int32_t position) {
    if (position < 0) estimate = 0.0F;
  });
}

// Estimates of bad keys, and those that a bad query has.
void clear_bad_samples(const pkv_rerank_args& a) {
  for_samples(a, [](float& estimate, int64_t, int32_t position) {
    if (position >= 0 && std::isnan(estimate)) estimate = -1e30F;
  });
}

void lose_candidates(const pkv_rerank_args& a) {
  for_samples(a, [&](float& estimate, int64_t r, int32_t position) {
    const int32_t* first = a.candidates + r * a.candidates_stride;
    if (std::binary_search(first, first + a.candidate_counts[r], position)) estimate = NAN;
  });
}

// Samples at any position, not only where sketches are.
void sample_every_position(pkv_rerank_args& a) {
  static thread_local pkv_geometry geometry;
  geometry = *a.codec.geometry;
  geometry.sketch_stride = std::min(geometry.sketch_stride, 1);
  a.codec.geometry = &geometry;
}

void ignore_sets(pkv_rerank_args& a) { forget_sets(a.codec); }
void ignore_cap(pkv_rerank_args& a) { a.soft_cap = 0.0F; }
void turn_pages_late(pkv_rerank_args& a) {
  static thread_local std::vector<void*> late;
  a.store.pages =
      late_pages(a.store.pages, a.store.pages_stride, a.batch.sequences, a.batch.batch, late);
}

constexpr auto kRerank = &pkv_backend::rerank;

// The rest's mass of changed arguments, all else as it should be.
template <auto kChange>
pkv_status change_rest(pkv_backend_device* device, pkv_backend_stream* stream,
                       const pkv_rerank_args* args, void* scratch) {
  pkv_rerank_args changed = *args;
  changed.sample_estimates = nullptr;
  kChange(changed);
  const pkv_status status = sound().rerank.run(device, stream, &changed, scratch);
  if (status != PKV_OK) return status;
  changed = *args;
  changed.rest_lse = nullptr;
  return sound().rerank.run(device, stream, &changed, scratch);
}

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
    {"rerank_rest_of_all", [](pkv_backend& t) { t.rerank.run = change_rest<sample_all>; }},
    {"rerank_rest_sample_off", [](pkv_backend& t) { t.rerank.run = change_rest<sample_one_less>; }},
    {"rerank_sample_ulp",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, raise_samples>; }},
    {"rerank_polar_sample",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, shift_samples>; }},
    {"rerank_sample_filler",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, clear_unused_samples>; }},
    {"rerank_sample_bad",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, clear_bad_samples>; }},
    {"rerank_samples_no_candidates",
     [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, lose_candidates>; }},
    {"rerank_samples_off_stride",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, sample_every_position>; }},
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
    {"rerank_ignores_sets",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, ignore_sets>; }},
    {"rerank_ignores_cap", [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, ignore_cap>; }},
    {"rerank_late_pages",
     [](pkv_backend& t) { t.rerank.run = run_changed<kRerank, turn_pages_late>; }},
    {"rerank_no_limit", [](pkv_backend& t) { t.rerank.run = run_spoiled<kRerank, lose_limit>; }},
};

}  // namespace

std::span<const Mutant> rerank_mutants() { return kMutants; }

}  // namespace pkv::mutants
