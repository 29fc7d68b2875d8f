"""Codec and Index: key records of one layer, and the steps over them."""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import numpy as np

from . import _structs as s
from ._device import Config, Device, check_place, device, device_of
from ._library import Handle, call
from ._tensors import (
    F32,
    FLOATS,
    I32,
    View,
    address,
    empty_like,
    flat,
    host,
    is_dense,
    output,
    view,
)

DeviceLike = Union[str, Device, None]


class Geometry(NamedTuple):
    """What a key record consists of (pkv_geometry)."""

    kv_heads: int
    head_dim: int
    value_dim: int
    v_source: int
    codec: int
    vote: int
    rounds: int
    sketch_bits: int
    value_norm: int
    seed: int
    sketch_stride: int


def _ref(found: View | None) -> Any:
    return None if found is None else c.byref(found.tensor())


def _optional(array: Any, name: str, ndim: int) -> View | None:
    return None if array is None else view(array, name, ndim)


class Codec(Handle):
    """Fitted parameters for all KV heads of one layer. Immutable; made by `fit` or
    `from_arrays`."""

    def __init__(self, device: Device, config: Config, profile: str, given: dict[str, Any]) -> None:
        super().__init__("pkv_codec_destroy", device)
        self.device, self.config, self.profile, self.options = device, config, profile, dict(given)

    @classmethod
    def fit(
        cls,
        keys: Any,
        queries: Any = None,
        values: Any = None,
        *,
        profile: str = "default",
        device: DeviceLike = None,
        **options: Any,
    ) -> Codec:
        """Fits centre and balance to keys [h, n, d], queries [hq, m, d] (optional), values
        [h, n, dv] (needed with tail sketch2, sketch4 and sampled); f32, f16 or bf16, any strides
        with a contiguous last axis. `options`: see `pariskv.options()`; head_dim and value_dim
        are taken from the tensors.

        Raises InvalidArgumentError (shapes, a value), NotFoundError (an unknown option)."""
        k, q = view(keys, "keys", 3), _optional(queries, "queries", 3)
        v = _optional(values, "values", 3)
        here = device_of(keys, device)
        check_place(here, k, q, v)
        given = {"head_dim": k.shape[2], **options}
        if v is not None:
            given.setdefault("value_dim", v.shape[2])
        codec = cls(here, Config(profile, **given), profile, given)
        stream = here.stream(keys)
        call("pkv_codec_fit_sync", here, stream, codec.config, _ref(k), _ref(q), _ref(v), codec.out)
        return codec

    @classmethod
    def from_arrays(
        cls,
        center: Any,
        balance: Any,
        value_center: Any = None,
        *,
        profile: str = "default",
        device: DeviceLike = None,
        **options: Any,
    ) -> Codec:
        """From stored numbers: center, balance [h, d], value_center [h, dv]; copied."""
        arrays = [
            None if a is None else host(a, np.float32) for a in (center, balance, value_center)
        ]
        shapes = [a.shape for a in arrays if a is not None]
        if arrays[0] is None or arrays[1] is None or any(len(shape) != 2 for shape in shapes):
            raise ValueError(
                f"center and balance must be [h, d], value_center [h, dv], not {shapes}"
            )
        if shapes[0] != shapes[1] or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"shapes of center, balance and value_center do not agree: {shapes}")
        given = {"head_dim": shapes[0][1], **options}
        if len(shapes) == 3:
            given.setdefault("value_dim", shapes[2][1])
        data = s.CodecData(kv_heads=shapes[0][0])
        data.center, data.balance, data.value_center = (address(a) for a in arrays)
        codec = cls(device_of(center, device), Config(profile, **given), profile, given)
        call("pkv_codec_import", codec.device, codec.config, c.byref(data), codec.out)
        return codec

    @property
    def geometry(self) -> Geometry:
        found = s.Geometry()
        call("pkv_codec_geometry", self, c.byref(found))
        return Geometry(*(getattr(found, name) for name in Geometry._fields))

    def _numbers(self, name: str, width: int) -> Any | None:
        data = s.CodecData()
        call("pkv_codec_export", self, c.byref(data))
        start = getattr(data, name)
        if start is None:
            return None
        count = data.kv_heads * width
        source = (c.c_float * count).from_address(start)
        return np.array(source, np.float32).reshape(data.kv_heads, width)

    @property
    def center(self) -> Any:
        """[h, d] float32, a copy."""
        return self._numbers("center", self.geometry.head_dim)

    @property
    def balance(self) -> Any:
        """[h, d] float32, a copy."""
        return self._numbers("balance", self.geometry.head_dim)

    @property
    def value_center(self) -> Any:
        """[h, dv] float32, a copy; None without a value sketch."""
        return self._numbers("value_center", self.geometry.value_dim)


