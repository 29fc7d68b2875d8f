"""The shape of a Cache, and what it tells of itself."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _structs as s
from ._codec import DeviceLike
from ._device import Config, device_of
from ._library import call
from ._tensors import F32, I32, address, dtype_number, flat, host

_ATTENTION = {"sparse": 1, "dense": 2, "window": 3}
_MEMORY = {"device": 1, "host": 2}


class Regions(NamedTuple):
    """Where a sequence stands in a layer, in tokens: [sink | zone | tail] (docs/cache.md, 2)."""

    is_encoded: bool
    tokens: int
    sink: int
    zone: int
    tail: int
    fit_length: int
    next_fit: int
    fits: int


class Usage(NamedTuple):
    """Bytes held, by purpose; `total` is the sum of the next seven, `partly` is within them,
    `recent_rows` beside them: device copies of rows in host memory."""

    total: int
    row_pages: int
    record_pages: int
    tables: int
    occupancy: int
    codecs: int
    samples: int
    scratch: int
    partly: int
    recent_rows: int


class CacheStats(NamedTuple):
    sequences: int
    tokens: int
    bad_keys: int
    appended: int
    encoded: int
    fits: int
    steps: int
    shared_pages: int
    allocated_bytes: int
    bytes_per_key: float


@dataclass
class CacheHits:
    """What a step found, in positions of the zone, best first; unused entries hold -1."""

    positions: Any  # [n, h, k] int32
    scores: Any  # [n, h, k] float32
    counts: Any  # [n, h] int32; 0 where the zone is attended in full
    stamp: int = 0

    def _struct(self) -> s.CacheHits:
        shape = tuple(self.positions.shape)
        return s.CacheHits(
            positions=flat(self.positions, "positions", shape, I32).address,
            scores=flat(self.scores, "scores", shape, F32).address,
            counts=flat(self.counts, "counts", shape[:2], I32).address,
            stamp=self.stamp,
        )


def named_tuple(kind: Any, found: Any) -> Any:
    return kind(*(getattr(found, name) for name in kind._fields))


def _policies(layers: int, policies: Sequence[Any] | None) -> Any:
    if policies is None:
        return None
    if len(policies) != layers:
        raise ValueError(f"{len(policies)} policies for {layers} layers")
    array = (s.CacheLayer * layers)()
    for number, policy in enumerate(policies):
        window = 0 if isinstance(policy, str) else int(policy)
        name = policy if isinstance(policy, str) else "window"
        if name not in _ATTENTION or (name == "window") != (window > 0):
            raise ValueError(
                f"policies[{number}] is {policy!r}; choose from 'sparse', 'dense', and a number of "
                "tokens for a sliding window"
            )
        array[number] = s.CacheLayer(attention=_ATTENTION[name], window=window)
    return array


def description(
    layers: int, kv_heads: int, query_heads: int, dtype: Any, shape: dict[str, Any]
) -> s.CacheDesc:
    desc = s.CacheDesc()
    call("pkv_cache_desc_init", c.byref(desc), c.c_size_t(c.sizeof(desc)))
    desc.layers, desc.kv_heads, desc.query_heads = layers, kv_heads, query_heads
    desc.dtype = dtype_number(dtype)
    policies = _policies(layers, shape.pop("policies", None))
    if policies is not None:
        desc.policies = c.cast(policies, c.POINTER(s.CacheLayer))
    logits = shape.pop("sink_logits", None)
    if logits is not None:
        logits = host(logits, np.float32)
        if logits.shape != (query_heads,):
            raise ValueError(f"sink_logits has shape {logits.shape}, not ({query_heads},)")
        desc.sink_logits = address(logits)
    desc.keep = policies, logits
    memory = shape.pop("rows_memory", None)
    if memory is not None:
        if memory not in _MEMORY:
            raise ValueError(f"rows_memory is {memory!r}; choose from {', '.join(_MEMORY)}")
        desc.rows_memory = _MEMORY[memory]
    for name in list(shape):
        if name in SHAPE_OPTIONS:
            setattr(desc, name, shape.pop(name))
    return desc


SHAPE_OPTIONS = (
    "sequences",
    "capacity",
    "max_bytes",
    "sink",
    "local",
    "interval",
    "dense_below",
    "page_tokens",
    "fit_positions",
    "refits",
    "deferred",
    "soft_cap",
)


def cache_bytes(
    lengths: Sequence[int],
    layers: int,
    kv_heads: int,
    query_heads: int,
    head_dim: int,
    *,
    dtype: Any = "bfloat16",
    query_dtype: str | Any | None = None,
    profile: str = "default",
    device: DeviceLike = None,
    **options: Any,
) -> Usage:
    """What a `Cache` of this shape holds once sequences have these lengths; allocates nothing."""
    desc = description(layers, kv_heads, query_heads, dtype, options)
    config = Config(profile, head_dim=head_dim, **options)
    tokens = host(lengths, np.int64)
    found = s.CacheUsage()
    asked = s.I32(0 if query_dtype is None else dtype_number(query_dtype))
    call(
        "pkv_cache_bytes",
        device_of(None, device),
        config,
        c.byref(desc),
        c.c_void_p(address(tokens)),
        s.I32(len(tokens)),
        asked,
        c.byref(found),
    )
    result: Usage = named_tuple(Usage, found)
    return result
