/* The backend seam: the table that a backend fills, and the arguments of each stage.
 *
 * A backend is a shared library with one exported symbol, PKV_BACKEND_QUERY_SYMBOL, of type
 * pkv_backend_query_fn (or a built-in one with the same function under another name). Core checks
 * all arguments and allocates all memory; a backend may assume valid input. Results are defined by
 * docs/algorithm.md, section by section, and checked by pkv-conformance against cpu_ref.
 *
 * Rules for every slot:
 *  - It returns PKV_OK, or a status after calling host->report(host, text) with a sentence that
 *    names the value at fault. It never throws across the table, prints, aborts or exits.
 *  - `run` slots enqueue on the stream given, allocate nothing, wait for nothing, and touch only
 *    what their arguments name and `scratch`.
 *  - Pointers in stage arguments point to memory that the device can read (device memory; for CPU
 *    backends host memory), except those marked "host". The argument struct itself is host memory,
 *    read during the call only.
 *  - Slots are called from several threads at once for different streams.
 * Minor versions append fields; struct_size tells which are there. */
#ifndef PARISKV_BACKEND_H_
#define PARISKV_BACKEND_H_

#include "pariskv/pariskv_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_BACKEND_ABI_MAJOR 1
#define PKV_BACKEND_ABI_MINOR 0
#define PKV_BACKEND_QUERY_SYMBOL "pkv_backend_query"
#define PKV_MAX_SCHEDULE 4
#define PKV_MAX_PARTS 4

/* Services of the host. Lives as long as the backend is loaded. */
typedef struct pkv_host {
  uint32_t struct_size;
  uint32_t abi_major; /* PKV_BACKEND_ABI_MAJOR of the host */
  uint32_t abi_minor;
  uint32_t build_flags; /* PKV_BUILD_* of the host */
  void *user;
  /* Leaves the text that pkv_last_error will return for the call in progress on this thread. */
  void (*report)(const struct pkv_host *host, const char *text);
  /* To the caller's sink; levels as in pkv_log_fn. Not from run slots. */
  void (*log)(const struct pkv_host *host, int32_t level, const char *text);
} pkv_host;

/* How a binary was built; a plug-in that differs from its host in a sanitizer bit is refused. */
enum { PKV_BUILD_ASAN = 1, PKV_BUILD_TSAN = 2, PKV_BUILD_DEBUG = 4 };

typedef struct pkv_backend_device pkv_backend_device; /* a backend's own types behind the table */
typedef struct pkv_backend_stream pkv_backend_stream;
typedef struct pkv_backend_event pkv_backend_event;

/* Kinds of memory a backend hands out. */
enum {
  PKV_MEMORY_DEVICE = 1, /* the device's own */
  PKV_MEMORY_HOST = 2    /* host memory the device can read directly (pinned, mapped) */
};

typedef struct pkv_backend_device_info {
  uint32_t struct_size;
  pkv_device_type device_type; /* of tensors in this device's memory */
  int32_t device_id;
  int32_t lanes;        /* width of a hardware lane group; 1 for a plain CPU */
  int64_t memory_bytes; /* total device memory, 0 if not known */
  char name[128];       /* e.g. the model of the processor */
} pkv_backend_device_info;

/* Fitted parameters of one codec, or of several that share a geometry: entry i of the batch has set
 * set_of[i]. docs/algorithm.md, section 2. Unused arrays are NULL. */
typedef struct pkv_codec_params {
  const pkv_geometry *geometry; /* host */
  const float *center;          /* [sets, h, d] mu */
  const float *balance;         /* [sets, h, d] s */
  const float *inv_balance;     /* [sets, h, d] r */
  const float *signs_1;         /* [d] +1 or -1 */
  const float *signs_2;         /* [d] */
  const float *value_center;    /* [sets, h, dv] sketch only */
  const float *value_signs_1;   /* [dv] sketch only */
  const float *value_signs_2;   /* [dv] sketch only */
  const int32_t *set_of;        /* [b]; NULL: set 0 for every entry */
} pkv_codec_params;