@dataclass
class Hits:
    """What `Index.retrieve` found; arrays of the query's kind. Positions count from the index's
    first key, best first; unused entries hold -1."""

    positions: Any  # [b, h, k] int32
    scores: Any  # [b, h, k] float32
    counts: Any  # [b, h] int32
    candidates: Any  # [b, h, c] int32, ascending
    candidate_counts: Any  # [b, h] int32
    estimates: Any  # [b, hq, c] float32
    rest_lse: Any  # [b, hq] float32
    sample_estimates: Any  # [b, hq, tail_samples] float32, or None

    def _struct(self) -> s.Hits:
        fields = {}
        for name, kind in _HIT_DTYPES.items():
            array = getattr(self, name)
            if array is not None:
                shape = tuple(array.shape)
                fields[name] = flat(array, name, shape, kind).address or None
        return s.Hits(**fields)


_HIT_DTYPES = {
    "positions": I32,
    "scores": F32,
    "counts": I32,
    "candidates": I32,
    "candidate_counts": I32,
    "estimates": F32,
    "rest_lse": F32,
    "sample_estimates": F32,
}


class IndexStats(NamedTuple):
    sequences: int
    capacity: int  # tokens per sequence
    tokens: int
    bad_keys: int
    device_bytes: int
    bytes_per_key: float


class _Plan(Handle):
    def __init__(self, index: Index, batch: int, query_heads: int, sequences: Any, given: Any):
        super().__init__("pkv_plan_destroy", index)
        codec = index.codec
        self.config = Config(codec.profile, **{**codec.options, **dict(given)})
        named = None if sequences is None else host(sequences, np.int32)
        desc = s.PlanDesc(
            batch=batch, query_heads=query_heads, owns_scratch=1, sequences=address(named)
        )
        call("pkv_plan_create", index, self.config, c.byref(desc), self.out)
        count = s.I64()
        call("pkv_plan_candidates", self, c.byref(count))
        self.candidates = count.value
        self.k = int(self.config["k"])
        sampled = self.config["tail"] == "sampled"
        self.samples = int(self.config["tail_samples"]) if sampled else 0


