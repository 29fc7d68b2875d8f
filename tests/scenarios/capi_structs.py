"""ctypes mirrors of the structs of pariskv.h; those that it shares with the stage API are in
tests/oracle/structs.py."""

import ctypes as c

from structs import I32, I64, P, Struct, Tensor


class PlanDesc(Struct):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("batch", I32),
        ("query_heads", I32),
        ("owns_scratch", I32),
        ("sequences", P),
        ("max_tokens", I64),
    ]


class Hits(Struct):
    _fields_ = [("struct_size", c.c_uint32), ("flags", c.c_uint32)] + [
        (name, P)
        for name in (
            "positions",
            "scores",
            "counts",
            "candidates",
            "candidate_counts",
            "estimates",
            "rest_lse",
            "sample_estimates",
        )
    ]


class Rows(Struct):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("reserved", I32),
        ("keys", Tensor),
        ("values", Tensor),
    ]


class Dense(Struct):
    _fields_ = [("rows", Rows), ("lengths", P)]


class Attention(Struct):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("dense_count", I32),
        ("query", Tensor),
        ("dense", Dense * 4),
        ("rows", Rows),
        ("hits", c.POINTER(Hits)),
        ("scratch", P),
        ("output", Tensor),
        ("lse", P),
    ]


class IndexStats(Struct):
    _fields_ = [
        ("struct_size", c.c_uint32),
        ("sequences", I32),
        ("capacity", I64),
        ("tokens", I64),
        ("bad_keys", I64),
        ("device_bytes", I64),
        ("bytes_per_key", c.c_double),
    ]
