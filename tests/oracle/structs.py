"""ctypes mirrors of the stage arguments of pariskv_backend.h; those of the public structs are the
package's own (python/pariskv/_structs.py)."""

import ctypes as c
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))

from pariskv._structs import (  # noqa: E402
    F32,
    F64,
    I32,
    I64,
    PLANES,
    U32,
    CodecData,
    Geometry,
    P,
    Records,
    Struct,
    Tensor,
)

__all__ = ["CodecData", "Geometry", "P", "PLANES", "Records", "Struct", "Tensor", "U32"]


class RecordSizes(Struct):
    _fields_ = [("struct_size", U32)] + [
        (name, I32) for name in (*PLANES, "total", "sketch", "sketch_stride")
    ]


class CodecParams(Struct):
    _fields_ = [("geometry", c.POINTER(Geometry))] + [
        (name, P)
        for name in (
            "center",
            "balance",
            "inv_balance",
            "signs_1",
            "signs_2",
            "value_center",
            "value_signs_1",
            "value_signs_2",
            "set_of",
        )
    ]


class Store(Struct):
    _fields_ = [
        ("base", P),
        ("row_bytes", I64),
        ("capacity", I64),
        ("pages", P),
        ("pages_stride", I64),
    ]


class Pages(Struct):
    _fields_ = [
        ("table", P),
        ("table_stride", I64),
        ("page_tokens", I64),
        ("head_bytes", I64),
        ("token_bytes", I64),
        ("offset", I64),
    ]


class Batch(Struct):
    _fields_ = [
        ("batch", I32),
        ("reserved", I32),
        ("sequences", P),
        ("lengths", P),
        ("max_length", I64),
    ]


class FitArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("queries_as", I32),
        ("geometry", c.POINTER(Geometry)),
        ("keys", Tensor),
        ("queries", Tensor),
        ("values", Tensor),
        ("weights", P),
        ("pivot", P),
        ("key_counts", P),
        ("key_weights", P),
        ("key_sums", P),
        ("key_squares", P),
        ("query_counts", P),
        ("query_squares", P),
        ("value_sums", P),
    ]


class EncodeArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("batch", I32),
        ("codec", CodecParams),
        ("keys", Tensor),
        ("values", Tensor),
        ("sequences", P),
        ("starts", P),
        ("counts", P),
        ("store", Store),
        ("occupancy", P),
        ("value_sums", P),
        ("good_counts", P),
        ("first_bad", P),
    ]


class VoteArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("query_heads", I32),
        ("vote_group", I32),
        ("rho_of", I32),
        ("codec", CodecParams),
        ("batch", Batch),
        ("queries", Tensor),
        ("store", Store),
        ("occupancy", P),
        ("votes", P),
        ("votes_stride", I64),
    ]


class CandidateRule(Struct):
    _fields_ = [("below", I64 * 4), ("ppm", I64 * 4), ("k", I32), ("steps", I32)]


class SelectArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("kv_heads", I32),
        ("batch", Batch),
        ("rule", CandidateRule),
        ("votes", P),
        ("votes_stride", I64),
        ("candidates", P),
        ("candidates_stride", I64),
        ("candidate_counts", P),
    ]


class RerankArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("query_heads", I32),
        ("rank", I32),
        ("k", I32),
        ("k_min", I32),
        ("tail_samples", I32),
        ("weigh_norms", I32),
        ("scale", F32),
        ("share", F64),
        ("soft_cap", F32),
        ("reserved", I32),
        ("codec", CodecParams),
        ("batch", Batch),
        ("queries", Tensor),
        ("store", Store),
        ("candidates", P),
        ("candidates_stride", I64),
        ("candidate_counts", P),
        ("positions", P),
        ("scores", P),
        ("counts", P),
        ("estimates", P),
        ("rest_lse", P),
        ("sample_estimates", P),
    ]


class FetchArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("kv_heads", I32),
        ("batch", Batch),
        ("source_keys", Tensor),
        ("source_values", Tensor),
        ("key_pages", Pages),
        ("value_pages", Pages),
        ("positions", P),
        ("k", I32),
        ("reserved", I32),
        ("keys", Tensor),
        ("values", Tensor),
    ]


class Part(Struct):
    _fields_ = [
        ("keys", Tensor),
        ("values", Tensor),
        ("lengths", P),
        ("starts", P),
        ("key_pages", Pages),
        ("value_pages", Pages),
    ]


class AttendArgs(Struct):
    _fields_ = [
        ("struct_size", U32),
        ("query_heads", I32),
        ("tail", I32),
        ("part_count", I32),
        ("scale", F32),
        ("k", I32),
        ("tail_samples", I32),
        ("soft_cap", F32),
        ("sink_logits", P),
        ("codec", CodecParams),
        ("batch", Batch),
        ("queries", Tensor),
        ("parts", Part * 4),
        ("row_keys", Tensor),
        ("row_values", Tensor),
        ("positions", P),
        ("counts", P),
        ("candidates", P),
        ("candidates_stride", I64),
        ("candidate_counts", P),
        ("estimates", P),
        ("rest_lse", P),
        ("sample_estimates", P),
        ("value_sums", P),
        ("good_counts", P),
        ("store", Store),
        ("output", Tensor),
        ("lse", P),
    ]
