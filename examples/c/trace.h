/* A trace: keys, values and queries of one layer in a .safetensors file (data/traces). */
#ifndef EXAMPLES_TRACE_H_
#define EXAMPLES_TRACE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trace_tensor {
  int64_t shape[3];
  void *data; /* float16, within the file's bytes */
} trace_tensor;

typedef struct trace {
  trace_tensor keys;    /* "k" [h, n, d] */
  trace_tensor values;  /* "v" [h, n, dv] */
  trace_tensor queries; /* "q" [m, hq, d] */
  char *bytes;          /* free() it */
} trace;

/* 0, or -1 with a line on stderr. */
int trace_read(const char *path, trace *out);

#ifdef __cplusplus
}
#endif

#endif /* EXAMPLES_TRACE_H_ */
