/* pariskv: cheap long-context decoding. The keys of a KV cache are encoded into a few bytes; each
 * decoding step votes for candidate keys, reranks them, fetches only the chosen K/V rows from
 * where they live, and attends. What is computed: docs/algorithm.md.
 *
 * The short way: open a runtime, a device and a stream; fit a codec on the keys of a prompt; append
 * the keys to an index; make a plan; then run a step per token, or its parts: retrieve, fetch,
 * attend.
 *
 *   pkv_runtime_create(NULL, &runtime);
 *   pkv_device_open(runtime, "auto", 0, &device);
 *   pkv_stream_create(device, &stream);
 *   pkv_config_create("default", &config);
 *   pkv_config_set(config, "head_dim", "128");
 *   pkv_codec_fit_sync(device, stream, config, &keys, &queries, &values, &codec);
 *   pkv_index_create(device, codec, 1, 131072, &index);
 *   pkv_index_append_sync(index, stream, 0, &keys, &values);
 *   pkv_plan_create(index, config, &desc, &plan);
 *   pkv_step_run(plan, stream, &step);
 *   pkv_stream_sync(stream);
 *
 * Conventions; functions do not repeat them.
 *  1. Every call returns a pkv_status unless it cannot fail. On anything but PKV_OK,
 *     pkv_last_error() gives the text for the calling thread: what was wrong, the value, and what
 *     is accepted. Objects stay as they were, outputs of handle type are NULL (they are zeroed
 *     first). NULL for a pointer that is not described as optional is PKV_INVALID_ARGUMENT.
 *  2. Structs begin with struct_size. Fill them with their _init function (those without one with
 *     zeros and struct_size), then set fields. Fields beyond the caller's struct_size take their
 *     defaults and are not written.
 *  3. create and destroy come in pairs; destroy accepts NULL. An object must be destroyed before
 *     the one it was made from (index before codec and device, device before runtime); destroying
 *     in another order is safe, the parts are released with the last user. The library neither
 *     frees nor keeps memory that it did not allocate, beyond the call, or, for enqueued work,
 *     beyond the stream's passing it.
 *  4. const handles may be used by several threads at once, others by one at a time; different
 *     handles are independent. What a stream orders is ordered, nothing else.
 *  5. Work is enqueued on the stream given and never awaited unless the name ends in _sync, or it
 *     is said so. A NULL stream is an error; pkv_stream_wrap borrows a native one, the vendor's
 *     default included.
 *  6. Tensors are views (pkv_tensor): [b, h, t, d] names axes in order. Unless said otherwise keys,
 *     values and queries may be f32, f16 or bf16, strided, last axis contiguous, in memory that the
 *     device can read. Shapes: b entries of a batch, h KV heads, hq query heads (a multiple of h),
 *     t or n tokens, d head_dim, dv value_dim.
 *  7. Options are set by name with a text value; the same names serve the command line and JSON. An
 *     unknown option, a value outside its range, or an option that the call does not use is an
 *     error.
 *  8. Texts are UTF-8, end in NUL, and live until the object they were asked from is destroyed. */
#ifndef PARISKV_H_
#define PARISKV_H_

#include "pariskv/pariskv_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_VERSION_MAJOR 0
#define PKV_VERSION_MINOR 1
#define PKV_VERSION_PATCH 0

/* ---- Library and errors ------------------------------------------------------------- */

/* "0.1.0". Any thread. */
PKV_API const char *pkv_version(void);
/* "INVALID_ARGUMENT" and the like; "UNKNOWN" for a number that is no status. Any thread. */
PKV_API const char *pkv_status_name(pkv_status status);
/* Text of the last call on this thread that did not return PKV_OK; "" if there was none. Valid
 * until this thread's next call. Successful calls leave it alone. */
PKV_API const char *pkv_last_error(void);

/* ---- Runtime: which backends there are ---------------------------------------------- */

typedef struct pkv_runtime pkv_runtime;

