/* What the files of this backend share: its device, its layout of key records, and the arithmetic
 * of docs/algorithm.md that more than one stage has. */
#ifndef EXAMPLE_C_BACKEND_H_
#define EXAMPLE_C_BACKEND_H_

#include <math.h>
#include <string.h>

#include "pariskv/pariskv_backend.h"

#define MAX_DIM 576
#define BF16_NAN 0x7fc0

struct pkv_backend_device {
  const pkv_host *host;
};

/* Leaves a sentence "what=value, accepted: .." with the host; returns PKV_UNIMPLEMENTED. */
pkv_status refuse(const pkv_backend_device *device, const char *what, long long value,
                  const char *accepted);
/* Refuses what this backend has no records for: it has scalar4 with graded votes, no sketch. */
pkv_status check_geometry(const pkv_backend_device *device, const pkv_geometry *geometry);
pkv_status check_dtype(const pkv_backend_device *device, const char *what, pkv_dtype dtype);

/* ---- Records: four planes, one after another; store.c. */
typedef struct record {
  uint8_t *signs; /* [d/8] */
  uint8_t *codes; /* [3, d/8] */
  uint16_t *vote_factor;
  uint16_t *factor;
} record;
/* The record at `position` of one KV head of one sequence, whether in one piece or in pages. */
record record_at(const pkv_geometry *geometry, const pkv_store *store, int64_t sequence,
                 int32_t head, int64_t position);
void fill_store_slots(pkv_backend *table);

extern const pkv_encode_slots example_encode;
extern const pkv_vote_slots example_vote;
extern const pkv_select_slots example_select;

/* ---- Arithmetic. */
static inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline float bf16_to_float(uint16_t bits) { return float_of_bits((uint32_t)bits << 16); }
static inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value)) return BF16_NAN;
  return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
static inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) return (sign != 0 ? -1.0F : 1.0F) * (float)mantissa * 0x1p-24F;
  return float_of_bits(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/* The vector at [i, j, t], or at [i, j] of a tensor of 3 axes, as fp32. */
static inline void load_vector(const pkv_tensor *tensor, int64_t i, int64_t j, int64_t t,
                               float *out, int32_t count) {
  int64_t at = i * tensor->strides[0] + j * tensor->strides[1];
  if (tensor->ndim == 4) at += t * tensor->strides[2];
  const char *base = (const char *)tensor->data + tensor->byte_offset;
  for (int32_t e = 0; e < count; ++e) {
    if (tensor->dtype == PKV_DTYPE_F32) {
      memcpy(&out[e], base + 4 * (at + e), 4);
    } else {
      uint16_t bits;
      memcpy(&bits, base + 2 * (at + e), 2);
      out[e] = tensor->dtype == PKV_DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
    }
  }
}

/* Section 0: the sum of every exact rule. x [1024] is used up; its first `count` are summed. */
static inline float fold(float *x, int32_t count) {
  int32_t size = 1;
  while (size < count) size *= 2;
  for (int32_t i = count; i < size; ++i) x[i] = 0.0F;
  for (int32_t half = size / 2; half >= 1; half /= 2) {
    for (int32_t i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  }
  return x[0];
}
static inline float fold_squares(const float *y, int32_t count) {
  float x[1024];
  for (int32_t i = 0; i < count; ++i) x[i] = y[i] * y[i];
  return fold(x, count);
}

static inline void fwht(float *x, int32_t size) {
  for (int32_t step = 1; step < size; step *= 2) {
    for (int32_t i = 0; i < size; ++i) {
      if ((i & step) != 0) continue;
      const float a = x[i];
      const float b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
}
/* Section 2.3, in place. */
static inline void rotate(const pkv_codec_params *codec, float *x) {
  const int32_t d = codec->geometry->head_dim;
  int32_t size = 1;
  float scale = 1.0F; /* 2^(-p/2) */
  for (; 2 * size <= d; size *= 2) scale *= 0.5F;
  const int is_power = size == d;
  if (!is_power) scale = (float)sqrt((double)scale);
  for (int32_t j = 0; j < d; ++j) x[j] = codec->signs_1[j] * x[j];
  fwht(x, size);
  if (is_power && codec->geometry->rounds == 1) return;
  for (int32_t j = 0; j < size && !is_power; ++j) x[j] = x[j] * scale;
  for (int32_t j = 0; j < d; ++j) x[j] = codec->signs_2[j] * x[j];
  fwht(x + (d - size), size);
  for (int32_t j = d - size; j < d; ++j) x[j] = x[j] * scale;
}

/* Parameters of one KV head for entry i: `array` is [sets, h, d]. */
static inline const float *codec_row(const pkv_codec_params *codec, const float *array, int64_t i,
                                     int32_t head) {
  const int64_t set = codec->set_of == NULL ? 0 : codec->set_of[i];
  return array + (set * codec->geometry->kv_heads + head) * codec->geometry->head_dim;
}

#endif /* EXAMPLE_C_BACKEND_H_ */