/* Where records live, in the backend's own layout.
 *  - In one piece per row (pages NULL): row r = sequence * kv_heads + head occupies row_bytes bytes
 *    from base + r * row_bytes.
 *  - In pages (base NULL): positions p * capacity .. (p + 1) * capacity - 1 of sequence s lie in
 *    the page pages[s * pages_stride + p], which holds kv_heads rows of row_bytes bytes each, laid
 *    out as rows of `capacity` tokens. Several entries of the table may name one page; encode
 *    writes only to pages that no other sequence names. Entries behind the last position are not
 *    read. */
typedef struct pkv_store {
  void *base;         /* aligned to 256 */
  int64_t row_bytes;  /* multiple of 256, as store_row_bytes says for `capacity` */
  int64_t capacity;   /* tokens per row, or per page: then a power of two from 64 on, and a multiple
                       * of sketch_stride */
  void *const *pages; /* [sequences, pages_stride], each aligned to 256; NULL: not in pages */
  int64_t pages_stride;
} pkv_store;

/* Vectors of tokens in pages of page_tokens: that of position p, KV head g, of sequence s begins at
 * (char *)table[s * table_stride + p / page_tokens] + offset + g * head_bytes
 * + (p % page_tokens) * token_bytes. Strides may be negative. */
typedef struct pkv_pages {
  const void *const *table; /* NULL: not in pages */
  int64_t table_stride;
  int64_t page_tokens; /* 1 .. 2^31 - 1 */
  int64_t head_bytes;
  int64_t token_bytes;
  int64_t offset;
} pkv_pages;

/* Which sequences a call is about: entry i of the batch is sequence sequences[i] with
 * lengths[i] indexed keys. Entries may name one sequence several times, with equal lengths or not:
 * several query tokens. */
typedef struct pkv_batch {
  int32_t batch; /* b >= 0 */
  int32_t reserved;
  const int32_t *sequences; /* [b] */
  const int64_t *lengths;   /* [b] n */
  int64_t max_length;       /* host: upper bound of lengths[], sizes scratch and votes */
} pkv_batch;

/* Which vectors the fit counts as queries. */
enum {
  PKV_FIT_QUERIES_HEADS = 1, /* each head's */
  PKV_FIT_QUERIES_SUM = 2    /* each group's sum */
};

/* Stage fit (2.2; bounded): sums about a pivot, per KV head, over keys of one call. Overwrites. */
typedef struct pkv_fit_args {
  uint32_t struct_size;
  int32_t queries_as;           /* PKV_FIT_QUERIES_* */
  const pkv_geometry *geometry; /* host */
  pkv_tensor keys;              /* [h, t, d] */
  pkv_tensor queries;           /* [hq, m, d]; ndim 0: none */
  pkv_tensor values;            /* [h, t, dv]; ndim 0: none */
  const int32_t *weights;       /* [h, t] of the keys, >= 0; NULL: all 1 */
  const float *pivot;           /* [h, d] */
  int64_t *key_counts;          /* [h] usable keys */
  int64_t *key_weights;         /* [h] W, the sum of their weights */
  double *key_sums;             /* [h, d] weighted sum of k - pivot */
  double *key_squares;          /* [h, d] weighted sum of (k - pivot)^2 */
  int64_t *query_counts;        /* [h] usable query rows (all heads together) or sums */
  double *query_squares;        /* [h, d] */
  double *value_sums;           /* [h, dv]; NULL: not wanted */
} pkv_fit_args;

/* Stage encode (3; exact): appends records. Entry i of the batch writes counts[i] <= t records of
 * each KV head at positions starts[i] .. of sequence sequences[i]. */
typedef struct pkv_encode_args {
  uint32_t struct_size;
  int32_t batch; /* b */
  pkv_codec_params codec;
  pkv_tensor keys;          /* [b, h, t, d] */
  pkv_tensor values;        /* [b, h, t, dv]; ndim 0: none (then no sketch, norm or value sum) */
  const int32_t *sequences; /* [b] all different */
  const int64_t *starts;    /* [b] */
  const int64_t *counts;    /* [b] */
  pkv_store store;
  int32_t *occupancy;   /* [rows, d/8, 256], added to; tier only, else NULL (3.7) */
  double *value_sums;   /* [rows, dv], added to in ascending position; NULL without values */
  int64_t *good_counts; /* [rows], added to: keys that are not bad */
  int64_t *first_bad; /* [b, h] overwritten: first bad position of this call, or -1; may be NULL */
} pkv_encode_args;

