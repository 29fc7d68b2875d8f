/* pariskv: the KV cache that an inference engine embeds. It takes the tokens of many sequences, one
 * layer at a time, keeps K and V rows and key records in pages, and answers "attend" at every step.
 * How an engine uses it: docs/cache.md. Included by pariskv.h, whose conventions hold here too.
 *
 *   pkv_cache_desc_init(&desc, sizeof desc);  desc.layers = 28;  desc.kv_heads = 8;  ..
 *   pkv_cache_create(device, config, &desc, &cache);
 *   pkv_cache_add(cache, &sequence);
 *   for each layer: pkv_cache_append(cache, stream, layer, &prompt, &keys, &values, &queries);
 *   for each token, for each layer: pkv_cache_decode_step(cache, stream, layer, &batch, &tokens);
 *
 * Regions (docs/algorithm.md, 9). The tokens of a sequence lie, by position, in
 *   [sink | zone | dense tail]   sink = min(tokens, desc.sink)
 * and the zone's length is interval * floor(max(0, tokens - sink - local) / interval). Sink and
 * tail are attended in full. While the zone is shorter than desc.dense_below it is attended in full
 * too; at the first length that is not, a codec is fitted to it and its keys are encoded. From then
 * on the codec is fitted anew, and the zone encoded anew, each time the zone has grown by a
 * sixteenth, or by an eighth behind a fit at 16,384 keys or more: at the first length z, a multiple
 * of interval, with 16 z >= 17 (length of the last fit), or 8 z >= 9 (that). A fit at length z uses
 * all keys of the zone and the queries that were passed for the last fit_positions positions before
 * sink + z + local, the number of tokens that makes the zone so long. What a sequence answers is a
 * function of its tokens, lengths and passed queries alone, never of how they came in pieces.
 *
 * Conventions of this header; functions do not repeat them.
 *  a. layer: 0 .. layers-1, else PKV_OUT_OF_RANGE. sequence: a slot 0 .. sequences-1, else
 *     PKV_OUT_OF_RANGE; one that is not in use (never added, or removed) is
 *     PKV_FAILED_PRECONDITION.
 *  b. Layers are independent: each has a length per sequence of its own. Calls on a sequence as a
 *     whole (truncate, fork, reset, remove) reach all its layers.
 *  c. The batch of a call (pkv_cache_batch) names b different sequences and how many tokens each
 *     brings; n is their sum. Tensors hold the tokens of the first sequence, then those of the
 *     second, and so on: keys [n, h, d], values [n, h, dv], queries and outputs [n, hq, ..].
 *     Strides are free: [h, t, d] of one sequence, and [b, h, 1, d] of single tokens, need no copy.
 *  d. Positions in hits, records and rows of the zone count from the zone's first token, which is
 *     position `sink` of the sequence.
 *  e. A call that returns anything but PKV_OK has changed nothing, for no sequence of its batch.
 *     Exception: PKV_UNAVAILABLE, PKV_INTERNAL and PKV_CANCELLED from a backend in the middle of an
 *     append; the sequences of that call then count as before the call, their codecs may be gone
 *     back to what the lengths say. So may they where a decode_step finds no memory on the host
 *     even for taking back what it has appended.
 *  f. Any call from any thread: calls on one cache wait for one another. pkv_cache_destroy is the
 *     last.
 *  g. Work is enqueued on the stream given, and each call comes behind the preceding call on the
 *     same cache, whatever their streams (flush: see there). The host waits where the name ends in
 *     _sync, where a codec is fitted, where scratch or tables grow (pkv_cache_reserve), and, with
 *     backends whose tables lie in host memory (describe: tables), in every call. */
#ifndef PARISKV_CACHE_H_
#define PARISKV_CACHE_H_

#include "pariskv/pariskv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pkv_cache pkv_cache;

/* ---- Create ------------------------------------------------------------------------- */