typedef struct pkv_runtime_options {
  uint32_t struct_size;
  int32_t log_level; /* highest level passed on: 0 error .. 3 debug; default 2 */
  pkv_log_fn log;    /* NULL (default): silent */
  void *log_user;
  const char *backend_path; /* folders to search for backend libraries, ':' between, in front of
                             * PKV_BACKEND_PATH; NULL: none. Only absolute folders are taken. */
} pkv_runtime_options;
/* `struct_size`: sizeof of the caller's struct; bytes behind it are not touched. Sizes below 4 are
 * PKV_INVALID_ARGUMENT; larger ones than the library knows are accepted, the rest zeroed. */
PKV_API pkv_status pkv_runtime_options_init(pkv_runtime_options *options, size_t struct_size);

/* Lists the backends: built-in ones, then libraries named pariskv_backend_*.so in
 * options->backend_path, in the folders of the environment variable PKV_BACKEND_PATH, and in the
 * folder pariskv/backends beside this library, in that order. Never the current folder, nor one
 * that all users may write to. Plug-ins are loaded here; one that is refused is listed with its
 * reason and does not make the call fail. A second library of the same file (symbolic links
 * resolved) is skipped; another one with a name already taken is refused. */
PKV_API pkv_status pkv_runtime_create(const pkv_runtime_options *options, pkv_runtime **out);
PKV_API void pkv_runtime_destroy(pkv_runtime *runtime);
/* JSON: version, places searched in order, backends with name, version, path, score, usable,
 * reason, and per usable backend its devices, shapes, dtypes, codecs and layouts. */
PKV_API pkv_status pkv_runtime_describe(const pkv_runtime *runtime, const char **out);

typedef struct pkv_backend_info {
  uint32_t struct_size;
  int32_t score;     /* `auto` takes the usable backend with the highest; ties: listed first */
  int32_t is_usable; /* 1, or 0 with a reason */
  int32_t is_builtin;
  int32_t device_count;
  int32_t reserved;
  const char *name; /* "" if the library was refused before it gave one */
  const char *version;
  const char *path;   /* "" for built-in ones */
  const char *reason; /* why it is not usable, else "" */
} pkv_backend_info;
PKV_API pkv_status pkv_backend_info_init(pkv_backend_info *info, size_t struct_size);
PKV_API pkv_status pkv_runtime_backend_count(const pkv_runtime *runtime, int32_t *out);
/* PKV_OUT_OF_RANGE: index not in 0..count-1. */
PKV_API pkv_status pkv_runtime_backend_info(const pkv_runtime *runtime, int32_t index,
                                            pkv_backend_info *out);
/* Loads one backend library by path (absolute, or relative with a '/' in it). On success
 * `*out_index` is its index; loading the same file again gives the same index. PKV_NOT_FOUND no
 * such file; PKV_INVALID_ARGUMENT not a library, or lacks the entry symbol (named);
 * PKV_FAILED_PRECONDITION another interface or format version (both named), or a sanitizer build
 * that does not match; PKV_ALREADY_EXISTS another library has that backend name. */
PKV_API pkv_status pkv_runtime_backend_load(pkv_runtime *runtime, const char *path,
                                            int32_t *out_index);

/* ---- Device, memory, streams, events ------------------------------------------------ */

typedef struct pkv_device pkv_device;
typedef struct pkv_stream pkv_stream;
typedef struct pkv_event pkv_event;

/* Opens device `ordinal` of a backend by name. "auto": the environment variable PKV_BACKEND if set,
 * else the usable backend with the highest score. PKV_NOT_FOUND lists the names there are;
 * PKV_UNAVAILABLE: a backend that is listed but not usable, with its reason; PKV_OUT_OF_RANGE:
 * ordinal. */
PKV_API pkv_status pkv_device_open(const pkv_runtime *runtime, const char *backend, int32_t ordinal,
                                   pkv_device **out);