/* Stage vote (4; exact). votes[i * h + head] of entry i is written up to lengths[i], the rest of
 * the row up to votes_stride is left alone. */
typedef struct pkv_vote_args {
  uint32_t struct_size;
  int32_t query_heads; /* hq */
  int32_t vote_group;  /* PKV_VOTE_GROUP_* */
  int32_t rho_of;      /* PKV_RHO_OF_* */
  pkv_codec_params codec;
  pkv_batch batch;
  pkv_tensor queries; /* [b, hq, d] */
  pkv_store store;
  const int32_t *occupancy; /* [rows, d/8, 256]; tier only */
  float *votes;             /* [b * h, votes_stride] */
  int64_t votes_stride;     /* >= max_length */
} pkv_vote_args;

/* How many candidates (5): ppm[i] applies below below[i] keys, the last entry beyond. */
typedef struct pkv_candidate_rule {
  int64_t below[PKV_MAX_SCHEDULE]; /* ascending; the last used entry is INT64_MAX */
  int64_t ppm[PKV_MAX_SCHEDULE];   /* 0..1,000,000 */
  int32_t k;                       /* never fewer than min(k, n) */
  int32_t steps;                   /* entries used, 1..PKV_MAX_SCHEDULE */
} pkv_candidate_rule;

/* Stage select (5; exact). */
typedef struct pkv_select_args {
  uint32_t struct_size;
  int32_t kv_heads;
  pkv_batch batch; /* lengths are the rows' n */
  pkv_candidate_rule rule;
  const float *votes; /* [b * h, votes_stride] */
  int64_t votes_stride;
  int32_t *candidates;       /* [b * h, candidates_stride] ascending; unused entries -1 */
  int64_t candidates_stride; /* >= the rule's largest count over lengths up to max_length */
  int32_t *candidate_counts; /* [b * h] */
} pkv_select_args;

/* Stage rerank (6; estimates of scalar codecs exact, the rest bounded). */
typedef struct pkv_rerank_args {
  uint32_t struct_size;
  int32_t query_heads;
  int32_t rank;  /* PKV_RANK_* */
  int32_t k;     /* entries per row of positions and scores */
  int32_t k_min; /* adaptive k only */
  int32_t tail_samples;
  int32_t weigh_norms; /* 1: scores carry + ln of the value norm (6.2) */
  float scale;
  double share;   /* adaptive k (6.3); 0 = off */
  float soft_cap; /* logits become soft_cap * tanh(logit / soft_cap) (8.1); 0: they stay */
  int32_t reserved;
  pkv_codec_params codec;
  pkv_batch batch;
  pkv_tensor queries; /* [b, hq, d] */
  pkv_store store;
  const int32_t *candidates; /* [b * h, candidates_stride] ascending */
  int64_t candidates_stride;
  const int32_t *candidate_counts; /* [b * h] */
  int32_t *positions;              /* [b * h, k] best first; unused entries -1 */
  float *scores;                   /* [b * h, k]; unused entries -inf */
  int32_t *counts;                 /* [b * h] */
  float *estimates; /* [b, hq, candidates_stride] written up to the count; NULL: not wanted */
  float *rest_lse;  /* [b, hq] (6.4); NULL: not wanted */
  float *sample_estimates; /* [b, hq, tail_samples] (6.4); NULL: not wanted */
} pkv_rerank_args;

/* Stage fetch (7; exact): copies rows, entry i from sequence sequences[i] of the source. Takes no
 * scratch: its scratch_bytes is 0. */