/* How a layer attends. */
enum {
  PKV_CACHE_SPARSE = 1, /* sink, zone and tail as above; default */
  PKV_CACHE_DENSE = 2,  /* everything in full; no codec, no records */
  PKV_CACHE_WINDOW = 3  /* the last `window` tokens in full, the query's own included */
};
typedef struct pkv_cache_layer {
  uint32_t struct_size;
  int32_t attention; /* PKV_CACHE_SPARSE .. WINDOW */
  int64_t window;    /* >= 1 with PKV_CACHE_WINDOW, else 0 */
} pkv_cache_layer;
PKV_API pkv_status pkv_cache_layer_init(pkv_cache_layer *layer, size_t struct_size);

/* Shape and limits; everything else are options of the config (head_dim, value_dim, v_source, k,
 * candidates, tail, scale, nonfinite, ..). Call pkv_cache_desc_init, then set at least layers,
 * kv_heads, query_heads. */
typedef struct pkv_cache_desc {
  uint32_t struct_size;
  int32_t layers;        /* 1 .. 4,096; must be set */
  int32_t sequences;     /* slots, 1 .. 65,536; default 1 */
  int32_t kv_heads;      /* h; must be set */
  int32_t query_heads;   /* hq, a multiple of h, at most 128 h; must be set */
  pkv_dtype dtype;       /* of K and V rows: F32, F16, BF16; default BF16 */
  int64_t capacity;      /* tokens of a sequence, 1 .. 2^31-1; default 2^31-1 */
  int64_t max_bytes;     /* of pages, all layers and sequences; 0 (default): no limit */
  int64_t sink;          /* 0 .. 65,536; default 128 */
  int64_t local;         /* 0 .. 2^20; default 512 */
  int64_t interval;      /* 1 .. 2^20; default 512 */
  int64_t dense_below;   /* 1 .. 2^31-1; default 1,024 */
  int64_t page_tokens;   /* a power of two, 64 .. 65,536; default 512 */
  int32_t rows_memory;   /* PKV_ALLOC_HOST (default) or PKV_ALLOC_DEVICE: where K and V rows lie */
  int32_t fit_positions; /* positions whose queries a fit uses, 0 .. 4,096; default 128 */
  int32_t refits;        /* 1 (default): as the zone grows; 0: the first fit stands */
  int32_t deferred;      /* 1: appends leave encoding and fits to pkv_cache_flush; default 0 */
  float soft_cap;        /* logits become soft_cap * tanh(logit / soft_cap); 0 (default): none */
  int32_t reserved;      /* 0 */
  const float *sink_logits;        /* [hq] host, finite or -inf; NULL (default): none. Copied. */
  const pkv_cache_layer *policies; /* [layers]; NULL (default): all sparse. Copied. */
  const float *alibi_slopes;       /* must be NULL. Anything else is PKV_UNIMPLEMENTED: estimates
                                   * from key records do not know distances */
} pkv_cache_desc;
PKV_API pkv_status pkv_cache_desc_init(pkv_cache_desc *desc, size_t struct_size);

/* Bytes held, by purpose. */
typedef struct pkv_cache_usage {
  uint32_t struct_size;
  int32_t reserved;
  int64_t total;        /* the sum of all below, as far as `scratch` */
  int64_t row_pages;    /* K and V rows, whole pages */
  int64_t record_pages; /* key records, whole pages, with the value sums up to each page */
  int64_t tables;       /* page tables and the state of each sequence: value sums, counts */
  int64_t occupancy;    /* tier votes only: counts per pattern, and those up to each record page */
  int64_t codecs;       /* fitted parameters in use, and those kept for rollback */
  int64_t samples;      /* queries kept for fits */
  int64_t scratch;      /* of steps, appends and fits, as far as it was needed */
  int64_t partly;       /* not in the total again: of row_pages and record_pages what lies in places
                         * for tokens that are not there */
  int64_t recent_rows;  /* beside the total and all limits: device copies of rows that lie in host
                         * memory and are attended in full, with room for those to come */
} pkv_cache_usage;
PKV_API pkv_status pkv_cache_usage_init(pkv_cache_usage *usage, size_t struct_size);