PKV_API void pkv_device_close(pkv_device *device);
/* JSON: backend, device name, type and id, lanes, memory, dtypes, head_dims, codecs, votes, tails,
 * layouts. */
PKV_API pkv_status pkv_device_describe(const pkv_device *device, const char **out);
/* Name of the backend that runs here. */
PKV_API const char *pkv_device_backend(const pkv_device *device);

/* An option of the device for the calls that come: of the backend cpu "threads" (0: all that the
 * process may use) and "isa" ("best", or an instruction set that the device's name lists).
 * PKV_INVALID_ARGUMENT: the value, or an option that this backend lacks; the text lists what is
 * accepted. PKV_FAILED_PRECONDITION: more threads than a codec's fit or a plan has sized scratch
 * for; choose first, then plan. Not while other threads use the device. */
PKV_API pkv_status pkv_device_set(pkv_device *device, const char *name, const char *value);
/* Runs on the caller's threads from now on; NULL: on the backend's own again. The struct is copied,
 * what it points to stays the caller's. PKV_FAILED_PRECONDITION: more workers than scratch was
 * sized for, as above; PKV_UNIMPLEMENTED: the backend has no threads to replace. Later, a call
 * whose runner leaves an index out returns PKV_FAILED_PRECONDITION and says how many ran; with
 * `cancelled` not 0 it returns PKV_CANCELLED, outputs undefined, objects as they were. */
PKV_API pkv_status pkv_device_set_parallel(pkv_device *device, const pkv_parallel *parallel);

/* Memory kinds for pkv_device_alloc. */
enum { PKV_ALLOC_DEVICE = 1, PKV_ALLOC_HOST = 2 /* host memory the device reads directly */ };
/* bytes >= 1, aligned to 256, contents undefined. PKV_RESOURCE_EXHAUSTED names bytes and kind. */
PKV_API pkv_status pkv_device_alloc(pkv_device *device, int32_t kind, int64_t bytes, void **out);
/* `data` NULL does nothing. The caller makes sure that no enqueued work uses it. */
PKV_API pkv_status pkv_device_free(pkv_device *device, void *data);
/* Copy in stream order between any two of device and host memory; bytes >= 0. */
PKV_API pkv_status pkv_device_copy(pkv_stream *stream, void *target, const void *source,
                                   int64_t bytes);

PKV_API pkv_status pkv_stream_create(pkv_device *device, pkv_stream **out);
/* Borrows a native stream (cudaStream_t, hipStream_t as uintptr_t); 0 is the vendor's default
 * stream. CPU backends accept 0 only. */
PKV_API pkv_status pkv_stream_wrap(pkv_device *device, uintptr_t native, pkv_stream **out);
PKV_API void pkv_stream_destroy(pkv_stream *stream);
/* Waits; reports failures of enqueued work. */
PKV_API pkv_status pkv_stream_sync(pkv_stream *stream);

PKV_API pkv_status pkv_event_create(pkv_device *device, pkv_event **out);
PKV_API void pkv_event_destroy(pkv_event *event);
PKV_API pkv_status pkv_event_record(pkv_event *event, pkv_stream *stream);
/* Later work on `stream` waits for the event. Stream and event belong to one device. */
PKV_API pkv_status pkv_event_wait(pkv_event *event, pkv_stream *stream);

/* ---- Configuration ------------------------------------------------------------------ */

/* A set of options. Those of the codec (head_dim, value_dim, v_source, codec, vote, center,
 * balance, fit, rounds, seed, value_norm, the sketch named by tail) fix what a key record is; those
 * of a plan (k, candidates, vote_group, rho_of, rank, tail, tail_samples, scale, soft_cap, share,
 * k_min) how a step works; nonfinite belongs to append. docs/algorithm.md has the meaning, its
 * section 1 what the profiles choose; pkv_config_option_info lists all of them with their defaults.
 */
