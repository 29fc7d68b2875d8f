"""ctypes mirrors of the structs of the C headers. Loads nothing."""

from __future__ import annotations

import ctypes as c
import functools
from typing import Any

P = c.c_void_p
I32, I64, U32, U64 = c.c_int32, c.c_int64, c.c_uint32, c.c_uint64
F32, F64 = c.c_float, c.c_double


class Struct(c.Structure):
    """Fills struct_size, where there is one, and takes fields by name."""

    def __init__(self, **fields: Any) -> None:
        names = _names_of(type(self))
        if not names.issuperset(fields):
            raise TypeError(f"{type(self).__name__} has no {sorted(set(fields) - names)}")
        if "struct_size" in names:
            fields.setdefault("struct_size", c.sizeof(self))
        super().__init__(**fields)


@functools.cache  # every step makes some
def _names_of(kind: type[c.Structure]) -> frozenset[str]:
    return frozenset(field[0] for field in kind._fields_)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Tensor(Struct):
    _fields_ = [
        ("data", P),
        ("device_type", I32),
        ("device_id", I32),
        ("ndim", I32),
        ("dtype", I32),
        ("shape", c.POINTER(I64)),
        ("strides", c.POINTER(I64)),
        ("byte_offset", U64),
    ]


class Geometry(Struct):
    _fields_ = [
        ("struct_size", U32),
        *_fields(
            I32, "kv_heads head_dim value_dim v_source codec vote rounds sketch_bits value_norm"
        ),
        ("seed", U64),
        *_fields(I32, "sketch_stride reserved"),
    ]


PLANES = (
    "signs",
    "vote_factors",
    "codes",
    "factors",
    "value_signs",
    "value_codes",
    "value_factors",
    "value_norms",
)


class Records(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("reserved", U32),
        ("row_tokens", I64),
        *_fields(P, " ".join(PLANES)),
    ]


class CodecData(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("kv_heads", I32),
        *_fields(P, "center balance value_center"),
    ]


class BackendInfo(Struct):
    _fields_ = [
        ("struct_size", U32),
        *_fields(I32, "score is_usable is_builtin device_count reserved"),
        *_fields(c.c_char_p, "name version path reason"),
    ]


class OptionInfo(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("reserved", I32),
        *_fields(c.c_char_p, "name accepts default_value paper_value about"),
    ]


class IndexStats(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("sequences", I32),
        *_fields(I64, "capacity tokens bad_keys device_bytes"),
        ("bytes_per_key", F64),
    ]


class PlanDesc(Struct):
    _fields_ = [
        ("struct_size", U32),
        *_fields(I32, "batch query_heads owns_scratch"),
        ("sequences", P),
        ("max_tokens", I64),
    ]


class Hits(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("flags", U32),
        *_fields(P, "positions scores counts candidates candidate_counts estimates rest_lse"),
        ("sample_estimates", P),
    ]


class Rows(Struct):
    _fields_ = [("struct_size", U32), ("reserved", I32), ("keys", Tensor), ("values", Tensor)]


class Dense(Struct):
    _fields_ = [("rows", Rows), ("lengths", P)]


ATTENTION_PARTS = 4
MERGE_PARTS = 64


class Attention(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("dense_count", I32),
        ("query", Tensor),
        ("dense", Dense * ATTENTION_PARTS),
        ("rows", Rows),
        ("hits", c.POINTER(Hits)),
        ("scratch", P),
        ("output", Tensor),
        ("lse", P),
        ("sink_logits", P),
    ]


class Step(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("dense_count", I32),
        ("query", Tensor),
        ("dense", Dense * ATTENTION_PARTS),
        ("source", Rows),
        ("hits", c.POINTER(Hits)),
        ("scratch", P),
        ("output", Tensor),
        ("lse", P),
        ("sink_logits", P),
        ("row_cache", P),
    ]


class RowCacheStats(Struct):
    _fields_ = [("struct_size", U32), ("rows", I32), *_fields(I64, "device_bytes looked_up found")]


class CacheLayer(Struct):
    _fields_ = [("struct_size", U32), ("attention", I32), ("window", I64)]


class CacheDesc(Struct):
    _fields_ = [
        ("struct_size", U32),
        *_fields(I32, "layers sequences kv_heads query_heads dtype"),
        *_fields(I64, "capacity max_bytes sink local interval dense_below page_tokens"),
        *_fields(I32, "rows_memory fit_positions refits deferred"),
        ("soft_cap", F32),
        ("reserved", I32),
        ("sink_logits", P),
        ("policies", c.POINTER(CacheLayer)),
        ("alibi_slopes", P),
    ]


class CacheUsage(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("reserved", I32),
        *_fields(
            I64, "total row_pages record_pages tables occupancy codecs samples scratch partly"
        ),
    ]


class CacheRegions(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("is_encoded", I32),
        *_fields(I64, "tokens sink zone tail fit_length next_fit fits"),
    ]


class CacheBatch(Struct):
    _fields_ = [("struct_size", U32), ("batch", I32), ("sequences", P), ("counts", P)]


class CacheHits(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("reserved", I32),
        *_fields(P, "positions scores counts candidates"),
        ("candidates_stride", I64),
        *_fields(P, "candidate_counts estimates"),
        ("stamp", U64),
    ]


class CacheAttention(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("flags", U32),
        ("query", Tensor),
        ("output", Tensor),
        ("lse", P),
        ("hits", c.POINTER(CacheHits)),
    ]


class CacheStats(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("sequences", I32),
        *_fields(I64, "tokens bad_keys appended encoded fits steps shared_pages allocated_bytes"),
        ("bytes_per_key", F64),
    ]


class CachePool(Struct):
    _fields_ = [("struct_size", U32), ("layout", I32), ("keys", Tensor), ("values", Tensor)]


class CacheBlocks(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("batch", I32),
        *_fields(P, "sequences indptr indices last_page"),
    ]