/* What a cache of this shape holds once `count` sequences have lengths[i] tokens in every layer, no
 * page shared, scratch apart (0 here). Nothing is allocated. query_dtype: of the queries that
 * appends bring, 0: they bring none. PKV_INVALID_ARGUMENT as for create, and where a sum passes
 * 2^63. */
PKV_API pkv_status pkv_cache_bytes(const pkv_device *device, const pkv_config *config,
                                   const pkv_cache_desc *desc, const int64_t *lengths,
                                   int32_t count, pkv_dtype query_dtype, pkv_cache_usage *out);

/* PKV_INVALID_ARGUMENT: a field or option (named, with its range). PKV_UNIMPLEMENTED: the backend
 * lacks the shape or an option. PKV_RESOURCE_EXHAUSTED. */
PKV_API pkv_status pkv_cache_create(pkv_device *device, const pkv_config *config,
                                    const pkv_cache_desc *desc, pkv_cache **out);
PKV_API void pkv_cache_destroy(pkv_cache *cache);

/* Books pages and scratch, so that nothing is allocated while no sequence passes `tokens` tokens,
 * all sequences of a layer together hold no more than `total_tokens`, and no step has more than
 * `step_tokens` query tokens (n of its batch). Fits excepted. Only ever grows.
 * PKV_RESOURCE_EXHAUSTED: nothing is booked. */
PKV_API pkv_status pkv_cache_reserve(pkv_cache *cache, pkv_stream *stream, int64_t tokens,
                                     int64_t total_tokens, int64_t step_tokens);

/* ---- Sequences ---------------------------------------------------------------------- */

/* Takes the lowest free slot; the sequence is empty. PKV_RESOURCE_EXHAUSTED: all are in use. */
PKV_API pkv_status pkv_cache_add(pkv_cache *cache, int32_t *out_sequence);
/* Gives the slot and its pages back. */
PKV_API pkv_status pkv_cache_remove(pkv_cache *cache, pkv_stream *stream, int32_t sequence);
/* The sequence stays in use, with no tokens. */
PKV_API pkv_status pkv_cache_reset(pkv_cache *cache, pkv_stream *stream, int32_t sequence);
/* Takes back all tokens from position `tokens` on, in every layer. Afterwards everything is, bit
 * for bit, as if they had never been appended: records, value sums, codecs, samples. The cost does
 * not depend on the length unless a refit is taken back (the zone is then encoded with the earlier
 * fit). PKV_OUT_OF_RANGE: a layer holds fewer (named). PKV_RESOURCE_EXHAUSTED: the cut lies within
 * a page that a fork shares, and there is no page for what stays. PKV_UNAVAILABLE: the device
 * failed; the tokens may be gone all the same, as with reset. */
PKV_API pkv_status pkv_cache_truncate(pkv_cache *cache, pkv_stream *stream, int32_t sequence,
                                      int64_t tokens);
/* A new sequence, in the lowest free slot, that holds the first `tokens` tokens of `source`: equal
 * to one that was appended them. Pages are shared until one of both writes to them. -1: all tokens,
 * each layer's own length. */
PKV_API pkv_status pkv_cache_fork(pkv_cache *cache, pkv_stream *stream, int32_t source,
                                  int64_t tokens, int32_t *out_sequence);
PKV_API pkv_status pkv_cache_length(const pkv_cache *cache, int32_t layer, int32_t sequence,
                                    int64_t *out);

typedef struct pkv_cache_regions {
  uint32_t struct_size;
  int32_t is_encoded; /* 1: the zone has records; 0: it is attended in full */
  int64_t tokens;     /* sink + zone + tail */
  int64_t sink;       /* in tokens, from position 0 */
  int64_t zone;       /* from position `sink`; in dense and window layers 0 */
  int64_t tail;       /* from position sink + zone */
  int64_t fit_length; /* zone length that the codec in use was fitted at; 0: none, or imported */
  int64_t next_fit;   /* zone length at which the next fit is due; INT64_MAX: never */
  int64_t fits;       /* fits that are kept, the one in use included */
} pkv_cache_regions;
PKV_API pkv_status pkv_cache_regions_init(pkv_cache_regions *regions, size_t struct_size);
PKV_API pkv_status pkv_cache_regions_get(const pkv_cache *cache, int32_t layer, int32_t sequence,
                                         pkv_cache_regions *out);