typedef struct pkv_config pkv_config;
/* profile: "default" or "paper". head_dim has no default and must be set. */
PKV_API pkv_status pkv_config_create(const char *profile, pkv_config **out);
PKV_API void pkv_config_destroy(pkv_config *config);
/* PKV_NOT_FOUND: no such option (the names are listed); PKV_INVALID_ARGUMENT: the value,
 * with the accepted range or choices. The option keeps its old value then. */
PKV_API pkv_status pkv_config_set(pkv_config *config, const char *name, const char *value);
/* The value as text, as pkv_config_set takes it; valid until the next call on this config. */
PKV_API pkv_status pkv_config_get(const pkv_config *config, const char *name, const char **out);

typedef struct pkv_option_info {
  uint32_t struct_size;
  int32_t reserved;
  const char *name;
  const char *accepts;       /* "0..65536", "off, on", "auto or (0, 1e6]" */
  const char *default_value; /* in profile "default"; "" if it must be set */
  const char *paper_value;   /* in profile "paper" */
  const char *about;         /* one line */
} pkv_option_info;
PKV_API pkv_status pkv_option_info_init(pkv_option_info *info, size_t struct_size);
PKV_API pkv_status pkv_config_option_count(int32_t *out);
PKV_API pkv_status pkv_config_option_info(int32_t index, pkv_option_info *out);

/* ---- Codec -------------------------------------------------------------------------- */

/* Fitted parameters for all KV heads of one layer, and the geometry of its records. Immutable. */
typedef struct pkv_codec pkv_codec;

/* Fits centre and balance (docs/algorithm.md, 2.2), as the option fit says.
 *   keys     [h, n, d] the zone's keys; n = 0 gives mu = 0, s = 1
 *   queries  [hq, m, d] sample, hq = h * G; optional (NULL): s = 1
 *   values   [h, n, dv]; optional unless a value sketch is configured
 * PKV_INVALID_ARGUMENT: shapes against the config, dtype, an option that is not set. */
PKV_API pkv_status pkv_codec_fit_sync(pkv_device *device, pkv_stream *stream,
                                      const pkv_config *config, const pkv_tensor *keys,
                                      const pkv_tensor *queries, const pkv_tensor *values,
                                      pkv_codec **out);
PKV_API void pkv_codec_destroy(pkv_codec *codec);

/* Host arrays, f32, row-major. */
typedef struct pkv_codec_data {
  uint32_t struct_size;
  int32_t kv_heads;          /* h */
  const float *center;       /* [h, d] finite */
  const float *balance;      /* [h, d] finite, > 0 */
  const float *value_center; /* [h, dv] finite; needed with a value sketch, else NULL */
} pkv_codec_data;
PKV_API pkv_status pkv_codec_data_init(pkv_codec_data *data, size_t struct_size);
/* A codec from stored numbers, e.g. calibrated offline. Copies the arrays. */
PKV_API pkv_status pkv_codec_import(pkv_device *device, const pkv_config *config,
                                    const pkv_codec_data *data, pkv_codec **out);
/* The numbers; the pointers live as long as the codec. */
PKV_API pkv_status pkv_codec_export(const pkv_codec *codec, pkv_codec_data *out);
PKV_API pkv_status pkv_codec_geometry(const pkv_codec *codec, pkv_geometry *out);
PKV_API pkv_status pkv_geometry_init(pkv_geometry *geometry, size_t struct_size);

/* ---- Index over keys ---------------------------------------------------------------- */

/* Key records of `sequences` sequences of at most `capacity` tokens each, for one layer. */
typedef struct pkv_index pkv_index;

/* Bytes of device memory that pkv_index_create will take. Sums are checked: PKV_INVALID_ARGUMENT
 * where they pass 2^63, or capacity is not in 1..2^31-1, or sequences not in 1..2^20. */
PKV_API pkv_status pkv_index_bytes(const pkv_device *device, const pkv_codec *codec,
                                   int32_t sequences, int64_t capacity, int64_t *out);
