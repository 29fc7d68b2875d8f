/* Types shared by the C API (pariskv.h), the stage API and the backend seam: status codes, dtypes,
 * tensor views, and the words that describe a codec. C99; no function is declared here. */
#ifndef PARISKV_TYPES_H_
#define PARISKV_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define PKV_API
#else
#define PKV_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Outcome of a call. The numbers are Abseil's canonical codes, and never change. */
typedef int32_t pkv_status;
enum {
  PKV_OK = 0,
  PKV_CANCELLED = 1,           /* the caller's runner or cancellation flag stopped the work */
  PKV_INVALID_ARGUMENT = 3,    /* NULL, shape, dtype, stride, unknown or unused option */
  PKV_NOT_FOUND = 5,           /* no such file, backend or option */
  PKV_ALREADY_EXISTS = 6,      /* the output file is there and overwriting was not asked for */
  PKV_RESOURCE_EXHAUSTED = 8,  /* memory, capacity, or a limit of the plan */
  PKV_FAILED_PRECONDITION = 9, /* plan outgrown, stale result, another codec or version */
  PKV_ABORTED = 10,            /* busy: another call holds the object */
  PKV_OUT_OF_RANGE = 11,       /* a sequence, layer, position or index outside its range */
  PKV_UNIMPLEMENTED = 12,      /* a shape or feature that no backend here has */
  PKV_INTERNAL = 13,           /* a bug of ours */
  PKV_UNAVAILABLE = 14,        /* a driver or device is missing or was lost */
  PKV_DATA_LOSS = 15           /* a damaged file */
};

/* Element types of tensors. */
typedef int32_t pkv_dtype;
enum {
  PKV_DTYPE_F32 = 1,
  PKV_DTYPE_F16 = 3,
  PKV_DTYPE_BF16 = 4,
  PKV_DTYPE_U8 = 5,
  PKV_DTYPE_I32 = 6,
  PKV_DTYPE_I64 = 7
};

/* Where a tensor's memory is. The numbers are DLPack's DLDeviceType. */
typedef int32_t pkv_device_type;
enum {
  PKV_DEVICE_CPU = 1,
  PKV_DEVICE_CUDA = 2,
  PKV_DEVICE_CUDA_HOST = 3,
  PKV_DEVICE_ROCM = 10,
  PKV_DEVICE_ROCM_HOST = 11,
  PKV_DEVICE_CUDA_MANAGED = 13
};

/* A borrowed view of memory with DLTensor's fields. A value type, frozen: it carries no
 * struct_size. Element (i0, .., im) lies at (char *)data + byte_offset + size * (i0 * strides[0] +
 * ..). The last axis is contiguous (its stride is 1, or its extent at most 1). Strides may be
 * negative or 0 on the other axes of inputs; views of outputs do not overlap. Where an extent is 0
 * strides are not looked at. */
typedef struct pkv_tensor {
  void *data;                  /* may be NULL if an extent is 0 */
  pkv_device_type device_type; /* PKV_DEVICE_* */
  int32_t device_id;           /* ordinal among devices of that type; 0 for the CPU */
  int32_t ndim;                /* number of axes, at least 1 */
  pkv_dtype dtype;             /* PKV_DTYPE_* */
  const int64_t *shape;        /* [ndim] extents, each >= 0 */
  const int64_t *strides;      /* [ndim] in elements; NULL: row-major, dense */
  uint64_t byte_offset;        /* added to data */
} pkv_tensor;

/* Words of the codec and of the stages (docs/algorithm.md, section 1). */
enum { PKV_CODEC_POLAR4 = 1, PKV_CODEC_SCALAR4 = 2, PKV_CODEC_SCALAR5 = 3 };
enum { PKV_VOTE_TIER = 1, PKV_VOTE_GRADED = 2 };
enum { PKV_VOTE_GROUP_SUM = 1, PKV_VOTE_GROUP_HEADS = 2 };
enum { PKV_RHO_OF_KEYS = 1, PKV_RHO_OF_CENTROIDS = 2 };
enum { PKV_RANK_MEAN = 1, PKV_RANK_GROUP = 2 };
enum { PKV_TAIL_DROP = 1, PKV_TAIL_MEAN = 2, PKV_TAIL_SKETCH = 3, PKV_TAIL_SAMPLED = 4 };
enum { PKV_V_SOURCE_OWN = 1, PKV_V_SOURCE_K_PREFIX = 2, PKV_V_SOURCE_NONE = 3 };

