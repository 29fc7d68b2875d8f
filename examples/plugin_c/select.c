/* Stage select: the C keys with the highest vote, in ascending position. docs/algorithm.md,
 * section 5. Votes become integers of the same order; the C-th largest is found bit by bit, so that
 * nothing but the votes is read and no scratch is needed. */
#include "backend.h"

static pkv_status supports(pkv_backend_device *device, const pkv_select_args *args) {
  (void)device, (void)args;
  return PKV_OK;
}

static pkv_status scratch_bytes(pkv_backend_device *device, const pkv_select_args *args,
                                int64_t *out) {
  (void)device, (void)args;
  *out = 0;
  return PKV_OK;
}

static int64_t wanted_of(const pkv_candidate_rule *rule, int64_t n) {
  int32_t step = 0;
  while (step < rule->steps - 1 && n >= rule->below[step]) ++step;
  const int64_t share = (n * rule->ppm[step] + 999999) / 1000000;
  const int64_t wanted = share > rule->k ? share : rule->k;
  return wanted < n ? wanted : n;
}

/* Larger for a larger vote, equal for +0 and -0; 0 for a NaN, which is never chosen. */
static uint32_t order_of(float vote) {
  uint32_t bits;
  if (isnan(vote)) return 0;
  if (vote == 0.0F) return 0x80000000U;
  memcpy(&bits, &vote, sizeof bits);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

static int64_t count_from(const float *votes, int64_t n, uint32_t least) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += order_of(votes[i]) >= least;
  return count;
}

static void select_row(const pkv_select_args *a, int64_t row, int64_t n) {
  const float *votes = a->votes + row * a->votes_stride;
  int32_t *candidates = a->candidates + row * a->candidates_stride;
  const int64_t eligible = count_from(votes, n, 1);
  int64_t wanted = wanted_of(&a->rule, n);
  if (wanted > eligible) wanted = eligible;

  uint32_t cut = 0; /* the wanted-th largest: the largest `cut` that as many reach */
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    if (count_from(votes, n, cut | bit) >= wanted) cut |= bit;
  }
  int64_t equals = wanted; /* of those equal to the cut, so many, from the smallest position on */
  if (cut != UINT32_MAX) equals -= count_from(votes, n, cut + 1);
  int64_t count = 0;
  for (int64_t i = 0; i < n && count < wanted; ++i) {
    const uint32_t order = order_of(votes[i]);
    if (order < cut || order == 0 || (order == cut && equals-- <= 0)) continue;
    candidates[count++] = (int32_t)i;
  }
  a->candidate_counts[row] = (int32_t)count;
  for (; count < a->candidates_stride; ++count) candidates[count] = -1;
}

static pkv_status run(pkv_backend_device *device, pkv_backend_stream *stream,
                      const pkv_select_args *args, void *scratch) {
  (void)device, (void)stream, (void)scratch;
  for (int64_t row = 0; row < (int64_t)args->batch.batch * args->kv_heads; ++row) {
    select_row(args, row, args->batch.lengths[row / args->kv_heads]);
  }
  return PKV_OK;
}

const pkv_select_slots example_select = {supports, scratch_bytes, run};