PKV_API pkv_status pkv_index_create(pkv_device *device, const pkv_codec *codec, int32_t sequences,
                                    int64_t capacity, pkv_index **out);
PKV_API void pkv_index_destroy(pkv_index *index);

/* Encodes t keys behind those of one sequence.
 *   keys    [h, t, d]
 *   values  [h, t, dv]; optional unless the codec has a sketch or norms; if any token came without
 *           values, pkv_attend and pkv_step_run refuse every tail but "drop". With v_source =
 *           k_prefix optional always: the keys have them
 * pkv_index_append isolates bad keys (docs/algorithm.md, 3.6); the _sync form obeys the option
 * nonfinite of the config the codec was made with: refuse names sequence, head, position.
 * PKV_OUT_OF_RANGE: sequence. PKV_RESOURCE_EXHAUSTED: does not fit (need and room named).
 * PKV_UNAVAILABLE: the device failed. If it failed once more when the call was to be taken back,
 * all calls with the index but pkv_index_length say so and name the sequence, until pkv_index_reset
 * of it or pkv_index_restore_sync has made it good. */
PKV_API pkv_status pkv_index_append(pkv_index *index, pkv_stream *stream, int32_t sequence,
                                    const pkv_tensor *keys, const pkv_tensor *values);
PKV_API pkv_status pkv_index_append_sync(pkv_index *index, pkv_stream *stream, int32_t sequence,
                                         const pkv_tensor *keys, const pkv_tensor *values);
/* Forgets all tokens of one sequence. */
PKV_API pkv_status pkv_index_reset(pkv_index *index, pkv_stream *stream, int32_t sequence);
PKV_API pkv_status pkv_index_length(const pkv_index *index, int32_t sequence, int64_t *out);

typedef struct pkv_index_stats {
  uint32_t struct_size;
  int32_t sequences;
  int64_t capacity;     /* tokens per sequence */
  int64_t tokens;       /* held, all sequences */
  int64_t bad_keys;     /* isolated, all sequences and heads */
  int64_t device_bytes; /* held by the index */
  double bytes_per_key; /* of the records in canonical form, per token and KV head */
} pkv_index_stats;
PKV_API pkv_status pkv_index_stats_init(pkv_index_stats *stats, size_t struct_size);
/* Waits for `stream`, so that the counts are those of all work enqueued on it. */
PKV_API pkv_status pkv_index_stats_sync(const pkv_index *index, pkv_stream *stream,
                                        pkv_index_stats *out);

/* Records [begin, begin + count) of one (sequence, KV head) in canonical form, into host planes
 * that the caller provides (pkv_records: row_tokens is ignored, each plane holds `count` records).
 */
PKV_API pkv_status pkv_index_export_sync(const pkv_index *index, pkv_stream *stream,
                                         int32_t sequence, int32_t kv_head, int64_t begin,
                                         int64_t count, const pkv_records *out);

/* Flags of pkv_index_save_sync. */
enum { PKV_SAVE_OVERWRITE = 1 };
/* Writes codec, geometry and records of all sequences to a .pkv file (docs/format.md): to a
 * temporary name in the same folder, flushed, then renamed. PKV_ALREADY_EXISTS without
 * PKV_SAVE_OVERWRITE; PKV_RESOURCE_EXHAUSTED disk full; PKV_INVALID_ARGUMENT or PKV_UNAVAILABLE
 * with the system's text for other failures; nothing is left behind. */
PKV_API pkv_status pkv_index_save_sync(const pkv_index *index, pkv_stream *stream, const char *path,
                                       uint32_t flags);
/* Makes codec and index from a file. PKV_DATA_LOSS: damaged (which section, offset);
 * PKV_FAILED_PRECONDITION: another format version (both named); PKV_NOT_FOUND. `out_codec` may be
 * NULL. */
PKV_API pkv_status pkv_index_load_sync(pkv_device *device, pkv_stream *stream, const char *path,
                                       pkv_index **out_index, pkv_codec **out_codec);