/* A caller's own thread pool, for backends on the CPU. `workers` and `run` are called from the
 * thread that called into the library, `cancelled` from any worker; all must work for several
 * threads at once. `workers` and `run` both NULL: the backend's own threads, asking `cancelled`. */
typedef struct pkv_parallel {
  uint32_t struct_size;
  uint32_t reserved;
  void *user;
  /* Threads that `run` may use at once, >= 1; `worker` below is smaller. */
  int32_t (*workers)(void *user);
  /* Calls body(context, index, worker) once for every index in 0..count-1, in any order, never for
   * two indices at once with the same worker, and returns when all have returned. */
  void (*run)(void *user, int64_t count, void (*body)(void *context, int64_t index, int32_t worker),
              void *context);
  /* Not 0: give up what is running, between blocks. May be NULL: never. */
  int32_t (*cancelled)(void *user);
} pkv_parallel;

/* What a key record consists of: all that fixes its bytes, apart from the fitted parameters.
 * Frozen within a major interface version; grows at the end. */
typedef struct pkv_geometry {
  uint32_t struct_size;  /* bytes */
  int32_t kv_heads;      /* h >= 1 */
  int32_t head_dim;      /* d, multiple of 8, 8..576 */
  int32_t value_dim;     /* dv, multiple of 8, 8..576; 0 with PKV_V_SOURCE_NONE */
  int32_t v_source;      /* PKV_V_SOURCE_* */
  int32_t codec;         /* PKV_CODEC_* */
  int32_t vote;          /* PKV_VOTE_*: graded records carry a vote factor, tier needs occupancy */
  int32_t rounds;        /* 1 or 2 */
  int32_t sketch_bits;   /* 0 (no value sketch), 2 or 4 */
  int32_t value_norm;    /* 0 or 1: records carry the norm of V */
  uint64_t seed;         /* of the sign vectors */
  int32_t sketch_stride; /* positions from one value sketch to the next, 1..65,536; 0 without one */
  int32_t reserved;
} pkv_geometry;

/* Key records of many rows in canonical, token-major form (docs/format.md): what save, export and
 * comparisons use. Row r = sequence * kv_heads + head; row r of a plane starts at
 * r * row_tokens * (bytes per token of the plane). A plane the geometry lacks is NULL. */
typedef struct pkv_records {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t row_tokens;     /* tokens from one row to the next in every plane */
  uint8_t *signs;         /* [rows, row_tokens, d/8] */
  uint16_t *vote_factors; /* [rows, row_tokens] bf16; graded only */
  uint8_t *codes;         /* [rows, row_tokens, planes, d/8] bit plane p holds bit p of the codes */
  uint16_t *factors;      /* [rows, row_tokens, d/8 (polar4) or 1] bf16 */
  /* Sketch only; u = ceil(row_tokens / sketch_stride), entry i is position i * sketch_stride. */
  uint8_t *value_signs;    /* [rows, u, dv/8] */
  uint8_t *value_codes;    /* [rows, u, sketch_bits - 1, dv/8] */
  uint16_t *value_factors; /* [rows, u] bf16 */
  uint16_t *value_norms;   /* [rows, row_tokens] bf16; value_norm only */
} pkv_records;

/* A text sink. `level` is 0 error, 1 warning, 2 info, 3 debug; `text` ends in NUL, without newline,
 * and is valid during the call. May be called from any thread that is inside a library call. */
typedef void (*pkv_log_fn)(void *user, int32_t level, const char *text);

#ifdef __cplusplus
}
#endif
#endif /* PARISKV_TYPES_H_ */
