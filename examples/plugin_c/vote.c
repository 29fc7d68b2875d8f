/* Stage vote: a number per key from its signs and vote factor. docs/algorithm.md, section 4. */
#include "backend.h"

static pkv_status supports(pkv_backend_device *device, const pkv_vote_args *args) {
  pkv_status status = check_geometry(device, args->codec.geometry);
  if (status == PKV_OK) status = check_dtype(device, "dtype of queries", args->queries.dtype);
  return status;
}

/* All heads of a group rotated, and their sum behind them. */
static int64_t vectors_of(const pkv_vote_args *args) {
  return args->query_heads / args->codec.geometry->kv_heads + 1;
}

static pkv_status scratch_bytes(pkv_backend_device *device, const pkv_vote_args *args,
                                int64_t *out) {
  (void)device;
  *out = vectors_of(args) * args->codec.geometry->head_dim * (int64_t)sizeof(float);
  return PKV_OK;
}

/* 4.1 and 4.4: q'_g and Q' into `y` [vectors, d]; 0 if one of them is bad. */
static int prepare(const pkv_vote_args *a, int64_t i, int32_t head, float *y) {
  const int32_t d = a->codec.geometry->head_dim;
  const int64_t group = vectors_of(a) - 1;
  const float *r = codec_row(&a->codec, a->codec.inv_balance, i, head);
  float *sum = y + group * d;
  int is_good = 1;
  for (int64_t g = 0; g < group; ++g) {
    load_vector(&a->queries, i, head * group + g, 0, y + g * d, d);
    for (int32_t j = 0; j < d; ++j) sum[j] = g == 0 ? y[j] : sum[j] + y[g * d + j];
  }
  for (int64_t g = 0; g <= group; ++g) {
    for (int32_t j = 0; j < d; ++j) y[g * d + j] = y[g * d + j] * r[j];
    rotate(&a->codec, y + g * d);
    if (!isfinite(fold_squares(y + g * d, d))) is_good = 0;
  }
  return is_good;
}

/* 4.2: the coordinates of `count` vectors become integers z, in place. */
static void make_integers(float *y, int64_t count, int32_t d) {
  float largest = 0.0F;
  for (int64_t b = 0; b < count * d; b += 8) {
    float x[8];
    for (int32_t j = 0; j < 8; ++j) x[j] = fabsf(y[b + j]);
    const float sum = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
    if (sum > largest) largest = sum;
  }
  for (int64_t j = 0; j < count * d; ++j) {
    y[j] = largest == 0.0F ? 0.0F : rintf((123.0F * y[j]) / largest);
  }
}

static int32_t signed_sum(const float *z, const uint8_t *signs, int32_t d) {
  int32_t sum = 0;
  for (int32_t j = 0; j < d; ++j) {
    sum += ((signs[j / 8] >> (j % 8)) & 1) != 0 ? (int32_t)z[j] : -(int32_t)z[j];
  }
  return sum;
}

static void vote_row(const pkv_vote_args *a, int64_t i, int32_t head, float *y) {
  const pkv_geometry *geometry = a->codec.geometry;
  const int32_t d = geometry->head_dim;
  const int64_t group = vectors_of(a) - 1;
  const int by_heads = a->vote_group == PKV_VOTE_GROUP_HEADS;
  float *votes = a->votes + (i * geometry->kv_heads + head) * a->votes_stride;
  float *z = by_heads ? y : y + group * d;
  const int is_good = prepare(a, i, head, y);
  make_integers(z, by_heads ? group : 1, d);
  for (int64_t position = 0; position < a->batch.lengths[i]; ++position) {
    const record r = record_at(geometry, &a->store, a->batch.sequences[i], head, position);
    if (!is_good || isnan(bf16_to_float(*r.factor))) {
      votes[position] = NAN;
      continue;
    }
    int32_t t = signed_sum(z, r.signs, d);
    for (int64_t g = 1; g < (by_heads ? group : 1); ++g) {
      const int32_t other = signed_sum(z + g * d, r.signs, d);
      if (other > t) t = other;
    }
    votes[position] = (float)t * bf16_to_float(*r.vote_factor);
  }
}

static pkv_status run(pkv_backend_device *device, pkv_backend_stream *stream,
                      const pkv_vote_args *args, void *scratch) {
  (void)device, (void)stream;
  for (int64_t i = 0; i < args->batch.batch; ++i) {
    for (int32_t head = 0; head < args->codec.geometry->kv_heads; ++head) {
      vote_row(args, i, head, scratch);
    }
  }
  return PKV_OK;
}

const pkv_vote_slots example_vote = {supports, scratch_bytes, run};