/* Replaces the content of an index by that of a file with the same codec, as a whole or not at all.
 * PKV_FAILED_PRECONDITION names the field that differs (seed, head_dim, codec, centre, ..) and both
 * values. */
PKV_API pkv_status pkv_index_restore_sync(pkv_index *index, pkv_stream *stream, const char *path);

/* ---- Plan and decoding step --------------------------------------------------------- */

/* Shape, choices and scratch of a step, fixed once. Runs allocate nothing. */
typedef struct pkv_plan pkv_plan;

typedef struct pkv_plan_desc {
  uint32_t struct_size;
  int32_t batch;            /* b, 0..65,535 entries of the batch; default 1 */
  int32_t query_heads;      /* hq, a multiple of h, at most 128 h */
  int32_t owns_scratch;     /* 1: the plan allocates its scratch; then one call at a time */
  const int32_t *sequences; /* [b] of the index; NULL: 0..b-1. One that is named several times has
                             * several query tokens. Copied. */
  int64_t max_tokens;       /* longest row the plan serves; 0: the index's capacity */
} pkv_plan_desc;
PKV_API pkv_status pkv_plan_desc_init(pkv_plan_desc *desc, size_t struct_size);
/* PKV_FAILED_PRECONDITION: the config differs from the index's codec in an option of the codec
 * (named). */
PKV_API pkv_status pkv_plan_create(const pkv_index *index, const pkv_config *config,
                                   const pkv_plan_desc *desc, pkv_plan **out);
PKV_API void pkv_plan_destroy(pkv_plan *plan);
/* Device bytes, aligned to 256, that one call at a time may use; contents do not matter. */
PKV_API pkv_status pkv_plan_scratch_bytes(const pkv_plan *plan, int64_t *out);
/* c: entries per row for pkv_hits.candidates and .estimates. */
PKV_API pkv_status pkv_plan_candidates(const pkv_plan *plan, int64_t *out);
/* JSON: shape, options, which backend runs each stage, whether a step is fused, scratch by name. */
PKV_API pkv_status pkv_plan_describe(const pkv_plan *plan, const char **out);

/* Where pkv_retrieve and pkv_step_run write, and what fetch and attend read. Device pointers.
 * "Optional" is of pkv_retrieve; for pkv_step_run all are. */
typedef struct pkv_hits {
  uint32_t struct_size;
  uint32_t flags;      /* 0 */
  int32_t *positions;  /* [b, h, k] best first; unused entries hold -1 */
  float *scores;       /* [b, h, k] what rerank orders by (docs/algorithm.md, 6.2); optional */
  int32_t *counts;     /* [b, h] entries in use: min(k, candidates), fewer with `share` */
  int32_t *candidates; /* [b, h, c] ascending, unused -1; optional if tail = drop */
  int32_t *candidate_counts; /* [b, h]; optional if tail = drop */
  float *estimates;          /* [b, hq, c]; optional if tail = drop */
  float *rest_lse;           /* [b, hq]; optional if tail = drop */
  float *sample_estimates;   /* [b, hq, tail_samples]; optional if tail = drop or mean */
} pkv_hits;
PKV_API pkv_status pkv_hits_init(pkv_hits *hits, size_t struct_size);

/* Per query group, the k indexed keys with the best scores.
 *   query    [b, hq, d]
 *   scratch  pkv_plan_scratch_bytes(plan) of device memory; NULL if that is 0 or the plan owns it
 *   hits     all k entries are written, also when fewer keys are found
 * The same bits on every run; order and ties: docs/algorithm.md, 6.2. A row whose query is bad gets
 * count 0. Lengths are those of the index when the call is made. PKV_FAILED_PRECONDITION: a
 * sequence now holds more tokens than the plan's max_tokens. */
PKV_API pkv_status pkv_retrieve(const pkv_plan *plan, pkv_stream *stream, const pkv_tensor *query,
                                void *scratch, const pkv_hits *hits);

