/* The table, discovery, memory, streams and events of a backend on the host, and the one symbol
 * that pariskv looks for. It has the stages encode, vote and select; docs/backend-guide.md says
 * what the others are. */
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"

struct pkv_backend_stream {
  int unused;
};
struct pkv_backend_event {
  int unused;
};

static pkv_status report(const pkv_host *host, pkv_status status, const char *text) {
  host->report(host, text);
  return status;
}

pkv_status refuse(const pkv_backend_device *device, const char *what, long long value,
                  const char *accepted) {
  char text[256];
  snprintf(text, sizeof text, "example_c: %s=%lld, accepted: %s", what, value, accepted);
  return report(device->host, PKV_UNIMPLEMENTED, text);
}

pkv_status check_geometry(const pkv_backend_device *device, const pkv_geometry *geometry) {
  if (geometry->codec != PKV_CODEC_SCALAR4) {
    return refuse(device, "codec", geometry->codec, "scalar4");
  }
  if (geometry->vote != PKV_VOTE_GRADED) return refuse(device, "vote", geometry->vote, "graded");
  if (geometry->sketch_bits != 0) return refuse(device, "sketch_bits", geometry->sketch_bits, "0");
  if (geometry->value_norm != 0) return refuse(device, "value_norm", geometry->value_norm, "0");
  return PKV_OK;
}

pkv_status check_dtype(const pkv_backend_device *device, const char *what, pkv_dtype dtype) {
  if (dtype == PKV_DTYPE_F32 || dtype == PKV_DTYPE_F16 || dtype == PKV_DTYPE_BF16) return PKV_OK;
  return refuse(device, what, dtype, "f32, f16, bf16");
}