typedef struct pkv_fetch_args {
  uint32_t struct_size;
  int32_t kv_heads;
  pkv_batch batch;
  pkv_tensor source_keys;   /* [sequences, h, n, d] any dtype; ndim 0: no keys wanted */
  pkv_tensor source_values; /* [sequences, h, n, dv]; ndim 0: none */
  pkv_pages key_pages;      /* in pages: source_keys says shape and dtype, its data is NULL */
  pkv_pages value_pages;
  const int32_t *positions; /* [b * h, k]; -1 writes zero bytes */
  int32_t k;
  int32_t reserved;
  pkv_tensor keys;   /* [b, h, k, d], the source's dtype */
  pkv_tensor values; /* [b, h, k, dv] */
} pkv_fetch_args;

/* K/V attended in full: the first lengths[i] of t tokens. In pages, the tokens at positions
 * starts[i] .. starts[i] + lengths[i] - 1 of sequence batch.sequences[i], lengths[i] <= t; `keys`
 * and `values` then say shape and dtype, their data is NULL. */
typedef struct pkv_part {
  pkv_tensor keys;        /* [b, h, t, d] */
  pkv_tensor values;      /* [b, h, t, dv] */
  const int64_t *lengths; /* [b]; NULL: t for all */
  const int64_t *starts;  /* [b] in pages only; NULL: 0 for all */
  pkv_pages key_pages;
  pkv_pages value_pages;
} pkv_part;

/* Stage attend (8; bounded). */
typedef struct pkv_attend_args {
  uint32_t struct_size;
  int32_t query_heads;
  int32_t tail;       /* PKV_TAIL_* */
  int32_t part_count; /* 0..PKV_MAX_PARTS */
  float scale;
  int32_t k;                /* slots per row of fetched K/V; 0: none */
  int32_t tail_samples;     /* T of 6.4; sampled and sketch only */
  float soft_cap;           /* as in rerank; 0: none */
  const float *sink_logits; /* [hq] joins the softmax's sum with a value of 0 (8.1); NULL: none */
  pkv_codec_params codec;
  pkv_batch batch;
  pkv_tensor queries; /* [b, hq, d] */
  pkv_part parts[PKV_MAX_PARTS];
  pkv_tensor row_keys;       /* [b, h, k, d] fetched rows; ndim 0 if k = 0 */
  pkv_tensor row_values;     /* [b, h, k, dv] */
  const int32_t *positions;  /* [b * h, k] of the fetched rows */
  const int32_t *counts;     /* [b * h] rows in use */
  const int32_t *candidates; /* tail other than drop: as rerank read them */
  int64_t candidates_stride;
  const int32_t *candidate_counts; /* [b * h] */
  const float *estimates;          /* [b, hq, candidates_stride] */
  const float *rest_lse;           /* [b, hq] */
  const float *sample_estimates;   /* [b, hq, tail_samples]; sampled and sketch only */
  const double *value_sums;        /* [rows, dv] as encode left them */
  const int64_t *good_counts;      /* [rows] */
  pkv_store store;                 /* sampled and sketch only */
  pkv_tensor output;               /* [b, hq, dv] f32, f16 or bf16 */
  float *lse;                      /* [b, hq]; NULL: not wanted */
} pkv_attend_args;

#define PKV_ROW_CACHE_WAYS 8
#define PKV_ROW_CACHE_LINES 4096 /* at most */
/* Rows of K and V that a step keeps in device memory, so that those which come again need not cross
 * the bus. Results never depend on it; a backend that has no use for it ignores it. All of it 0: an
 * empty cache. Rows are those of the index: r = sequence * kv_heads + head. */
typedef struct pkv_row_cache_args {
  void *data;         /* [rows, lines, line_bytes], aligned to 256; NULL: no cache */
  uint64_t *tags;     /* [rows, lines] step of the last use << 32 | position + 1; 0: empty */
  uint64_t *counts;   /* [rows, 4] steps, rows looked up, rows found, 0 */
  int64_t line_bytes; /* a multiple of 32: the first half for K, the second for V */
  int32_t lines;      /* a multiple of PKV_ROW_CACHE_WAYS: lines of a set are neighbours */
  int32_t reserved;
} pkv_row_cache_args;

/* A whole decoding step (4 to 8) in one call: the stages' results, one after the other, without
 * what only passes from one to the next. Each member is filled in as for its stage, but
 *  - vote.votes is NULL: the votes are not wanted;
 *  - fetch.source_keys and fetch.source_values are read in place at the positions that rerank
 *    finds; fetch.keys, fetch.values, attend.row_keys and attend.row_values have ndim 0;
 *  - attend.output.ndim = 0: no attention, the step ends with rerank.
 * Stages that feed another share pointers: select.candidates is rerank.candidates, and so on. */