/* The two halves of pkv_retrieve, for a caller who chooses the candidates in between: where the
 * keys of a sequence lie on several devices, say, and the best of all of them are wanted
 * (docs/engines.md). Slower than pkv_retrieve, which does not hand out votes.
 *
 * pkv_vote: what candidates are chosen by (docs/algorithm.md, 4), the same bits on every backend.
 *   votes   [b, h, stride] device memory; of each row as many are written as its sequence has keys,
 *           NaN for a bad key or query
 *   stride  at least the plan's max_tokens */
PKV_API pkv_status pkv_vote(const pkv_plan *plan, pkv_stream *stream, const pkv_tensor *query,
                            void *scratch, float *votes, int64_t stride);
/* pkv_rerank: of given candidates what pkv_retrieve finds of its own.
 *   hits  candidates and candidate_counts are read: of each row up to c (pkv_plan_candidates)
 *         positions, ascending. positions and counts are written, all others where not NULL: scores
 *         and rest_lse are those of the row's candidates and its other keys, as if there were no
 *         other device.
 * On host memory it waits for the stream and looks at the candidates: PKV_OUT_OF_RANGE names the
 * slot and a count or position that is not accepted. */
PKV_API pkv_status pkv_rerank(const pkv_plan *plan, pkv_stream *stream, const pkv_tensor *query,
                              void *scratch, const pkv_hits *hits);

/* K and V of tokens. */
typedef struct pkv_rows {
  uint32_t struct_size;
  int32_t reserved;
  pkv_tensor keys;   /* ndim 0: none */
  pkv_tensor values; /* ndim 0: none (v_source k_prefix or none) */
} pkv_rows;
PKV_API pkv_status pkv_rows_init(pkv_rows *rows, size_t struct_size);

/* Copies the K and V rows of the hits, byte for byte, any dtype.
 *   source  keys [sequences, h, n, d], values [sequences, h, n, dv], positions counting from 0
 *   rows    keys [b, h, k, d], values [b, h, k, dv] of the source's dtypes; slots that are not in
 *           use get 0
 * On host memory it waits for the stream and looks at the positions: PKV_OUT_OF_RANGE names the
 * slot and a position outside the source or the sequence. */
PKV_API pkv_status pkv_fetch(const pkv_plan *plan, pkv_stream *stream, const pkv_rows *source,
                             const pkv_hits *hits, const pkv_rows *rows);

#define PKV_ATTENTION_PARTS 4
/* K/V attended in full: the sink, the dense tail. */
typedef struct pkv_dense {
  pkv_rows rows;          /* [b, h, t, d], [b, h, t, dv] */
  const int64_t *lengths; /* [b] tokens that count, host memory, 0..t; NULL: t for all */
} pkv_dense;
typedef struct pkv_attention {
  uint32_t struct_size;
  int32_t dense_count; /* 0..PKV_ATTENTION_PARTS */
  pkv_tensor query;    /* [b, hq, d] */
  pkv_dense dense[PKV_ATTENTION_PARTS];
  pkv_rows rows;        /* as pkv_fetch wrote them; keys.ndim 0 if k = 0 */
  const pkv_hits *hits; /* of the retrieve; NULL: dense parts only, nothing of the zone */
  void *scratch;        /* as for pkv_retrieve */
  pkv_tensor output;    /* [b, hq, dv] f32, f16 or bf16 */
  float *lse;           /* [b, hq] natural log-sum-exp, tail and sink logits included; optional */
  /* [hq] device memory, finite or -inf: each joins its head's softmax with a value of 0
   * (docs/algorithm.md, 8.1); NULL: none */
  const float *sink_logits;
} pkv_attention;
PKV_API pkv_status pkv_attention_init(pkv_attention *attention, size_t struct_size);

/* Exact softmax over dense parts and fetched rows, plus the configured tail of the zone
 * (docs/algorithm.md, 8). Nothing to attend to: output 0, lse -inf. With v_source = k_prefix values
 * may be absent: the first dv coordinates of the keys are used. */