/* ---- Tokens and steps --------------------------------------------------------------- */

typedef struct pkv_cache_batch {
  uint32_t struct_size;
  int32_t batch;            /* b, 0 .. sequences */
  const int32_t *sequences; /* [b] host, all different */
  const int64_t *counts;    /* [b] host, tokens of each, >= 0; NULL: 1 each */
} pkv_cache_batch;
PKV_API pkv_status pkv_cache_batch_init(pkv_cache_batch *batch, size_t struct_size);

/* Appends tokens of one layer behind those that are there.
 *   keys     [n, h, d] of the cache's dtype
 *   values   [n, h, dv]; NULL with v_source none; with k_prefix NULL, since the keys have them
 *   queries  [n, hq, d] f32, f16 or bf16, the same dtype in every call; optional (NULL): fits do
 *            without. Only those of the last fit_positions positions before a fit are kept.
 * Rows whose squares have no finite sum: backends on the CPU refuse them (PKV_INVALID_ARGUMENT
 * names sequence, position, KV head); with nonfinite = isolate that KV head never attends to them;
 * others isolate the record once it is encoded. PKV_RESOURCE_EXHAUSTED: past the capacity, or no
 * room for pages (need and room named); a count above the capacity is PKV_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_cache_append(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                    const pkv_cache_batch *batch, const pkv_tensor *keys,
                                    const pkv_tensor *values, const pkv_tensor *queries);

/* Encodes and fits what is due, for all layers and sequences. Without desc.deferred there is never
 * anything due. Until then the tokens lie in the dense tail, which is longer for it.
 * Off the critical path: given a stream of its own, the flush begins behind the calls before it,
 * and a later call waits only for the layers that it reads. */
PKV_API pkv_status pkv_cache_flush(pkv_cache *cache, pkv_stream *stream);

/* What a step finds: pkv_hits for query tokens instead of batch entries, all optional but positions
 * and counts of pkv_cache_retrieve. Device pointers. */
typedef struct pkv_cache_hits {
  uint32_t struct_size;
  int32_t reserved;
  int32_t *positions;        /* [n, h, k] in the zone, best first; unused entries -1 */
  float *scores;             /* [n, h, k] */
  int32_t *counts;           /* [n, h]; 0 where the zone is attended in full */
  int32_t *candidates;       /* [n, h, candidates_stride] ascending, unused -1 */
  int64_t candidates_stride; /* at least pkv_cache_candidates, if candidates or estimates */
  int32_t *candidate_counts; /* [n, h] */
  float *estimates;          /* [n, hq, candidates_stride] */
  uint64_t stamp;            /* written: which state of the layer these hits belong to */
} pkv_cache_hits;
PKV_API pkv_status pkv_cache_hits_init(pkv_cache_hits *hits, size_t struct_size);

/* Candidates that a retrieve of one token may leave, for sequences of up to `tokens` tokens. */
PKV_API pkv_status pkv_cache_candidates(const pkv_cache *cache, int64_t tokens, int64_t *out);

/* vote, select, rerank over the zones as they are now. query [n, hq, d]; the counts of the batch
 * are query tokens, which all see the whole zone. PKV_FAILED_PRECONDITION: the layer is not
 * sparse. */
PKV_API pkv_status pkv_cache_retrieve(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                      const pkv_cache_batch *batch, const pkv_tensor *query,
                                      pkv_cache_hits *hits);
/* Copies the rows of hits: keys [n, h, k, d], values [n, h, k, dv] of the cache's dtype, unused
 * slots 0. PKV_FAILED_PRECONDITION: the layer has changed since the retrieve (stamp).
 * PKV_OUT_OF_RANGE names the slot and a position outside the zone (backends on the CPU). */
