/* Stage encode: keys to key records. docs/algorithm.md, section 3. */
#include "backend.h"

/* Section 3.4, tables N4: thresholds, and levels as odd integers. */
static const float kThresholds[7] = {.2582216647F,  .5224037090F,  .7995497875F, 1.0992858269F,
                                     1.4371387917F, 1.8435318063F, 2.4008033988F};
static const float kLevels[8] = {11, 37, 61, 87, 117, 151, 193, 255};

static pkv_status supports(pkv_backend_device *device, const pkv_encode_args *args) {
  pkv_status status = check_geometry(device, args->codec.geometry);
  if (status == PKV_OK) status = check_dtype(device, "dtype of keys", args->keys.dtype);
  if (status == PKV_OK && args->values.ndim != 0) {
    status = check_dtype(device, "dtype of values", args->values.dtype);
  }
  return status;
}

static pkv_status scratch_bytes(pkv_backend_device *device, const pkv_encode_args *args,
                                int64_t *out) {
  (void)device, (void)args;
  *out = 0;
  return PKV_OK;
}

/* 3.6 */
static void write_bad(record r, size_t plane) {
  memset(r.signs, 0, plane);
  memset(r.codes, 0, 3 * plane);
  *r.vote_factor = BF16_NAN;
  *r.factor = BF16_NAN;
}

/* 3.1 to 3.4 of a rotated key whose squares sum to n2. */
static void write_good(record r, const float *y, float n2, int32_t d) {
  const int32_t plane = d / 8;
  const float u = sqrtf(n2) * (float)(1.0 / sqrt((double)d));
  float magnitudes[1024];
  float products[1024];
  memset(r.signs, 0, (size_t)plane);
  memset(r.codes, 0, 3 * (size_t)plane);
  for (int32_t j = 0; j < d; ++j) {
    int32_t code = 0;
    magnitudes[j] = fabsf(y[j]);
    for (int32_t i = 0; i < 7 && n2 != 0.0F; ++i) code += kThresholds[i] * u < magnitudes[j];
    products[j] = kLevels[code] * magnitudes[j];
    if (y[j] >= 0.0F) r.signs[j / 8] |= (uint8_t)(1 << (j % 8));
    for (int32_t p = 0; p < 3; ++p) {
      r.codes[p * plane + j / 8] |= (uint8_t)(((code >> p) & 1) << (j % 8));
    }
  }
  *r.vote_factor = n2 == 0.0F ? 0 : float_to_bf16(n2 / fold(magnitudes, d));
  *r.factor = n2 == 0.0F ? 0 : float_to_bf16(n2 / fold(products, d));
}

/* counts[i] tokens of one KV head; the first bad position, or -1. */
static int64_t encode_row(const pkv_encode_args *a, int64_t i, int32_t head) {
  const pkv_geometry *geometry = a->codec.geometry;
  const int32_t d = geometry->head_dim;
  const int32_t dv = geometry->value_dim;
  const int64_t row = (int64_t)a->sequences[i] * geometry->kv_heads + head;
  const float *mu = codec_row(&a->codec, a->codec.center, i, head);
  const float *s = codec_row(&a->codec, a->codec.balance, i, head);
  int64_t first_bad = -1;
  for (int64_t t = 0; t < a->counts[i]; ++t) {
    const int64_t position = a->starts[i] + t;
    const record r = record_at(geometry, &a->store, a->sequences[i], head, position);
    float y[MAX_DIM];
    float v[MAX_DIM];
    float v2 = 0.0F;
    load_vector(&a->keys, i, head, t, y, d);
    for (int32_t j = 0; j < d; ++j) y[j] = s[j] * (y[j] - mu[j]);
    rotate(&a->codec, y);
    const float n2 = fold_squares(y, d);
    if (a->values.ndim != 0) {
      load_vector(&a->values, i, head, t, v, dv);
      v2 = fold_squares(v, dv);
    }
    if (!isfinite(n2) || !isfinite(v2)) {
      write_bad(r, (size_t)d / 8);
      if (first_bad < 0) first_bad = position;
      continue;
    }
    write_good(r, y, n2, d);
    a->good_counts[row] += 1; /* 3.7 */
    if (a->values.ndim == 0 || a->value_sums == NULL) continue;
    for (int32_t j = 0; j < dv; ++j) a->value_sums[row * dv + j] += (double)v[j];
  }
  return first_bad;
}

static pkv_status run(pkv_backend_device *device, pkv_backend_stream *stream,
                      const pkv_encode_args *args, void *scratch) {
  const int32_t heads = args->codec.geometry->kv_heads;
  (void)device, (void)stream, (void)scratch;
  for (int64_t i = 0; i < args->batch; ++i) {
    for (int32_t head = 0; head < heads; ++head) {
      const int64_t first_bad = encode_row(args, i, head);
      if (args->first_bad != NULL) args->first_bad[i * heads + head] = first_bad;
    }
  }
  return PKV_OK;
}

const pkv_encode_slots example_encode = {supports, scratch_bytes, run};