class Index(Handle):
    """Key records of one layer: `sequences` sequences of up to `capacity` tokens. Rows of K and V
    stay the caller's. One call at a time; others wait."""

    def __init__(self, codec: Codec, capacity: int, sequences: int = 1) -> None:
        super().__init__("pkv_index_destroy", codec)
        self.codec, self.device = codec, codec.device
        self._lock = threading.RLock()
        self._plans: dict[Any, _Plan] = {}
        call("pkv_index_create", self.device, codec, s.I32(sequences), s.I64(capacity), self.out)

    def append(self, keys: Any, values: Any = None, sequence: int = 0) -> None:
        """Encodes keys [h, t, d] behind those of a sequence. values [h, t, dv]: needed by every
        tail but "drop". Waits. Raises ResourceExhaustedError past the capacity."""
        k, v = view(keys, "keys", 3), _optional(values, "values", 3)
        check_place(self.device, k, v)
        stream = self.device.stream(keys)
        with self._lock:
            call("pkv_index_append_sync", self, stream, s.I32(sequence), _ref(k), _ref(v))

    def reset(self, sequence: int = 0) -> None:
        """Forgets all tokens of a sequence."""
        with self._lock:
            call("pkv_index_reset", self, self.device.stream(), s.I32(sequence))

    def length(self, sequence: int = 0) -> int:
        found = s.I64()
        call("pkv_index_length", self, s.I32(sequence), c.byref(found))
        return found.value

    def stats(self) -> IndexStats:
        found = s.IndexStats()
        with self._lock:
            call("pkv_index_stats_sync", self, self.device.stream(), c.byref(found))
        return IndexStats(*(getattr(found, name) for name in IndexStats._fields))

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Codec and records into a .pkv file. Raises AlreadyExistsError without `overwrite`."""
        flags, stream = s.U32(int(overwrite)), self.device.stream()
        with self._lock:
            call("pkv_index_save_sync", self, stream, str(path).encode(), flags)

    @classmethod
    def load(
        cls, path: Any, *, profile: str = "default", device: DeviceLike = None, **options: Any
    ) -> Index:
        """From a .pkv file. `profile` and `options` are those of later steps; they must agree
        with the file's codec. Raises DataLossError, NotFoundError, FailedPreconditionError."""
        here = _open(device)
        index = cls.__new__(cls)
        Handle.__init__(index, "pkv_index_destroy", here)
        codec = Codec(here, Config(profile), profile, options)
        stream = here.stream()
        call("pkv_index_load_sync", here, stream, str(path).encode(), index.out, codec.out)
        shape = codec.geometry
        codec.options.setdefault("head_dim", shape.head_dim)
        if shape.value_dim:
            codec.options.setdefault("value_dim", shape.value_dim)
        codec.options.setdefault("seed", shape.seed)
        codec.config = Config(profile, **codec.options)
        index.codec, index.device = codec, here
        index._lock, index._plans = threading.RLock(), {}
        return index

    def restore(self, path: Any) -> None:
        """Replaces the content by that of a file with the same codec, or raises."""
        with self._lock:
            call("pkv_index_restore_sync", self, self.device.stream(), str(path).encode())

    def _plan(self, query: View, sequences: Any, given: dict[str, Any]) -> _Plan:
        named = None if sequences is None else tuple(int(n) for n in sequences)
        key = (query.shape[0], query.shape[1], named, tuple(sorted(given.items())))
        if key not in self._plans:
            if len(self._plans) >= 16:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = _Plan(self, *key)
        return self._plans[key]

    def _new_hits(self, query: Any, shape: tuple[int, ...], plan: _Plan) -> Hits:
        b, hq, h = shape[0], shape[1], self.codec.geometry.kv_heads
        shapes = {
            "positions": (b, h, plan.k),
            "scores": (b, h, plan.k),
            "counts": (b, h),
            "candidates": (b, h, plan.candidates),
            "candidate_counts": (b, h),
            "estimates": (b, hq, plan.candidates),
            "rest_lse": (b, hq),
            "sample_estimates": (b, hq, plan.samples) if plan.samples else None,
        }
        return Hits(
            **{
                name: None if kind is None else empty_like(query, kind, _HIT_DTYPES[name])
                for name, kind in shapes.items()
            }
        )

    def retrieve(
        self, query: Any, *, sequences: Sequence[int] | None = None, **options: Any
    ) -> Hits:
        """Per query group the k keys with the best scores. query [b, hq, d]; entry i of the batch
        asks sequence `sequences[i]` (default i). `options`: those of a step (k, candidates, rank,
        tail, ..)."""
        q = view(query, "query", 3)
        check_place(self.device, q)
        with self._lock:
            plan = self._plan(q, sequences, options)
            hits = self._new_hits(query, q.shape, plan)
            stream = self.device.stream(query)
            call("pkv_retrieve", plan, stream, _ref(q), None, c.byref(hits._struct()))
        return hits

    def step(
        self,
        query: Any,
        keys: Any,
        values: Any,
        *,
        dense: Sequence[tuple[Any, Any]] = (),
        sequences: Sequence[int] | None = None,
        out: Any = None,
        lse: Any = None,
        **options: Any,
    ) -> Any:
        """A whole decoding step: retrieve, fetch from keys [sequences, h, n, d] and values
        [sequences, h, n, dv], attend. dense: up to 4 pairs of K [b, h, t, d] and V [b, h, t, dv]
        that are attended in full (sink, newest tokens). Returns the output [b, hq, dv] of the
        query's dtype, or `out`; `lse` [b, hq] float32 gets the log-sum-exp."""
        q = view(query, "query", 3)
        k, v = view(keys, "keys", 4), view(values, "values", 4)
        parts = [(view(a, "dense keys", 4), view(b, "dense values", 4)) for a, b in dense]
        if len(parts) > s.ATTENTION_PARTS:
            raise ValueError(f"{len(parts)} dense parts; at most {s.ATTENTION_PARTS}")
        shape = (q.shape[0], q.shape[1], v.shape[3])
        out = empty_like(query, shape, q.dtype) if out is None else out
        target = output(out, "out", shape, FLOATS)
        check_place(self.device, q, k, v, target, *(view for part in parts for view in part))
        step = s.Step(query=q.tensor(), output=target.tensor(), dense_count=len(parts))
        step.source = s.Rows(keys=k.tensor(), values=v.tensor())
        for number, (a, b) in enumerate(parts):
            step.dense[number] = s.Dense(rows=s.Rows(keys=a.tensor(), values=b.tensor()))
        if lse is not None:
            step.lse = flat(lse, "lse", shape[:2], F32).address
        with self._lock:
            plan = self._plan(q, sequences, options)
            call("pkv_step_run", plan, self.device.stream(query), c.byref(step))
        return out

    def fetch(
        self,
        hits: Hits,
        keys: Any,
        values: Any,
        *,
        query_heads: int,
        sequences: Sequence[int] | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Copies of the hits' rows, [b, h, k, d] and [b, h, k, dv], out of keys
        [sequences, h, n, d] and values [sequences, h, n, dv]; unused slots are 0."""
        k, v = view(keys, "keys", 4), view(values, "values", 4)
        shape = tuple(hits.positions.shape)
        rows = [empty_like(a, (*shape, b.shape[3]), b.dtype) for a, b in ((keys, k), (values, v))]
        fields = [view(row, "rows", 4).tensor() for row in rows]
        source = s.Rows(keys=k.tensor(), values=v.tensor())
        target = s.Rows(keys=fields[0], values=fields[1])
        asked = View(0, (shape[0], query_heads), (), F32, 1, 0, None, False)
        with self._lock:
            plan = self._plan(asked, sequences, options)
            stream, found = self.device.stream(keys), hits._struct()
            call("pkv_fetch", plan, stream, c.byref(source), c.byref(found), c.byref(target))
        return rows[0], rows[1]

    def attend(
        self,
        query: Any,
        hits: Hits | None,
        rows: tuple[Any, Any] | None,
        *,
        dense: Sequence[tuple[Any, Any]] = (),
        sequences: Sequence[int] | None = None,
        out: Any = None,
        lse: Any = None,
        **options: Any,
    ) -> Any:
        """Attends to fetched rows, dense parts and the configured tail of the zone, for the query
        [b, hq, d] that `hits` were retrieved for, with the same options. `hits` None: to the dense
        parts only. Returns [b, hq, dv]."""
        q = view(query, "query", 3)
        parts = [(view(a, "dense keys", 4), view(b, "dense values", 4)) for a, b in dense]
        if len(parts) > s.ATTENTION_PARTS:
            raise ValueError(f"{len(parts)} dense parts; at most {s.ATTENTION_PARTS}")
        width = self.codec.geometry.value_dim
        shape = (q.shape[0], q.shape[1], width)
        out = empty_like(query, shape, q.dtype) if out is None else out
        target = output(out, "out", shape, FLOATS)
        attention = s.Attention(query=q.tensor(), output=target.tensor(), dense_count=len(parts))
        if rows is not None:
            fetched = [view(row, "rows", 4).tensor() for row in rows]
            attention.rows = s.Rows(keys=fetched[0], values=fetched[1])
        for number, (a, b) in enumerate(parts):
            attention.dense[number] = s.Dense(rows=s.Rows(keys=a.tensor(), values=b.tensor()))
        if lse is not None:
            attention.lse = flat(lse, "lse", shape[:2], F32).address
        if hits is not None:
            found = hits._struct()
            attention.hits = c.pointer(found)
        with self._lock:
            plan = self._plan(q, sequences, options)
            call("pkv_attend", plan, self.device.stream(query), c.byref(attention))
        return out


def _open(backend: DeviceLike) -> Device:
    return device_of(None, backend) if backend is None else device(backend)


def merge(
    outputs: Sequence[Any],
    lses: Sequence[Any],
    *,
    out: Any = None,
    lse: Any = None,
    device: DeviceLike = None,
) -> tuple[Any, Any]:
    """Joins attention over disjoint sets of tokens: outputs [n, hq, dv] of one dtype, lses
    [n, hq] float32 (natural logarithm; -inf: that part is empty). Returns (output, lse); `out` and
    `lse` may be one of the inputs. At most 64 parts. Backends on the CPU (UnimplementedError)."""
    if not outputs or len(outputs) != len(lses):
        raise ValueError(f"{len(outputs)} outputs, {len(lses)} lses; as many of both, at least 1")
    views = [view(o, f"outputs[{i}]", 3) for i, o in enumerate(outputs)]
    shape = views[0].shape
    for number, found in enumerate(views):
        if found.shape != shape or found.dtype != views[0].dtype:
            raise ValueError(
                f"outputs[{number}] has shape {found.shape} or another dtype, not {shape}"
            )
    here = device_of(outputs[0], device)
    places = [view(o, f"lses[{i}]", 2, (F32,)) for i, o in enumerate(lses)]
    for number, found in enumerate(places):
        if found.shape != shape[:2] or not is_dense(found):
            raise ValueError(f"lses[{number}] must be {shape[:2]}, contiguous, not {found.shape}")
    out = empty_like(outputs[0], shape, views[0].dtype) if out is None else out
    lse = empty_like(outputs[0], shape[:2], F32) if lse is None else lse
    target, total = output(out, "out", shape, FLOATS), flat(lse, "lse", shape[:2], F32)
    check_place(here, *views, *places, target, total)
    tensors = (s.Tensor * len(views))(*(found.tensor() for found in views))
    addresses = (c.c_void_p * len(views))(*(found.address for found in places))
    stream, count = here.stream(outputs[0]), s.I32(len(views))
    call("pkv_merge", stream, count, tensors, addresses, _ref(target), s.P(total.address))
    return out, lse