PKV_API pkv_status pkv_cache_fetch(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                   const pkv_cache_batch *batch, const pkv_cache_hits *hits,
                                   const pkv_rows *rows);

enum {
  /* Attend to all tokens in full, the zone too: prefill over a prefix. Window layers keep to their
   * window. `hits` is NULL then, as in layers that are not sparse. */
  PKV_CACHE_EXACT = 1
};
typedef struct pkv_cache_attention {
  uint32_t struct_size;
  uint32_t flags;       /* PKV_CACHE_EXACT, or 0 */
  pkv_tensor query;     /* [n, hq, d] f32, f16 or bf16 */
  pkv_tensor output;    /* [n, hq, dv] f32, f16 or bf16 */
  float *lse;           /* [n, hq] natural log-sum-exp, tail included; optional */
  pkv_cache_hits *hits; /* where to leave what was found; optional (NULL) */
} pkv_cache_attention;
PKV_API pkv_status pkv_cache_attention_init(pkv_cache_attention *attention, size_t struct_size);

/* Attends for the last counts[i] tokens of each sequence, which have been appended. Query token t
 * of c sees positions 0 .. tokens - c + t: the causal limit cuts the dense tail (and the sink of
 * short sequences). counts[i] is at most local + 1 in sparse layers without PKV_CACHE_EXACT
 * (PKV_INVALID_ARGUMENT), and at most the sequence's tokens (PKV_OUT_OF_RANGE). Nothing to attend
 * to: output 0, lse -inf. v_source none: PKV_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_cache_attend(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                    const pkv_cache_batch *batch,
                                    const pkv_cache_attention *attention);

/* pkv_cache_append with the attention's query as queries, then pkv_cache_attend. As single calls,
 * token by token, if no flush lies between the tokens. A failure leaves nothing appended; after one
 * of the device (PKV_UNAVAILABLE) the zone may be attended in full until the next pkv_cache_flush.
 */
PKV_API pkv_status pkv_cache_decode_step(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                         const pkv_cache_batch *batch, const pkv_tensor *keys,
                                         const pkv_tensor *values,
                                         const pkv_cache_attention *attention);

/* ---- Captured steps ----------------------------------------------------------------- */

/* With backends whose tables lie on the device (cuda), pkv_cache_append, decode_step, attend and
 * retrieve on a stream that is being captured enqueue work that reads lengths and tables when it
 * runs: one captured graph serves sequences that grow, within what pkv_cache_reserve has booked.
 * The call itself changes nothing; the graph's launches append.
 *   pkv_cache_reserve(cache, stream, tokens, total_tokens, step_tokens);  (before)
 *   capture: for each layer: pkv_cache_decode_step(..);
 *   for each token: pkv_cache_advance(cache, stream, -1, &batch);  launch the graph on the stream;
 *                   every `interval` tokens or earlier: pkv_cache_flush(cache, stream);
 * While capturing, PKV_FAILED_PRECONDITION: the call is another one; nothing is reserved, or less
 * than the batch brings; appends to a sparse layer without desc.deferred (encoding and fits need
 * the host). Queries of captured steps are not kept for fits. The batch is that of the capture.
 * Afterwards pkv_cache_reserve refuses to grow tables (PKV_FAILED_PRECONDITION); all else goes on
 * as before. A launch beyond what pkv_cache_advance has counted appends nothing for that sequence
 * (its output is 0, lse -inf), and a later call says PKV_RESOURCE_EXHAUSTED, once.
 *
 * pkv_cache_advance: the next launch on this stream appends these tokens to the layer (-1: to every
 * layer). Makes room for them; usually enqueues nothing. PKV_RESOURCE_EXHAUSTED: capacity or pages;
 * PKV_FAILED_PRECONDITION: the dense tail would be longer than captured steps read (flush first).
 * Do not launch then. */
PKV_API pkv_status pkv_cache_advance(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                     const pkv_cache_batch *batch);

