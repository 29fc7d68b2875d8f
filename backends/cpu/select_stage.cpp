// Slots of stage select: votes that are already there. docs/algorithm.md, section 5.
// The fused step (step.cpp) selects while it votes; this is the stage on its own.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/check_stages.h"
#include "backends/cpu/device.h"
#include "backends/cpu/select.h"
#include "backends/cpu/stages.h"
#include "core/format/candidates.h"
#include "pariskv/pariskv_backend.hpp"

namespace pkv::cpu {
namespace {

constexpr float kNoGuess = -std::numeric_limits<float>::infinity();

Survivors take(Scratch& scratch, const Isa& isa, const pkv_select_args& args) {
  const int64_t n = args.batch.max_length;
  return take_survivors(scratch, isa, n, format::largest_candidate_count(args.rule, n));
}

int64_t bytes_each(const Isa& isa, const pkv_select_args& args) {
  Scratch scratch(nullptr);
  take(scratch, isa, args);
  return scratch.bytes();
}

pkv_status supports(pkv_backend_device* device, const pkv_select_args* args) {
  return check_select(device->host, *args);
}

pkv_status scratch_bytes(pkv_backend_device* device, const pkv_select_args* args, int64_t* out) {
  *out = device->pool.reserve_workers() * bytes_each(device->isa, *args);
  return PKV_OK;
}

// Every `step`-th run of 16 votes, about a sixteenth of them.
float guess(const float* votes, int64_t n, int64_t wanted, const Survivors& survivors) {
  if (n <= kSurvivorsAtLeast || wanted <= 0 || 4 * wanted > n) return kNoGuess;
  constexpr int64_t kRun = 16;
  const int64_t runs = std::min<int64_t>(1024, n / (16 * kRun));
  for (int64_t i = 0; i < runs; ++i) {
    std::copy_n(votes + i * (n / kRun) / runs * kRun, kRun, survivors.values + i * kRun);
  }
  const int64_t rank = sample_rank(wanted, n, runs * kRun);
  return bound_of_rank(*survivors.isa, survivors.values, runs * kRun, rank);
}

void select_votes(const pkv_select_args& a, int64_t r, int64_t n, Survivors& survivors) {
  const float* votes = a.votes + r * a.votes_stride;
  const int64_t wanted = format::candidate_count(a.rule, n);
  const float threshold = guess(votes, n, wanted, survivors);
  reset(survivors, wanted, threshold);
  if (wanted > 0) add_votes(votes, n, 0, survivors);
  if (survivors.count < wanted && threshold > kNoGuess) {
    reset(survivors, wanted, kNoGuess);
    add_votes(votes, n, 0, survivors);
  }
  keep_best(survivors);
  int32_t* candidates = a.candidates + r * a.candidates_stride;
  std::copy_n(survivors.positions, survivors.count, candidates);
  std::fill(candidates + survivors.count, candidates + a.candidates_stride, -1);
  a.candidate_counts[r] = static_cast<int32_t>(survivors.count);
}

pkv_status run(pkv_backend_device* device, pkv_backend_stream* /*stream*/,
               const pkv_select_args* args, void* scratch) {
  return backend::guard(device->host, [&] {
    const int64_t each = bytes_each(device->isa, *args);
    const int64_t rows = int64_t{args->batch.batch} * args->kv_heads;
    return device->pool.parallel(rows, 1, [&](int64_t r, int32_t worker) {
      Scratch own = worker_scratch(scratch, worker, each);
      Survivors survivors = take(own, device->isa, *args);
      select_votes(*args, r, args->batch.lengths[r / args->kv_heads], survivors);
    });
  });
}

}  // namespace

pkv_select_slots select_slots() { return {supports, scratch_bytes, run}; }

}  // namespace pkv::cpu