typedef struct pkv_step_args {
  uint32_t struct_size;
  uint32_t reserved;
  pkv_vote_args vote;
  pkv_select_args select;
  pkv_rerank_args rerank;
  pkv_fetch_args fetch;
  pkv_attend_args attend;
  pkv_row_cache_args row_cache; /* of the rows that fetch names */
} pkv_step_args;

/* Where the sequences of a cache's layer stand, as the device knows it: [sequences] of these, read
 * and written in stream order. What a step reads of lengths it reads here, so that one captured
 * step serves sequences that grow. */
typedef struct pkv_sequence_state {
  int64_t tokens;
  int64_t encoded; /* keys with records */
  int64_t limit;   /* tokens that there are pages for */
  int64_t set;     /* of the codecs */
} pkv_sequence_state;

/* Optional slot place (9; exact): tokens into the pages behind the ends of sequences. Entry i has
 * counts[i] rows; the first goes to position states[sequences[i]].tokens. The rows of an entry that
 * would pass the state's limit are not written. Lengths stay as they are. */
typedef struct pkv_place_args {
  uint32_t struct_size;
  int32_t kv_heads;
  int32_t batch; /* b */
  int32_t reserved;
  const int32_t *sequences;         /* host [b] */
  const int64_t *counts;            /* host [b] */
  const pkv_sequence_state *states; /* [sequences] */
  pkv_tensor keys;                  /* [n, h, d], n the sum of counts */
  pkv_tensor values;                /* [n, h, dv]; ndim 0: none */
  int64_t sink;                     /* positions below lie in the sink's pages, the others, counted
                                     * from it, in those of the rows; their tables are written
                                     * through */
  pkv_pages sink_keys, sink_values;
  pkv_pages row_keys, row_values;
  pkv_pages recent_keys, recent_values; /* table NULL: none. Of the same shape as those of the rows;
                                         * where an entry names another page, the row goes there
                                         * too. With pkv_backend.has_recent_rows alone */
} pkv_place_args;

/* Optional slot advance (9; exact): the numbers of a call from the states. Entry i is counts[i]
 * query tokens, the last ones of its sequence; with `appends` its tokens first become counts[i]
 * more. Query token t of a sequence's last c tokens is at p = tokens - c + t and sees positions to
 * p: records of positions below sink + keys, keys = encoded if `uses_records`, else 0; of the
 * sink [sink_start, sink_start + sink_length); and from position row_origin + row_start on
 * row_length tokens. With a window w > 0 positions below p + 1 - w are not seen.
 * An entry that would pass the state's limit, or a bound, changes nothing, and its numbers
 * are 0; the first such fault is left in `fault`, if that holds none. */
enum { PKV_ADVANCE_LIMIT = 1, PKV_ADVANCE_KEYS = 2, PKV_ADVANCE_ROWS = 3 };
typedef struct pkv_advance_args {
  uint32_t struct_size;
  int32_t appends;
  int32_t uses_records;
  int32_t batch;              /* b */
  const int32_t *sequences;   /* host [b] */
  const int64_t *counts;      /* host [b] */
  pkv_sequence_state *states; /* [sequences] */
  int64_t sink;
  int64_t window;
  int64_t row_origin;
  int64_t most_keys; /* bounds of keys and row_length */
  int64_t most_rows;
  int32_t *out_sequences; /* [n] */
  int32_t *out_sets;      /* [n]; 0 without records */
  int64_t *keys;          /* [n] */
  int64_t *sink_starts;   /* [n] */
  int64_t *sink_lengths;  /* [n] */
  int64_t *row_starts;    /* [n]; 0 without row_length */
  int64_t *row_lengths;   /* [n] */
  int64_t *fault;         /* [4] kind (PKV_ADVANCE_*), sequence, number, bound */
} pkv_advance_args;