#define PKV_MERGE_PARTS 64
/* Joins attention over disjoint sets of tokens. outputs: `count` (1 .. PKV_MERGE_PARTS) tensors
 * [n, hq, dv] of one dtype; lses: `count` device arrays [n, hq]; output [n, hq, dv], lse [n, hq]
 * (optional) may be one of the inputs. A part with lse -inf adds nothing; if only one part has
 * more, its bits are kept (where the dtypes agree); all: output 0, lse -inf. PKV_UNIMPLEMENTED: a
 * backend without a merge whose memory is not the host's. */
PKV_API pkv_status pkv_merge(pkv_stream *stream, int32_t count, const pkv_tensor *outputs,
                             const float *const *lses, const pkv_tensor *output, float *lse);

/* ---- Codecs ------------------------------------------------------------------------- */

/* Fits at the zone's present length and encodes the zone anew. queries [m, hq, d], optional: NULL
 * fits to keys alone. What waits for a flush is encoded before. The next fit is due as the zone
 * grows from here; truncating the zone below this length forgets it. A fit at this very length is
 * replaced.
 * PKV_FAILED_PRECONDITION: the zone has no records yet, the layer is not sparse, or has an imported
 * codec. */
PKV_API pkv_status pkv_cache_refit(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                   int32_t sequence, const pkv_tensor *queries);
/* All sequences of the layer use this codec, none is fitted. Its geometry must be the config's.
 * PKV_FAILED_PRECONDITION: a sequence has tokens in this layer. The cache keeps what it needs. */
PKV_API pkv_status pkv_cache_import_codec(pkv_cache *cache, int32_t layer, const pkv_codec *codec);
/* A codec with the parameters in use. PKV_FAILED_PRECONDITION: the zone has no records. */
PKV_API pkv_status pkv_cache_codec(const pkv_cache *cache, int32_t layer, int32_t sequence,
                                   pkv_codec **out);

/* ---- Looking inside ----------------------------------------------------------------- */

/* Records [begin, begin + count) of the zone in canonical form, as pkv_index_export_sync. */
PKV_API pkv_status pkv_cache_export_sync(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                         int32_t sequence, int32_t kv_head, int64_t begin,
                                         int64_t count, const pkv_records *out);
/* K and V rows of the tokens at positions [begin, begin + count) of the sequence, into host memory:
 * keys [h, count, d], values [h, count, dv] of the cache's dtype (ndim 0: not wanted). */
PKV_API pkv_status pkv_cache_rows_sync(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                       int32_t sequence, int64_t begin, int64_t count,
                                       const pkv_rows *out);
/* Sums over the encoded zone (docs/algorithm.md, 3.7), host arrays, each optional (NULL):
 * value_sums [h, dv], good_counts [h], occupancy [h, d/8, 256] (tier only). */
PKV_API pkv_status pkv_cache_sums_sync(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                       int32_t sequence, double *value_sums, int64_t *good_counts,
                                       int32_t *occupancy);

typedef struct pkv_cache_stats {
  uint32_t struct_size;
  int32_t sequences;       /* in use */
  int64_t tokens;          /* of all layers and sequences; shared ones count for each */
  int64_t bad_keys;        /* isolated in the zones */
  int64_t appended;        /* tokens appended since create, all layers */
  int64_t encoded;         /* records written since create, repeated ones included */
  int64_t fits;            /* fits made since create */
  int64_t steps;           /* query tokens attended since create */
  int64_t shared_pages;    /* pages that belong to more than one sequence */
  int64_t allocated_bytes; /* taken from the backend, free pages included */
  double bytes_per_key;    /* of the records in canonical form, per token and KV head */
} pkv_cache_stats;
PKV_API pkv_status pkv_cache_stats_init(pkv_cache_stats *stats, size_t struct_size);
PKV_API pkv_status pkv_cache_stats_sync(pkv_cache *cache, pkv_stream *stream, pkv_cache_stats *out);
PKV_API pkv_status pkv_cache_usage_get(const pkv_cache *cache, pkv_cache_usage *out);
/* JSON: shape, limits, options, which calls are fused, usage. */
PKV_API pkv_status pkv_cache_describe(const pkv_cache *cache, const char **out);

