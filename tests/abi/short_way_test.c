/* The short way of pariskv.h's head comment, its step in one call and call by call, on random keys
 * of which one points where the queries do: the best hit is known. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/abi/check.h"

enum { HEADS = 2, QUERY_HEADS = 4, TOKENS = 512, DIM = 128, K = 100, SAMPLES = 512 };

static pkv_tensor view(float *data, int32_t ndim, const int64_t *shape) {
  pkv_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.ndim = ndim;
  tensor.dtype = PKV_DTYPE_F32;
  tensor.shape = shape;
  return tensor;
}

/* -1 .. 1, the same on every run. */
static float noise(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static float keys_data[HEADS * TOKENS * DIM];
static float values_data[HEADS * TOKENS * DIM];
static float query_data[QUERY_HEADS * DIM];
static float row_keys[HEADS * K * DIM];
static float row_values[HEADS * K * DIM];
static float output_data[QUERY_HEADS * DIM];
static float step_output[QUERY_HEADS * DIM];

/* The output must lie between the smallest and the largest value of each coordinate: an average. */
static void check_output(void) {
  int g, j, i;
  for (g = 0; g < QUERY_HEADS; ++g) {
    const float *values = values_data + (g / (QUERY_HEADS / HEADS)) * TOKENS * DIM;
    int is_average = 1;
    for (j = 0; j < DIM; ++j) {
      float low = values[j];
      float high = values[j];
      for (i = 1; i < TOKENS; ++i) {
        if (values[i * DIM + j] < low) low = values[i * DIM + j];
        if (values[i * DIM + j] > high) high = values[i * DIM + j];
      }
      if (!(output_data[g * DIM + j] >= low - 1e-5f && output_data[g * DIM + j] <= high + 1e-5f)) {
        is_average = 0;
      }
    }
    CHECK(is_average);
  }
}

void test_short_way(void) {
  const int64_t key_shape[3] = {HEADS, TOKENS, DIM};
  const int64_t query_shape[3] = {1, QUERY_HEADS, DIM};
  const int64_t sample_shape[3] = {QUERY_HEADS, 1, DIM};
  const int64_t source_shape[4] = {1, HEADS, TOKENS, DIM};
  const int64_t row_shape[4] = {1, HEADS, K, DIM};
  const int32_t best = 37; /* this key of every head points where the queries do */
  uint32_t state = 1;
  int32_t positions[HEADS * K];
  int32_t counts[HEADS];
  float lse[QUERY_HEADS];
  float step_lse[QUERY_HEADS];
  int64_t scratch_bytes = 0;
  int64_t c = 0;
  void *scratch = NULL;
  int i, j, head;

  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_stream *stream = NULL;
  pkv_config *config = NULL;
  pkv_codec *codec = NULL;
  pkv_index *index = NULL;
  pkv_plan *plan = NULL;
  pkv_plan_desc desc;
  pkv_hits hits;
  pkv_rows source;
  pkv_rows rows;
  pkv_attention attention;
  pkv_step step;
  pkv_tensor keys = view(keys_data, 3, key_shape);
  pkv_tensor values = view(values_data, 3, key_shape);
  pkv_tensor queries = view(query_data, 3, sample_shape);
  pkv_tensor query = view(query_data, 3, query_shape);

  for (i = 0; i < HEADS * TOKENS * DIM; ++i) {
    keys_data[i] = noise(&state);
    values_data[i] = noise(&state);
  }
  for (i = 0; i < QUERY_HEADS * DIM; ++i) query_data[i] = i % DIM % 2 == 0 ? 0.5f : -0.5f;
  for (head = 0; head < HEADS; ++head) {
    for (j = 0; j < DIM; ++j) {
      keys_data[(head * TOKENS + best) * DIM + j] = j % 2 == 0 ? 2.0f : -2.0f;
    }
  }

  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "auto", 0, &device));
  CHECK_OK(pkv_stream_create(device, &stream));
  CHECK_OK(pkv_config_create("default", &config));
  CHECK_OK(pkv_config_set(config, "head_dim", "128"));
  CHECK_OK(pkv_codec_fit_sync(device, stream, config, &keys, &queries, &values, &codec));
  CHECK_OK(pkv_index_create(device, codec, 1, 131072, &index));
  CHECK_OK(pkv_index_append_sync(index, stream, 0, &keys, &values));

  CHECK_OK(pkv_plan_desc_init(&desc, sizeof(desc)));
  desc.batch = 1;
  desc.query_heads = QUERY_HEADS;
  CHECK_OK(pkv_plan_create(index, config, &desc, &plan));
  CHECK_OK(pkv_plan_scratch_bytes(plan, &scratch_bytes));
  CHECK_OK(pkv_plan_candidates(plan, &c));
  CHECK(c >= K);
  if (scratch_bytes > 0) {
    CHECK_OK(pkv_device_alloc(device, PKV_ALLOC_DEVICE, scratch_bytes, &scratch));
  }

  CHECK_OK(pkv_hits_init(&hits, sizeof(hits)));
  hits.positions = positions;
  hits.counts = counts;
  hits.candidates = malloc((size_t)(HEADS * c) * sizeof(int32_t));
  hits.candidate_counts = malloc(HEADS * sizeof(int32_t));
  hits.estimates = malloc((size_t)(QUERY_HEADS * c) * sizeof(float));
  hits.rest_lse = malloc(QUERY_HEADS * sizeof(float));
  hits.sample_estimates = malloc((size_t)(QUERY_HEADS * SAMPLES) * sizeof(float));
  CHECK_OK(pkv_retrieve(plan, stream, &query, scratch, &hits));

  CHECK_OK(pkv_rows_init(&source, sizeof(source)));
  source.keys = view(keys_data, 4, source_shape);
  source.values = view(values_data, 4, source_shape);
  CHECK_OK(pkv_rows_init(&rows, sizeof(rows)));
  rows.keys = view(row_keys, 4, row_shape);
  rows.values = view(row_values, 4, row_shape);
  CHECK_OK(pkv_fetch(plan, stream, &source, &hits, &rows));

  CHECK_OK(pkv_attention_init(&attention, sizeof(attention)));
  attention.query = query;
  attention.rows = rows;
  attention.hits = &hits;
  attention.scratch = scratch;
  attention.output = view(output_data, 3, query_shape);
  attention.lse = lse;
  CHECK_OK(pkv_attend(plan, stream, &attention));
  CHECK_OK(pkv_stream_sync(stream));

  /* The same in one call. */
  CHECK_OK(pkv_step_init(&step, sizeof(step)));
  step.query = query;
  step.source = source;
  step.scratch = scratch;
  step.output = view(step_output, 3, query_shape);
  step.lse = step_lse;
  CHECK_OK(pkv_step_run(plan, stream, &step));
  CHECK_OK(pkv_stream_sync(stream));
  for (i = 0; i < QUERY_HEADS * DIM; ++i) {
    CHECK(fabsf(step_output[i] - output_data[i]) <= 1e-5F * (1 + fabsf(output_data[i])));
  }
  for (i = 0; i < QUERY_HEADS; ++i) CHECK(fabsf(step_lse[i] - lse[i]) <= 1e-5F);

  for (head = 0; head < HEADS; ++head) {
    CHECK(counts[head] == K);
    CHECK(positions[head * K] == best);
    CHECK(memcmp(row_keys + head * K * DIM, keys_data + (head * TOKENS + best) * DIM,
                 DIM * sizeof(float)) == 0);
  }
  for (i = 0; i < QUERY_HEADS; ++i) CHECK(isfinite(lse[i]));
  check_output();

  free(hits.candidates);
  free(hits.candidate_counts);
  free(hits.estimates);
  free(hits.rest_lse);
  free(hits.sample_estimates);
  CHECK_OK(pkv_device_free(device, scratch));
  pkv_plan_destroy(plan);
  pkv_index_destroy(index);
  pkv_codec_destroy(codec);
  pkv_config_destroy(config);
  pkv_stream_destroy(stream);
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
}