/* Optional slot merge (8; bounded): as pkv_merge. */
typedef struct pkv_merge_args {
  uint32_t struct_size;
  int32_t count;
  const pkv_tensor *outputs; /* host [count] of [n, hq, dv], one dtype */
  const float *const *lses;  /* host [count] of [n, hq] */
  pkv_tensor output;         /* [n, hq, dv] */
  float *lse;                /* [n, hq]; NULL: not wanted */
} pkv_merge_args;

/* One stage. `supports` refuses with a sentence; only sizes, dtypes and options of its arguments
 * are read. `scratch_bytes` likewise; the answer holds for any smaller lengths. */
#define PKV_STAGE_SLOTS(Args)                                                                   \
  pkv_status (*supports)(pkv_backend_device * device, const Args *args);                        \
  pkv_status (*scratch_bytes)(pkv_backend_device * device, const Args *args, int64_t *out);     \
  pkv_status (*run)(pkv_backend_device * device, pkv_backend_stream * stream, const Args *args, \
                    void *scratch)

typedef struct pkv_fit_slots {
  PKV_STAGE_SLOTS(pkv_fit_args);
} pkv_fit_slots;
typedef struct pkv_encode_slots {
  PKV_STAGE_SLOTS(pkv_encode_args);
} pkv_encode_slots;
typedef struct pkv_vote_slots {
  PKV_STAGE_SLOTS(pkv_vote_args);
} pkv_vote_slots;
typedef struct pkv_select_slots {
  PKV_STAGE_SLOTS(pkv_select_args);
} pkv_select_slots;
typedef struct pkv_rerank_slots {
  PKV_STAGE_SLOTS(pkv_rerank_args);
} pkv_rerank_slots;
typedef struct pkv_fetch_slots {
  PKV_STAGE_SLOTS(pkv_fetch_args);
} pkv_fetch_slots;
typedef struct pkv_attend_slots {
  PKV_STAGE_SLOTS(pkv_attend_args);
} pkv_attend_slots;
typedef struct pkv_step_slots {
  PKV_STAGE_SLOTS(pkv_step_args);
} pkv_step_slots;