/* ---- Files -------------------------------------------------------------------------- */

/* Writes one sequence, or with sequence = -1 all in use, to a .pkv file (docs/format.md): rows,
 * codecs, samples; records are encoded again on loading. As pkv_index_save_sync: a new name,
 * flushed, renamed; flags PKV_SAVE_*; the same statuses. */
PKV_API pkv_status pkv_cache_save_sync(pkv_cache *cache, pkv_stream *stream, int32_t sequence,
                                       const char *path, uint32_t flags);
/* Adds the sequences of a file to the cache, each in the lowest free slot, ascending;
 * `out_sequences` [room] gets their slots in the order of the file, *out_count how many. All or
 * none.
 * PKV_FAILED_PRECONDITION names a field that differs (geometry, layers, sink, ..) with both values;
 * PKV_RESOURCE_EXHAUSTED: slots, capacity, pages, or `room`; PKV_DATA_LOSS: damaged;
 * PKV_NOT_FOUND. */
PKV_API pkv_status pkv_cache_load_sync(pkv_cache *cache, pkv_stream *stream, const char *path,
                                       int32_t room, int32_t *out_sequences, int32_t *out_count);

/* ---- K and V in the caller's pages -------------------------------------------------- */

enum {
  PKV_LAYOUT_HND = 1, /* [pages, h, page_tokens, d] */
  PKV_LAYOUT_NHD = 2  /* [pages, page_tokens, h, d] */
};
/* A pool of pages of the caller's, as vLLM and FlashInfer have it. */
typedef struct pkv_cache_pool {
  uint32_t struct_size;
  int32_t layout;    /* PKV_LAYOUT_*: what the axes of both tensors mean */
  pkv_tensor keys;   /* of the cache's dtype; page_tokens must divide desc.sink */
  pkv_tensor values; /* the same with dv; ndim 0 with v_source k_prefix or none */
} pkv_cache_pool;
PKV_API pkv_status pkv_cache_pool_init(pkv_cache_pool *pool, size_t struct_size);
/* From now on the layer's K and V lie in this pool, which stays valid as long as the cache, and
 * tokens come by pkv_cache_append_pages instead of pkv_cache_append and decode_step. The layer
 * holds no token yet (PKV_FAILED_PRECONDITION). */
PKV_API pkv_status pkv_cache_bind_pool(pkv_cache *cache, int32_t layer, const pkv_cache_pool *pool);

/* The block tables of the batch's sequences, in host memory. */
typedef struct pkv_cache_blocks {
  uint32_t struct_size;
  int32_t batch;            /* b */
  const int32_t *sequences; /* [b] all different */
  const int64_t *indptr;    /* [b + 1] from 0, ascending: entries of `indices` of each sequence */
  const int32_t *indices;   /* [indptr[b]] pages */
  const int32_t *last_page; /* [b] tokens in the last page, 1 .. page_tokens; 0 without pages */
} pkv_cache_blocks;
PKV_API pkv_status pkv_cache_blocks_init(pkv_cache_blocks *blocks, size_t struct_size);
/* The sequences now consist of these pages, whose tokens have been written (in stream order). They
 * are at least as long as before, and the tokens that were there before are unchanged, wherever
 * their pages lie now. `queries` [n, hq, d] of the new tokens, optional.
 * PKV_INVALID_ARGUMENT: last_page (names sequence, value, page size), a sequence that got shorter
 * (truncate first); PKV_OUT_OF_RANGE: a page id (names it and the pool's size). Nothing is read
 * then. Rows that are not finite: as pkv_cache_append. */
PKV_API pkv_status pkv_cache_append_pages(pkv_cache *cache, pkv_stream *stream, int32_t layer,
                                          const pkv_cache_blocks *blocks,
                                          const pkv_tensor *queries);

#ifdef __cplusplus
}
#endif
#endif /* PARISKV_CACHE_H_ */
