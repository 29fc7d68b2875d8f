"""Cache: K, V and key records of many sequences in many layers."""

from __future__ import annotations

import ctypes as c
import json
from typing import Any

import numpy as np

from . import _structs as s
from ._cache_shape import (
    SHAPE_OPTIONS,
    CacheHits,
    CacheStats,
    Regions,
    Usage,
    description,
    named_tuple,
)
from ._codec import Codec, DeviceLike
from ._device import Config, check_place, device_of
from ._library import Handle, call
from ._tensors import F32, FLOATS, I32, View, address, empty_like, flat, host, output, view

_EXACT = 1
_LAYOUTS = {"hnd": 1, "nhd": 2}


class Cache(Handle):
    """K, V and key records of up to `sequences` sequences in `layers` layers.

    layers, kv_heads, query_heads, head_dim: the model's; value_dim where it differs.
    dtype: of K and V rows: "float32", "float16", "bfloat16", or a dtype of numpy or torch.
    policies: per layer "sparse", "dense", or the tokens of a sliding window; None: all sparse.
    Further shape: sequences (1), capacity, max_bytes, sink (128), local (512), interval (512),
    dense_below (1024), page_tokens (512), rows_memory ("host", "device"), fit_positions (128),
    refits, deferred, soft_cap, sink_logits [hq]; docs/cache.md says what they mean.
    Every other name is an option of the config (`pariskv.options()`): k, candidates, tail, .. .

    Tensors of calls hold the tokens of all sequences named, one behind the other: keys [n, h, d],
    values [n, h, dv], queries and outputs [n, hq, ..], any strides with a contiguous last axis.
    `sequences` names them (default: sequence 0 alone), `counts` the tokens of each (default: 1
    each; with one sequence, all n). Calls from several threads wait for one another.

    Raises InvalidArgumentError (a field or option, with its range), NotFoundError (an unknown
    name), ResourceExhaustedError."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        query_heads: int,
        head_dim: int,
        *,
        dtype: Any = "bfloat16",
        profile: str = "default",
        device: DeviceLike = None,
        **options: Any,
    ) -> None:
        self.device = device_of(None, device)
        self._last_batch: tuple[Any, s.CacheBatch] | None = None
        super().__init__("pkv_cache_destroy", self.device)
        desc = description(layers, kv_heads, query_heads, dtype, options)
        self.config = Config(profile, head_dim=head_dim, **options)
        self.layers, self.kv_heads, self.query_heads = layers, kv_heads, query_heads
        self.dtype, self.head_dim = desc.dtype, head_dim
        width = self.config["value_dim"]
        self.value_dim = int(width) if width.isdigit() else head_dim
        self.shape = {name: getattr(desc, name) for name in SHAPE_OPTIONS}
        call("pkv_cache_create", self.device, self.config, c.byref(desc), self.out)

    # ---- sequences

    def add(self) -> int:
        """Takes the lowest free slot for an empty sequence. Raises ResourceExhaustedError."""
        found = s.I32()
        call("pkv_cache_add", self, c.byref(found))
        return found.value

    def remove(self, sequence: int) -> None:
        """Gives the slot and its pages back."""
        call("pkv_cache_remove", self, self.device.stream(), s.I32(sequence))

    def reset(self, sequence: int) -> None:
        """The sequence stays, without tokens."""
        call("pkv_cache_reset", self, self.device.stream(), s.I32(sequence))

    def truncate(self, sequence: int, tokens: int) -> None:
        """Takes back all tokens from position `tokens` on, in every layer, as if they had never
        come. Raises OutOfRangeError where a layer holds fewer."""
        call("pkv_cache_truncate", self, self.device.stream(), s.I32(sequence), s.I64(tokens))

    def fork(self, source: int, tokens: int = -1) -> int:
        """A new sequence with the first `tokens` tokens of `source` (-1: all); pages are shared."""
        found, stream = s.I32(), self.device.stream()
        call("pkv_cache_fork", self, stream, s.I32(source), s.I64(tokens), c.byref(found))
        return found.value

    def length(self, sequence: int = 0, layer: int = 0) -> int:
        found = s.I64()
        call("pkv_cache_length", self, s.I32(layer), s.I32(sequence), c.byref(found))
        return found.value

    def regions(self, sequence: int = 0, layer: int = 0) -> Regions:
        found = s.CacheRegions()
        call("pkv_cache_regions_get", self, s.I32(layer), s.I32(sequence), c.byref(found))
        result: Regions = named_tuple(Regions, found)
        return result._replace(is_encoded=bool(found.is_encoded))

    # ---- tokens and steps

    def _batch(self, tokens: int, sequences: Any, counts: Any) -> s.CacheBatch:
        # The layers of a model ask for the same one in turn, so the last one is kept.
        key = None
        if type(sequences) is list and (counts is None or type(counts) is list):
            key = tokens, tuple(sequences), None if counts is None else tuple(counts)
            known = self._last_batch
            if known is not None and known[0] == key:
                return known[1]
        batch = self._new_batch(tokens, sequences, counts)
        self._last_batch = None if key is None else (key, batch)
        return batch

    @staticmethod
    def _new_batch(tokens: int, sequences: Any, counts: Any) -> s.CacheBatch:
        named = host([0] if sequences is None else sequences, np.int32)
        if counts is None and len(named) == 1:
            counts = [tokens]
        many = None if counts is None else host(counts, np.int64)
        total = len(named) if many is None else int(many.sum())
        if many is not None and len(many) != len(named):
            raise ValueError(f"{len(many)} counts for {len(named)} sequences")
        if total != tokens:
            raise ValueError(f"the batch has {total} tokens, the tensors have {tokens}")
        batch = s.CacheBatch(batch=len(named), sequences=address(named), counts=address(many))
        batch.keep = named, many
        return batch

    def _rows(self, array: Any, name: str, heads: int, width: int, dtypes: Any = FLOATS) -> View:
        found = view(array, name, 3, dtypes)
        if found.shape[1:] != (heads, width):
            raise ValueError(
                f"{name} has {found.shape[1]} heads of {found.shape[2]} elements, the cache "
                f"{heads} of {width}"
            )
        check_place(self.device, found)
        return found

    def _keys_values(self, keys: Any, values: Any) -> tuple[View, View | None]:
        own = (self.dtype,)
        k = self._rows(keys, "keys", self.kv_heads, self.head_dim, own)
        if values is None:
            return k, None
        return k, self._rows(values, "values", self.kv_heads, self.value_dim, own)

    def append(
        self,
        layer: int,
        keys: Any,
        values: Any = None,
        queries: Any = None,
        *,
        sequences: Any = None,
        counts: Any = None,
    ) -> None:
        """Appends tokens of one layer: keys [n, h, d], values [n, h, dv] of the cache's dtype,
        queries [n, hq, d] (optional; fits are better with them). All or nothing. Raises
        InvalidArgumentError (a key that is not finite: where), ResourceExhaustedError (need and
        room)."""
        k, v = self._keys_values(keys, values)
        q = None if queries is None else self._query(queries)
        batch = self._batch(k.shape[0], sequences, counts)
        tensors = [None if t is None else c.byref(t.tensor()) for t in (k, v, q)]
        stream = self.device.stream(keys)
        call("pkv_cache_append", self, stream, s.I32(layer), c.byref(batch), *tensors)

    def _query(self, query: Any) -> View:
        return self._rows(query, "query", self.query_heads, self.head_dim)

    def _attention(self, query: Any, out: Any, lse: Any, exact: bool) -> tuple[Any, Any, View]:
        q = self._query(query)
        shape = (q.shape[0], self.query_heads, self.value_dim)
        out = empty_like(query, shape, q.dtype) if out is None else out
        target = output(out, "out", shape, FLOATS)
        check_place(self.device, target)
        made = s.CacheAttention(
            flags=_EXACT if exact else 0, query=q.tensor(), output=target.tensor()
        )
        if lse is not None:
            place = flat(lse, "lse", shape[:2], F32)
            check_place(self.device, place)
            made.lse = place.address
        return made, out, q

    def attend(
        self,
        layer: int,
        query: Any,
        *,
        sequences: Any = None,
        counts: Any = None,
        exact: bool = False,
        out: Any = None,
        lse: Any = None,
    ) -> Any:
        """Attends for the last `counts` tokens of each sequence, which have been appended; query
        token t of c sees positions up to tokens - c + t. exact: to all tokens in full, for
        prefill. Otherwise counts are at most local + 1. Returns [n, hq, dv] of the query's dtype,
        or `out`; `lse` [n, hq] float32 gets the log-sum-exp."""
        made, out, q = self._attention(query, out, lse, exact)
        batch = self._batch(q.shape[0], sequences, counts)
        stream = self.device.stream(query)
        call("pkv_cache_attend", self, stream, s.I32(layer), c.byref(batch), c.byref(made))
        return out

    def step(
        self,
        layer: int,
        query: Any,
        keys: Any,
        values: Any = None,
        *,
        sequences: Any = None,
        counts: Any = None,
        exact: bool = False,
        out: Any = None,
        lse: Any = None,
    ) -> Any:
        """`append` with the query as queries, then `attend`; a failure leaves nothing appended."""
        k, v = self._keys_values(keys, values)
        made, out, q = self._attention(query, out, lse, exact)
        if q.shape[0] != k.shape[0]:
            raise ValueError(f"query has {q.shape[0]} tokens, keys have {k.shape[0]}")
        batch = self._batch(k.shape[0], sequences, counts)
        tensors = [None if t is None else c.byref(t.tensor()) for t in (k, v)]
        call(
            "pkv_cache_decode_step",
            self,
            self.device.stream(query),
            s.I32(layer),
            c.byref(batch),
            *tensors,
            c.byref(made),
        )
        return out

    def retrieve(
        self, layer: int, query: Any, *, sequences: Any = None, counts: Any = None
    ) -> CacheHits:
        """The best keys of the zones for query [n, hq, d]. Raises FailedPreconditionError where the
        layer is not sparse."""
        q = self._query(query)
        k = int(self.config["k"])
        heads = q.shape[0], self.kv_heads
        hits = CacheHits(
            positions=empty_like(query, (*heads, k), I32),
            scores=empty_like(query, (*heads, k), F32),
            counts=empty_like(query, heads, I32),
        )
        found = hits._struct()
        batch = self._batch(q.shape[0], sequences, counts)
        stream, tensor = self.device.stream(query), q.tensor()
        call(
            "pkv_cache_retrieve",
            self,
            stream,
            s.I32(layer),
            c.byref(batch),
            c.byref(tensor),
            c.byref(found),
        )
        hits.stamp = found.stamp
        return hits

    def fetch(
        self, layer: int, hits: CacheHits, *, sequences: Any = None, counts: Any = None
    ) -> tuple[Any, Any]:
        """Copies of the hits' rows, [n, h, k, d] and [n, h, k, dv] of the cache's dtype; unused
        slots are 0. Raises FailedPreconditionError if the layer has changed since the retrieve."""
        shape = tuple(hits.positions.shape)
        rows = [
            empty_like(hits.positions, (*shape, width), self.dtype)
            for width in (self.head_dim, self.value_dim)
        ]
        views = [view(row, "rows", 4).tensor() for row in rows]
        target, found = s.Rows(keys=views[0], values=views[1]), hits._struct()
        batch = self._batch(shape[0], sequences, counts)
        stream = self.device.stream(hits.positions)
        call(
            "pkv_cache_fetch",
            self,
            stream,
            s.I32(layer),
            c.byref(batch),
            c.byref(found),
            c.byref(target),
        )
        return rows[0], rows[1]

    def flush(self) -> None:
        """Encodes and fits what is due (only with deferred=1)."""
        call("pkv_cache_flush", self, self.device.stream())

    def reserve(self, tokens: int, total_tokens: int, step_tokens: int = 1) -> None:
        """Books pages and scratch, so that no call grows them (fits excepted) while no sequence
        passes `tokens` tokens, all sequences of a layer hold no more than `total_tokens`, and no
        step has more than `step_tokens`. Wanted before steps are captured."""
        numbers = s.I64(tokens), s.I64(total_tokens), s.I64(step_tokens)
        call("pkv_cache_reserve", self, self.device.stream(), *numbers)

    def advance(self, layer: int = -1, *, sequences: Any = None, counts: Any = None) -> None:
        """Says that the next launch of captured steps on this stream brings `counts` tokens
        (default: 1) of each sequence to the layer (-1: to all). Makes room for them. Raises
        ResourceExhaustedError (capacity, pages), FailedPreconditionError (flush first): do not
        launch then."""
        named = host([0] if sequences is None else sequences, np.int32)
        many = np.ones(len(named), np.int64) if counts is None else host(counts, np.int64)
        batch = self._batch(int(many.sum()), named, many)
        call("pkv_cache_advance", self, self.device.stream(), s.I32(layer), c.byref(batch))

    # ---- codecs

    def refit(self, layer: int, sequence: int = 0, queries: Any = None) -> None:
        """Fits at the zone's present length, to queries [m, hq, d] or to keys alone."""
        q = None if queries is None else c.byref(self._query(queries).tensor())
        stream = self.device.stream(queries)
        call("pkv_cache_refit", self, stream, s.I32(layer), s.I32(sequence), q)

    def import_codec(self, layer: int, codec: Codec) -> None:
        """All sequences of the layer use this codec. Raises FailedPreconditionError where one has
        tokens."""
        call("pkv_cache_import_codec", self, s.I32(layer), codec)

    def codec(self, layer: int, sequence: int = 0) -> Codec:
        """With the parameters in use. Raises FailedPreconditionError before the first fit."""
        given = {"head_dim": self.head_dim, "value_dim": self.value_dim}
        codec = Codec(self.device, self.config, "default", given)
        call("pkv_cache_codec", self, s.I32(layer), s.I32(sequence), codec.out)
        return codec

    # ---- looking inside

    def rows(self, layer: int, sequence: int, begin: int, count: int, like: Any = None) -> Any:
        """K [h, count, d] and V [h, count, dv] of positions [begin, begin + count), in host
        memory; of `like`'s kind (a torch tensor on the CPU or, by default, numpy)."""
        like = np.empty(0) if like is None else like
        shapes = [(self.kv_heads, count, width) for width in (self.head_dim, self.value_dim)]
        arrays = [empty_like(like, shape, self.dtype) for shape in shapes]
        tensors = [view(array, "rows", 3).tensor() for array in arrays]
        target = s.Rows(keys=tensors[0], values=tensors[1])
        numbers = s.I32(layer), s.I32(sequence), s.I64(begin), s.I64(count)
        call("pkv_cache_rows_sync", self, self.device.stream(), *numbers, c.byref(target))
        return arrays[0], arrays[1]

    def stats(self) -> CacheStats:
        found = s.CacheStats()
        call("pkv_cache_stats_sync", self, self.device.stream(), c.byref(found))
        result: CacheStats = named_tuple(CacheStats, found)
        return result

    def usage(self) -> Usage:
        found = s.CacheUsage()
        call("pkv_cache_usage_get", self, c.byref(found))
        result: Usage = named_tuple(Usage, found)
        return result

    def describe(self) -> dict[str, Any]:
        """Shape, limits, options, which calls are fused, usage."""
        out = c.c_char_p()
        call("pkv_cache_describe", self, c.byref(out))
        described: dict[str, Any] = json.loads((out.value or b"{}").decode())
        return described

    # ---- files

    def save(self, path: Any, sequence: int = -1, *, overwrite: bool = False) -> None:
        """One sequence, or all (-1), to a .pkv file. Raises AlreadyExistsError."""
        flags, stream = s.U32(int(overwrite)), self.device.stream()
        call("pkv_cache_save_sync", self, stream, s.I32(sequence), str(path).encode(), flags)

    def load(self, path: Any) -> list[int]:
        """Adds the sequences of a file; returns their slots. Raises FailedPreconditionError (a
        field that differs), ResourceExhaustedError, DataLossError, NotFoundError."""
        room = self.shape["sequences"]
        slots, count = (c.c_int32 * room)(), s.I32()
        name = str(path).encode()
        stream = self.device.stream()
        call("pkv_cache_load_sync", self, stream, name, s.I32(room), slots, c.byref(count))
        return list(slots[: count.value])

    # ---- the caller's pages

    def bind_pool(self, layer: int, keys: Any, values: Any, layout: str = "nhd") -> None:
        """The layer's K and V lie in these tensors from now on: [pages, h, page_tokens, d] (hnd)
        or [pages, page_tokens, h, d] (nhd). They are kept alive. The page size must divide sink;
        the layer holds no token yet."""
        if layout not in _LAYOUTS:
            raise ValueError(f"layout is {layout!r}; choose from {', '.join(_LAYOUTS)}")
        views = [view(a, n, 4, (self.dtype,)) for a, n in ((keys, "keys"), (values, "values"))]
        check_place(self.device, *views)
        pool = s.CachePool(layout=_LAYOUTS[layout])
        pool.keys, pool.values = (found.tensor() for found in views)
        call("pkv_cache_bind_pool", self, s.I32(layer), c.byref(pool))
        self._keep = (*self._keep, keys, values)

    def append_pages(
        self,
        layer: int,
        sequences: Any,
        indptr: Any,
        indices: Any,
        last_page: Any,
        queries: Any = None,
    ) -> None:
        """The sequences now consist of these pages, whose tokens have been written: `indices`
        [indptr[i], indptr[i + 1]) are those of sequences[i], whose last one holds last_page[i]
        tokens. queries [n, hq, d] of the new tokens, optional. Raises OutOfRangeError (a page),
        InvalidArgumentError (a sequence that got shorter: truncate first)."""
        named, last = host(sequences, np.int32), host(last_page, np.int32)
        starts, pages = host(indptr, np.int64), host(indices, np.int32)
        if len(starts) != len(named) + 1 or len(last) != len(named) or len(pages) != starts[-1]:
            raise ValueError(
                f"{len(named)} sequences need {len(named) + 1} entries of indptr, as many of "
                f"last_page, and {starts[-1] if len(starts) else 0} pages"
            )
        blocks = s.CacheBlocks(batch=len(named), sequences=address(named), indptr=address(starts))
        blocks.indices, blocks.last_page = address(pages), address(last)
        q = None if queries is None else c.byref(self._query(queries).tensor())
        stream = self.device.stream(queries)
        call("pkv_cache_append_pages", self, stream, s.I32(layer), c.byref(blocks), q)