/* The table. All slots but the optional ones at the end are required. */
typedef struct pkv_backend {
  uint32_t struct_size;
  uint32_t abi_major; /* PKV_BACKEND_ABI_MAJOR it was built with */
  uint32_t abi_minor;
  uint32_t build_flags;    /* PKV_BUILD_* */
  uint32_t format_version; /* kFormatVersion of core/format/records.h (docs/format.md) */
  int32_t score;           /* `auto` takes the usable backend with the highest */
  const char *name;        /* lower case, [a-z0-9_-]+, e.g. "cpu_ref" */
  const char *version;     /* of the backend, free text */
  const char *about;       /* one line */

  /* Discovery. */
  pkv_status (*device_count)(const pkv_host *host, int32_t *out);
  pkv_status (*device_info)(const pkv_host *host, int32_t ordinal, pkv_backend_device_info *out);
  pkv_status (*device_open)(const pkv_host *host, int32_t ordinal, pkv_backend_device **out);
  void (*device_close)(pkv_backend_device *device);

  /* Memory. `bytes` > 0; results are aligned to 256. */
  pkv_status (*memory_alloc)(pkv_backend_device *device, int32_t kind, int64_t bytes, void **out);
  void (*memory_free)(pkv_backend_device *device, int32_t kind, void *data, int64_t bytes);
  /* In stream order; either side may be host memory, which then stays valid until the stream has
   * passed the copy. */
  pkv_status (*memory_copy)(pkv_backend_device *device, pkv_backend_stream *stream, void *target,
                            const void *source, int64_t bytes);
  pkv_status (*memory_fill)(pkv_backend_device *device, pkv_backend_stream *stream, void *target,
                            int32_t byte, int64_t bytes);

  /* Streams and events. `native` is the vendor's handle; 0 its default stream. */
  pkv_status (*stream_create)(pkv_backend_device *device, pkv_backend_stream **out);
  pkv_status (*stream_wrap)(pkv_backend_device *device, uintptr_t native, pkv_backend_stream **out);
  void (*stream_destroy)(pkv_backend_device *device, pkv_backend_stream *stream);
  pkv_status (*stream_sync)(pkv_backend_device *device, pkv_backend_stream *stream);
  pkv_status (*event_create)(pkv_backend_device *device, pkv_backend_event **out);
  void (*event_destroy)(pkv_backend_device *device, pkv_backend_event *event);
  pkv_status (*event_record)(pkv_backend_device *device, pkv_backend_stream *stream,
                             pkv_backend_event *event);
  pkv_status (*event_wait)(pkv_backend_device *device, pkv_backend_stream *stream,
                           pkv_backend_event *event);

  /* Layout of key records. Bytes of one row of `capacity` tokens (multiple of 256); conversion of
   * the records of positions [begin, begin + count) of one row from and to canonical planes, where
   * record i of the canonical planes is position begin + i, and entry i of the value planes the
   * i-th position of that range that has a sketch. */
  pkv_status (*store_row_bytes)(pkv_backend_device *device, const pkv_geometry *geometry,
                                int64_t capacity, int64_t *out);
  pkv_status (*store_import)(pkv_backend_device *device, pkv_backend_stream *stream,
                             const pkv_geometry *geometry, const pkv_store *store, int64_t row,
                             int64_t begin, int64_t count, const pkv_records *source);
  pkv_status (*store_export)(pkv_backend_device *device, pkv_backend_stream *stream,
                             const pkv_geometry *geometry, const pkv_store *store, int64_t row,
                             int64_t begin, int64_t count, const pkv_records *target);

  pkv_fit_slots fit;
  pkv_encode_slots encode;
  pkv_vote_slots vote;
  pkv_select_slots select;
  pkv_rerank_slots rerank;
  pkv_fetch_slots fetch;
  pkv_attend_slots attend;

  /* Optional: NULL where a backend has nothing of the kind; of `step` all three or none. Used where
   * its `supports` takes the step with attention and without. */
  pkv_step_slots step;
  /* Sets an option of an open device, for the calls that come. INVALID_ARGUMENT names the value and
   * what is accepted, an option that the backend lacks included. */
  pkv_status (*device_set)(pkv_backend_device *device, const char *name, const char *value);
  /* Runs on the caller's threads from now on; NULL: on the backend's own again. Copied. */
  pkv_status (*device_parallel)(pkv_backend_device *device, const pkv_parallel *parallel);
  int32_t has_row_cache; /* 1: `step` uses row_cache; else none is allocated */
  int32_t reserved;

  /* NULL: core merges in host memory, or refuses where the device's is another. */
  pkv_status (*merge)(pkv_backend_device *device, pkv_backend_stream *stream,
                      const pkv_merge_args *args);
  /* What lets the steps of a cache run without a wait; of these four all or none (NULL: the tables
   * of a cache lie in host memory, and each call waits for the one before). They allocate nothing
   * and keep no host memory.
   * memory_words writes values[i] to targets[i], 8 bytes aligned to 8 each, in stream order; host
   * arrays [count], targets all different. stream_capturing: 1 while what is enqueued is recorded
   * for a graph, else 0. */
  pkv_status (*memory_words)(pkv_backend_device *device, pkv_backend_stream *stream, int32_t count,
                             void *const *targets, const uint64_t *values);
  pkv_status (*stream_capturing)(pkv_backend_device *device, pkv_backend_stream *stream,
                                 int32_t *out);
  pkv_status (*place)(pkv_backend_device *device, pkv_backend_stream *stream,
                      const pkv_place_args *args);
  pkv_status (*advance)(pkv_backend_device *device, pkv_backend_stream *stream,
                        const pkv_advance_args *args);
  int32_t has_recent_rows; /* 1: `place` writes recent rows; else a cache keeps none */
  int32_t reserved_2;
} pkv_backend;

/* Returns the backend's table, valid until the process ends, or NULL after host->report with the
 * reason. `host_max_abi` is (major << 16 | minor); a backend that needs more refuses. */
typedef const pkv_backend *(*pkv_backend_query_fn)(uint32_t host_max_abi, const pkv_host *host);

#ifdef __cplusplus
}
#endif
#endif /* PARISKV_BACKEND_H_ */
