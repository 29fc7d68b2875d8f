/* Single stages, for tests, tools and research. Not stable: the argument structs are those of the
 * backend seam and may change with its major version. Each call checks its arguments, asks the
 * device's backend for scratch, runs, and waits (hence _sync). Pointers in the arguments are memory
 * that the device can read. Errors as in pariskv.h; nothing is written when a check refuses.
 * What each stage computes: docs/algorithm.md, sections 2 to 8. */
#ifndef PARISKV_STAGES_H_
#define PARISKV_STAGES_H_

#include "pariskv/pariskv.h"
#include "pariskv/pariskv_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes per token of each plane of the canonical records, 0 for a plane the geometry lacks. The
 * value planes are bytes of one sketch, of which there is one per `sketch_stride` tokens; `total`
 * counts the other planes, so that a key and KV head take total + sketch / sketch_stride bytes. */
typedef struct pkv_record_sizes {
  uint32_t struct_size;
  int32_t signs, vote_factors, codes, factors, value_signs, value_codes, value_factors, value_norms;
  int32_t total;
  int32_t sketch;        /* value_signs + value_codes + value_factors */
  int32_t sketch_stride; /* 0: no sketch */
} pkv_record_sizes;
PKV_API pkv_status pkv_record_sizes_get(const pkv_geometry *geometry, pkv_record_sizes *out);

/* Sign vector `stream` (1..4) of a seed, `count` elements of +1 or -1, host memory (2.1). */
PKV_API pkv_status pkv_sign_vector(uint64_t seed, int32_t stream, int32_t count, float *out);

/* C of section 5 for a row of n keys. */
PKV_API pkv_status pkv_candidate_count(const pkv_candidate_rule *rule, int64_t n, int64_t *out);

/* Parameters from the sums of stage fit (2.2), all host memory: center, balance, inv_balance
 * [h, d], value_center [h, dv] (may be NULL). `center_on`, `balance_on`: the options. */
PKV_API pkv_status pkv_fit_params(const pkv_fit_args *sums, int32_t center_on, int32_t balance_on,
                                  float *center, float *balance, float *inv_balance,
                                  float *value_center);

PKV_API pkv_status pkv_stage_fit_sync(pkv_device *device, pkv_stream *stream,
                                      const pkv_fit_args *args);
PKV_API pkv_status pkv_stage_encode_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_encode_args *args);
PKV_API pkv_status pkv_stage_vote_sync(pkv_device *device, pkv_stream *stream,
                                       const pkv_vote_args *args);
PKV_API pkv_status pkv_stage_select_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_select_args *args);
PKV_API pkv_status pkv_stage_rerank_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_rerank_args *args);
PKV_API pkv_status pkv_stage_fetch_sync(pkv_device *device, pkv_stream *stream,
                                        const pkv_fetch_args *args);
PKV_API pkv_status pkv_stage_attend_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_attend_args *args);

/* Layout slots: bytes of one store row, and conversion of positions [begin, begin + count) of row
 * `row` from or to canonical planes in device-readable memory. */
PKV_API pkv_status pkv_store_row_bytes(pkv_device *device, const pkv_geometry *geometry,
                                       int64_t capacity, int64_t *out);
PKV_API pkv_status pkv_store_import_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_geometry *geometry, const pkv_store *store,
                                         int64_t row, int64_t begin, int64_t count,
                                         const pkv_records *source);
PKV_API pkv_status pkv_store_export_sync(pkv_device *device, pkv_stream *stream,
                                         const pkv_geometry *geometry, const pkv_store *store,
                                         int64_t row, int64_t begin, int64_t count,
                                         const pkv_records *target);

#ifdef __cplusplus
}
#endif
#endif /* PARISKV_STAGES_H_ */
