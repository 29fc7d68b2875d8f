"""Index: the key records of one layer, and the steps over them."""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _structs as s
from ._codec import Codec, DeviceLike, optional, reference
from ._device import Config, check_place, device_of
from ._library import Handle, call
from ._row_cache import RowCache
from ._tensors import (
    F32,
    FLOATS,
    I32,
    View,
    address,
    empty_like,
    flat,
    host,
    is_torch,
    output,
    view,
)


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
    sample_estimates: Any  # [b, hq, tail_samples] float32; None if tail = drop

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
        options = {**codec.options, **dict(given)}  # None: an option of the codec's left out
        self.config = Config(codec.profile, **{n: v for n, v in options.items() if v is not None})
        named = None if sequences is None else host(sequences, np.int32)
        desc = s.PlanDesc(
            batch=batch, query_heads=query_heads, owns_scratch=1, sequences=address(named)
        )
        call("pkv_plan_create", index, self.config, c.byref(desc), self.out)
        count = s.I64()
        call("pkv_plan_candidates", self, c.byref(count))
        self.candidates = count.value
        self.k = int(self.config["k"])
        has_tail = self.config["tail"] != "drop"
        self.samples = int(self.config["tail_samples"]) if has_tail else 0


class Index(Handle):
    """Key records of one layer: `sequences` sequences of up to `capacity` tokens. Rows of K and V
    stay the caller's. One call at a time; others wait."""

    def __init__(self, codec: Codec, capacity: int, sequences: int = 1) -> None:
        super().__init__("pkv_index_destroy", codec)
        self.codec, self.device, self.capacity = codec, codec.device, capacity
        self._lock = threading.RLock()
        self._plans: dict[Any, _Plan] = {}
        call("pkv_index_create", self.device, codec, s.I32(sequences), s.I64(capacity), self.out)

    @staticmethod
    def device_bytes(codec: Codec, capacity: int, sequences: int = 1) -> int:
        """Of device memory that such an index takes; nothing is allocated."""
        found, device = s.I64(), codec.device
        call("pkv_index_bytes", device, codec, s.I32(sequences), s.I64(capacity), c.byref(found))
        return found.value

    def row_cache(self, rows: int, dtype: Any = "bfloat16") -> RowCache:
        """For steps of this index whose keys and values are of `dtype`: as many rows for every
        sequence and KV head, 8 to 4,096. Raises ResourceExhaustedError."""
        return RowCache(self, rows, dtype)

    def append(self, keys: Any, values: Any = None, sequence: int = 0) -> None:
        """Encodes keys [h, t, d] behind those of a sequence. values [h, t, dv]: needed by every
        tail but "drop". Waits. Raises ResourceExhaustedError past the capacity."""
        k, v = view(keys, "keys", 3), optional(values, "values", 3)
        check_place(self.device, k, v)
        stream = self.device.stream(keys)
        with self._lock:
            call("pkv_index_append_sync", self, stream, s.I32(sequence), reference(k), reference(v))

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
        here = device_of(None, device)
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
        index.capacity = index.stats().capacity
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
            call("pkv_retrieve", plan, stream, reference(q), None, c.byref(hits._struct()))
        return hits

    def votes(self, query: Any, *, sequences: Sequence[int] | None = None, **options: Any) -> Any:
        """What candidates are chosen by, for query [b, hq, d]: [b, h, n] float32, n the longest
        sequence's length, the same bits on every backend; -inf behind a shorter one, NaN for a key
        or query that is not finite. With `rerank` the halves of `retrieve`, for a caller who
        chooses the candidates."""
        q = view(query, "query", 3)
        check_place(self.device, q)
        with self._lock:
            plan = self._plan(q, sequences, options)
            shape = q.shape[0], self.codec.geometry.kv_heads, self.capacity
            votes = empty_like(query, shape, F32)
            votes[:] = float("-inf")
            stream, place = self.device.stream(query), flat(votes, "votes", shape, F32)
            call(
                "pkv_vote",
                plan,
                stream,
                reference(q),
                None,
                c.c_void_p(place.address),
                s.I64(shape[2]),
            )
            named = range(q.shape[0]) if sequences is None else sequences
            longest = max((self.length(sequence) for sequence in named), default=0)
        return votes[:, :, :longest]

    def rerank(
        self,
        query: Any,
        candidates: Any,
        counts: Any,
        /,
        *,
        sequences: Sequence[int] | None = None,
        **options: Any,
    ) -> Hits:
        """What `retrieve` finds among these candidates, int32 [b, h, c]: of each row the first
        `counts` [b, h] entries, ascending positions. c is at most `room` of the same options.
        Raises OutOfRangeError (a position, on the CPU)."""
        q = view(query, "query", 3)
        check_place(self.device, q)
        with self._lock:
            plan = self._plan(q, sequences, options)
            if candidates.shape[2] > plan.candidates:
                raise ValueError(
                    f"candidates has {candidates.shape[2]} a row; these options have room for "
                    f"{plan.candidates}"
                )
            hits = self._new_hits(query, q.shape, plan)
            hits.candidates[:] = -1
            hits.candidates[:, :, : candidates.shape[2]] = candidates
            hits.candidate_counts[:] = counts
            stream = self.device.stream(query)
            call("pkv_rerank", plan, stream, reference(q), None, c.byref(hits._struct()))
        return hits

    def room(self, query: Any, *, sequences: Sequence[int] | None = None, **options: Any) -> int:
        """Candidates of a row that a step with these options has room for."""
        with self._lock:
            return self._plan(view(query, "query", 3), sequences, options).candidates

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
        row_cache: RowCache | None = None,
        **options: Any,
    ) -> Any:
        """A whole decoding step: retrieve, fetch from keys [sequences, h, n, d] and values
        [sequences, h, n, dv], attend. dense: up to 4 pairs of K [b, h, t, d] and V [b, h, t, dv]
        that are attended in full (sink, newest tokens). Returns the output [b, hq, dv] of the
        query's dtype, or `out`; `lse` [b, hq] float32 gets the log-sum-exp. row_cache: of this
        index; the rows that steps fetched last, on the device."""
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
        if row_cache is not None:
            step.row_cache = row_cache._as_parameter_
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
        [sequences, h, n, d] and values [sequences, h, n, dv]; unused slots are 0. Torch tensors
        where the hits lie."""
        k, v = view(keys, "keys", 4), view(values, "values", 4)
        shape = tuple(hits.positions.shape)
        pairs = [(hits.positions if is_torch(hits.positions) else a, b)
                 for a, b in ((keys, k), (values, v))]  # fmt: skip
        rows = [empty_like(a, (*shape, b.shape[3]), b.dtype) for a, b in pairs]
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
