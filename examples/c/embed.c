/* pariskv from C: embed TRACE INDEX. Encodes a trace's keys, saves the index, and retrieves and
 * attends for its first queries. Prints per query the hits (position:score) and the output, numbers
 * as the bits of a float. */
#include <pariskv/pariskv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

enum { QUERIES = 8 };

/* Every call returns a status; the text says what was wrong. */
#define CHECK(call)                                                            \
  do {                                                                         \
    const pkv_status status_ = (call);                                         \
    if (status_ != PKV_OK) {                                                   \
      fprintf(stderr, "%s: %s\n", pkv_status_name(status_), pkv_last_error()); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

/* Tensors are views: where, what type, which shape and strides (NULL: dense). */
static pkv_tensor view(void *data, pkv_dtype dtype, int32_t ndim, const int64_t *shape,
                       const int64_t *strides) {
  pkv_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device_type = PKV_DEVICE_CPU;
  tensor.dtype = dtype;
  tensor.ndim = ndim;
  tensor.shape = shape;
  tensor.strides = strides;
  return tensor;
}

static void set_number(pkv_config *config, const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  CHECK(pkv_config_set(config, name, text));
}

static unsigned bits_of(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

int main(int argc, char **argv) {
  trace t;
  pkv_runtime *runtime;
  pkv_device *device;
  pkv_stream *stream;
  pkv_config *config;
  pkv_codec *codec;
  pkv_index *index;
  pkv_plan *plan;
  pkv_plan_desc desc;
  pkv_hits hits;
  pkv_step step;
  int64_t i;

  if (argc != 3) {
    fprintf(stderr, "usage: embed TRACE INDEX\n");
    return 2;
  }
  if (trace_read(argv[1], &t) != 0) return 1;
  const int64_t h = t.keys.shape[0], n = t.keys.shape[1], d = t.keys.shape[2];
  const int64_t m = t.queries.shape[0], hq = t.queries.shape[1], dv = t.values.shape[2];

  CHECK(pkv_runtime_create(NULL, &runtime));
  CHECK(pkv_device_open(runtime, "cpu", 0, &device));
  CHECK(pkv_stream_create(device, &stream));
  CHECK(pkv_config_create("default", &config));
  set_number(config, "head_dim", d);
  set_number(config, "value_dim", dv);

  /* The codec learns from the keys and from queries [hq, m, d]: those of the file, axes swapped. */
  const int64_t sample_shape[3] = {hq, m, d}, sample_strides[3] = {d, hq * d, 1};
  const pkv_tensor keys = view(t.keys.data, PKV_DTYPE_F16, 3, t.keys.shape, NULL);
  const pkv_tensor values = view(t.values.data, PKV_DTYPE_F16, 3, t.values.shape, NULL);
  const pkv_tensor sample = view(t.queries.data, PKV_DTYPE_F16, 3, sample_shape, sample_strides);
  CHECK(pkv_codec_fit_sync(device, stream, config, &keys, &sample, &values, &codec));
  CHECK(pkv_index_create(device, codec, 1, n, &index));
  CHECK(pkv_index_append_sync(index, stream, 0, &keys, &values));
  CHECK(pkv_index_save_sync(index, stream, argv[2], 0));

  /* A plan fixes the shape of a step; running it allocates nothing. */
  CHECK(pkv_plan_desc_init(&desc, sizeof desc));
  desc.query_heads = (int32_t)hq;
  desc.owns_scratch = 1;
  CHECK(pkv_plan_create(index, config, &desc, &plan));

  const int32_t k = 100; /* the default of the option k */
  int32_t *positions = malloc((size_t)(h * k) * sizeof *positions);
  float *scores = malloc((size_t)(h * k) * sizeof *scores);
  int32_t *counts = malloc((size_t)h * sizeof *counts);
  float *output = malloc((size_t)(hq * dv) * sizeof *output);
  if (positions == NULL || scores == NULL || counts == NULL || output == NULL) return 1;
  CHECK(pkv_hits_init(&hits, sizeof hits));
  hits.positions = positions;
  hits.scores = scores;
  hits.counts = counts;

  const int64_t source_shapes[2][4] = {{1, h, n, d}, {1, h, n, dv}};
  const int64_t query_shape[3] = {1, hq, d}, output_shape[3] = {1, hq, dv};
  CHECK(pkv_step_init(&step, sizeof step));
  step.source.keys = view(t.keys.data, PKV_DTYPE_F16, 4, source_shapes[0], NULL);
  step.source.values = view(t.values.data, PKV_DTYPE_F16, 4, source_shapes[1], NULL);
  step.hits = &hits;
  step.output = view(output, PKV_DTYPE_F32, 3, output_shape, NULL);
  for (i = 0; i < QUERIES && i < m; ++i) {
    step.query = view((uint16_t *)t.queries.data + i * hq * d, PKV_DTYPE_F16, 3, query_shape, NULL);
    CHECK(pkv_step_run(plan, stream, &step));
    CHECK(pkv_stream_sync(stream));
    for (int64_t head = 0; head < h; ++head) {
      printf("hits");
      for (int64_t j = head * k; j < head * k + counts[head]; ++j) {
        printf(" %d:%08x", (int)positions[j], bits_of(scores[j]));
      }
      printf("\n");
    }
    printf("output");
    for (int64_t j = 0; j < hq * dv; ++j) printf(" %08x", bits_of(output[j]));
    printf("\n");
  }

  free(positions);
  free(scores);
  free(counts);
  free(output);
  pkv_plan_destroy(plan);
  pkv_index_destroy(index);
  pkv_codec_destroy(codec);
  pkv_config_destroy(config);
  pkv_stream_destroy(stream);
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
  free(t.bytes);
  return 0;
}