PKV_API pkv_status pkv_attend(const pkv_plan *plan, pkv_stream *stream,
                              const pkv_attention *attention);

/* ---- Row cache ---------------------------------------------------------------------- */

/* The K and V rows that steps fetched last, in device memory, as many for every (sequence, KV head)
 * of an index. What is found there changes no bit of a step; without a cache a backend may run
 * other kernels, equal as two backends are. For one step at a time, on streams that wait for each
 * other. Where a batch names a sequence several times its first entry uses the cache. Backends
 * whose device is the host read rows in place: there it holds and finds nothing. */
typedef struct pkv_row_cache pkv_row_cache;

/*   index  whose sequences the steps are about; kept alive by the cache
 *   dtype  of the source's keys and values
 *   rows   per (sequence, KV head), 8 .. 4,096, rounded up to a multiple of 8
 * PKV_RESOURCE_EXHAUSTED names bytes. */
PKV_API pkv_status pkv_row_cache_create(const pkv_index *index, pkv_stream *stream, pkv_dtype dtype,
                                        int32_t rows, pkv_row_cache **out);
PKV_API void pkv_row_cache_destroy(pkv_row_cache *cache);
/* Forgets the rows of a sequence, in stream order: to be called when rows change at positions that
 * were fetched. After pkv_index_reset and pkv_index_restore_sync of the index the next pkv_step_run
 * does so by itself; a captured graph does not. PKV_OUT_OF_RANGE: sequence. */
PKV_API pkv_status pkv_row_cache_drop(pkv_row_cache *cache, pkv_stream *stream, int32_t sequence);

typedef struct pkv_row_cache_stats {
  uint32_t struct_size;
  int32_t rows;         /* per (sequence, KV head); 0: the backend has no use for a cache */
  int64_t device_bytes; /* held */
  int64_t looked_up;    /* rows wanted by steps since the cache was made */
  int64_t found;        /* of these */
} pkv_row_cache_stats;
PKV_API pkv_status pkv_row_cache_stats_init(pkv_row_cache_stats *stats, size_t struct_size);
/* Waits for `stream`. */
PKV_API pkv_status pkv_row_cache_stats_sync(const pkv_row_cache *cache, pkv_stream *stream,
                                            pkv_row_cache_stats *out);

/* A whole step in one call. */
typedef struct pkv_step {
  uint32_t struct_size;
  int32_t dense_count; /* 0..PKV_ATTENTION_PARTS */
  pkv_tensor query;    /* [b, hq, d] */
  pkv_dense dense[PKV_ATTENTION_PARTS];
  /* keys [sequences, h, n, d], values [sequences, h, n, dv]; n at least the sequences' lengths;
   * keys.ndim 0 if k = 0 */
  pkv_rows source;
  /* Where to leave what was found; NULL, or any of its pointers: not wanted. */
  const pkv_hits *hits;
  void *scratch;     /* as for pkv_retrieve */
  pkv_tensor output; /* [b, hq, dv] f32, f16 or bf16 */
  float *lse;        /* [b, hq] natural log-sum-exp, tail and sink logits included; optional */
  const float *sink_logits; /* as in pkv_attention */
  pkv_row_cache *row_cache; /* of the plan's index; NULL: none */
} pkv_step;
PKV_API pkv_status pkv_step_init(pkv_step *step, size_t struct_size);

/* pkv_retrieve, pkv_fetch from `source` and pkv_attend in one: the same result, and the fastest way
 * to it where the backend has one, since rows are read where they lie. PKV_OUT_OF_RANGE: the source
 * holds fewer tokens than a sequence. */
PKV_API pkv_status pkv_step_run(const pkv_plan *plan, pkv_stream *stream, const pkv_step *step);

#ifdef __cplusplus
}
#endif

#include "pariskv/pariskv_cache.h" /* the KV cache of an inference engine */

#endif /* PARISKV_H_ */