/* ---- Discovery. */
static pkv_status device_count(const pkv_host *host, int32_t *out) {
  (void)host;
  *out = 1;
  return PKV_OK;
}
static pkv_status device_info(const pkv_host *host, int32_t ordinal, pkv_backend_device_info *out) {
  if (ordinal != 0) return report(host, PKV_OUT_OF_RANGE, "example_c has device 0 only");
  out->device_type = PKV_DEVICE_CPU;
  out->device_id = 0;
  out->lanes = 1;
  out->memory_bytes = 0;
  snprintf(out->name, sizeof out->name, "host, in C");
  return PKV_OK;
}
static pkv_status device_open(const pkv_host *host, int32_t ordinal, pkv_backend_device **out) {
  if (ordinal != 0) return report(host, PKV_OUT_OF_RANGE, "example_c has device 0 only");
  *out = malloc(sizeof **out);
  if (*out == NULL) return report(host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host");
  (*out)->host = host;
  return PKV_OK;
}
static void device_close(pkv_backend_device *device) { free(device); }

/* ---- Memory. */
static pkv_status memory_alloc(pkv_backend_device *device, int32_t kind, int64_t bytes,
                               void **out) {
  (void)kind;
  *out = aligned_alloc(256, ((size_t)bytes + 255) / 256 * 256);
  if (*out != NULL) return PKV_OK;
  return report(device->host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host");
}
static void memory_free(pkv_backend_device *device, int32_t kind, void *data, int64_t bytes) {
  (void)device, (void)kind, (void)bytes;
  free(data);
}
static pkv_status memory_copy(pkv_backend_device *device, pkv_backend_stream *stream, void *target,
                              const void *source, int64_t bytes) {
  (void)device, (void)stream;
  if (bytes > 0) memcpy(target, source, (size_t)bytes);
  return PKV_OK;
}
static pkv_status memory_fill(pkv_backend_device *device, pkv_backend_stream *stream, void *target,
                              int32_t byte, int64_t bytes) {
  (void)device, (void)stream;
  if (bytes > 0) memset(target, byte, (size_t)bytes);
  return PKV_OK;
}

/* ---- Streams and events: work is done when a slot returns, so there is nothing in them. */
static pkv_status stream_create(pkv_backend_device *device, pkv_backend_stream **out) {
  *out = calloc(1, sizeof **out);
  if (*out != NULL) return PKV_OK;
  return report(device->host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host");
}
static pkv_status stream_wrap(pkv_backend_device *device, uintptr_t native,
                              pkv_backend_stream **out) {
  if (native == 0) return stream_create(device, out);
  return report(device->host, PKV_INVALID_ARGUMENT, "native stream: accepted: 0");
}
static void stream_destroy(pkv_backend_device *device, pkv_backend_stream *stream) {
  (void)device;
  free(stream);
}
static pkv_status stream_sync(pkv_backend_device *device, pkv_backend_stream *stream) {
  (void)device, (void)stream;
  return PKV_OK;
}
static pkv_status event_create(pkv_backend_device *device, pkv_backend_event **out) {
  *out = calloc(1, sizeof **out);
  if (*out != NULL) return PKV_OK;
  return report(device->host, PKV_RESOURCE_EXHAUSTED, "out of memory on the host");
}
static void event_destroy(pkv_backend_device *device, pkv_backend_event *event) {
  (void)device;
  free(event);
}
static pkv_status event_any(pkv_backend_device *device, pkv_backend_stream *stream,
                            pkv_backend_event *event) {
  (void)device, (void)stream, (void)event;
  return PKV_OK;
}

/* ---- Stages that this backend lacks. `run` is not called where `supports` has refused. */
#define LACKING(stage)                                                                             \
  static pkv_status stage##_supports(pkv_backend_device *device, const pkv_##stage##_args *args) { \
    (void)args;                                                                                    \
    return report(device->host, PKV_UNIMPLEMENTED, "example_c has no stage " #stage);              \
  }                                                                                                \
  static pkv_status stage##_scratch(pkv_backend_device *device, const pkv_##stage##_args *args,    \
                                    int64_t *out) {                                                \
    (void)device, (void)args;                                                                      \
    *out = 0;                                                                                      \
    return PKV_OK;                                                                                 \
  }                                                                                                \
  static pkv_status stage##_run(pkv_backend_device *device, pkv_backend_stream *stream,            \
                                const pkv_##stage##_args *args, void *scratch) {                   \
    (void)stream, (void)scratch;                                                                   \
    return stage##_supports(device, args);                                                         \
  }
LACKING(fit)
LACKING(rerank)
LACKING(fetch)
LACKING(attend)

PKV_API const pkv_backend *pkv_backend_query(uint32_t host_max_abi, const pkv_host *host);

const pkv_backend *pkv_backend_query(uint32_t host_max_abi, const pkv_host *host) {
  static pkv_backend table; /* the same bytes whoever fills it */
  if (host_max_abi >> 16 != PKV_BACKEND_ABI_MAJOR ||
      host_max_abi < (PKV_BACKEND_ABI_MAJOR << 16 | PKV_BACKEND_ABI_MINOR)) {
    host->report(host, "example_c needs another version of the backend interface");
    return NULL;
  }
  table.struct_size = sizeof table;
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.abi_minor = PKV_BACKEND_ABI_MINOR;
  table.build_flags = 0;    /* a sanitizer build says so here */
  table.format_version = 1; /* docs/format.md */
  table.score = 0;
  table.name = "example_c";
  table.version = "1";
  table.about = "an example: encode, vote and select in plain C";
  table.device_count = device_count;
  table.device_info = device_info;
  table.device_open = device_open;
  table.device_close = device_close;
  table.memory_alloc = memory_alloc;
  table.memory_free = memory_free;
  table.memory_copy = memory_copy;
  table.memory_fill = memory_fill;
  table.stream_create = stream_create;
  table.stream_wrap = stream_wrap;
  table.stream_destroy = stream_destroy;
  table.stream_sync = stream_sync;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_any;
  table.event_wait = event_any;
  fill_store_slots(&table);
  table.fit = (pkv_fit_slots){fit_supports, fit_scratch, fit_run};
  table.encode = example_encode;
  table.vote = example_vote;
  table.select = example_select;
  table.rerank = (pkv_rerank_slots){rerank_supports, rerank_scratch, rerank_run};
  table.fetch = (pkv_fetch_slots){fetch_supports, fetch_scratch, fetch_run};
  table.attend = (pkv_attend_slots){attend_supports, attend_scratch, attend_run};
  return &table;
}
