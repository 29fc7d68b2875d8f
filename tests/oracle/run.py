"""One case: its numbers, and the library's result of every stage, each computed on first use."""

import ctypes
from functools import cached_property

import numpy as np
import structs
from binding import pointer, tensor
from numbers_of import (
    LIBRARY_TYPES,
    far_center,
    key_numbers,
    lay_out,
    query_numbers,
    sample_numbers,
    to_dtype,
    to_f32,
    value_numbers,
)
from oracle import encode, fit, model, rerank

PATTERN = 0xA5
PATTERN_F32 = np.full(4, PATTERN, np.uint8).view(np.float32)[0]
PATTERN_I32 = np.full(4, PATTERN, np.uint8).view(np.int32)[0]


def patterned(shape, dtype):
    """Memory whose old content shows where nothing was written."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).reshape(-1)[...] = PATTERN
    return array


class Run:
    def __init__(self, case, library, data=None):
        """data: optional dict of float arrays keys [s,h,n,d], values, queries [b,hq,d], sample."""
        self.case, self.library = case, library
        self.g = g = case.geometry
        self.rng = rng = np.random.default_rng(case.index + 10_000)
        self.lengths = case.lengths()
        self.sequences = rng.permutation(case.batch + 1)[: case.batch].astype(np.int32)
        self.rows = (case.batch + 1) * g.kv_heads
        self.make_numbers(data or {})
        self.make_params()
        self.batch = structs.Batch(
            batch=case.batch,
            sequences=pointer(self.sequences),
            lengths=pointer(self.lengths),
            max_length=int(self.lengths.max()),
        )

    def make_numbers(self, data):
        case, g, rng = self.case, self.g, self.rng
        shape = (case.batch + 1, g.kv_heads, case.length)
        keys = data.get("keys")
        if keys is None:
            keys = key_numbers(rng, case.key_kind, (*shape, g.head_dim), case.key_dtype)
        self.source_keys = to_dtype(keys, case.key_dtype)
        self.keys = to_f32(self.source_keys)[self.sequences]
        self.key_view = lay_out(self.source_keys[self.sequences], case.layout)
        self.source_values = self.value_view = self.values = None
        if g.v_source == model.K_PREFIX:
            self.source_values = self.source_keys[..., : g.value_dim]
            self.value_view = self.key_view[..., : g.value_dim]
        elif g.v_source == model.OWN:
            values = data.get("values")
            if values is None:
                kind = case.value_kind if case.encode_values else "normal"
                values = value_numbers(rng, kind, (*shape, g.value_dim), case.key_dtype)
            self.source_values = to_dtype(values, case.key_dtype)
            self.value_view = lay_out(self.source_values[self.sequences], case.layout)
        if self.source_values is not None:
            self.values = to_f32(self.source_values)[self.sequences]
        queries = data.get("queries")
        if queries is None:
            shape = (case.batch, case.query_heads, g.head_dim)
            queries = query_numbers(rng, case.query_kind, shape, self.keys, case.query_dtype)
        self.query_raw = to_dtype(queries, case.query_dtype)
        self.queries = to_f32(self.query_raw)
        self.query_view = lay_out(self.query_raw, case.layout)
        if case.query_kind == "shared":  # one vector for all heads: stride 0
            self.query_view = np.broadcast_to(self.query_raw[:, :1], self.query_raw.shape)
        self.sample = data.get("sample")
        if self.sample is None:
            self.sample = 2 * rng.standard_normal((case.query_heads, 6, g.head_dim))
            self.sample = sample_numbers(rng, case.sample_kind, self.sample)
        self.sample = self.sample.astype(np.float32)
        self.weights = None
        if case.fit_weights != "none":
            shape = (g.kv_heads, case.length)
            high = {"few": 3, "many": 2**31, "zero": 1}[case.fit_weights]
            self.weights = rng.integers(0, high, shape).astype(np.int32)
            if case.fit_weights == "few":
                self.weights[rng.random(shape) < 0.7] = 0

    def make_params(self):
        """Parameters of all heads; those of "fit" come from the oracle."""
        case, g, rng = self.case, self.g, self.rng
        heads = []
        for head in range(g.kv_heads):
            center, value_center = np.zeros(g.head_dim), np.zeros(g.value_dim)
            balance = np.ones(g.head_dim)
            if case.params == "random":
                center = rng.standard_normal(g.head_dim)
                balance = np.exp(rng.standard_normal(g.head_dim))
                value_center = rng.standard_normal(g.value_dim)
            elif case.params == "far":
                center = far_center(g.head_dim)
            elif case.params in ("fit", "picked"):
                keys, values = self.zone_of(head)
                if case.params == "picked":
                    fitted = fit.fit_picked(g, keys, self.sample_of(head), values)
                else:
                    fitted = fit.fit_params(self.fit_sums(head))
                center, balance = fitted[:2]
                value_center = value_center if fitted[2] is None else fitted[2]
            arrays = [array.astype(np.float32) for array in (center, balance, value_center)]
            heads.append(model.make_params(g, *arrays))
        self.params = heads
        names = [name for name, *_ in structs.CodecParams._fields_]
        names = [name for name in names if name not in ("geometry", "set_of")]
        self.param_arrays = {}
        for name in names:
            if "value" in name and not g.sketch_bits:
                continue
            column = [getattr(head, name) for head in heads]
            stacked = column[0] if "signs" in name else np.stack(column)
            self.param_arrays[name] = np.ascontiguousarray(stacked, np.float32)
        self.geometry = structs.Geometry(**{**vars(g), "sketch_stride": g.stride})
        self.codec = structs.CodecParams(
            geometry=ctypes.pointer(self.geometry),
            **{name: pointer(array) for name, array in self.param_arrays.items()},
        )

    def zone_of(self, head):
        """(keys [t, d], values [t, dv] or None) of entry 0, which the fit sees."""
        values = self.values[0, head] if self.case.encode_values else None
        return self.keys[0, head], values

    def sample_of(self, head):
        """float32 [G, m, d]."""
        group = self.case.group
        return self.sample[head * group : (head + 1) * group]

    def pivot(self, head):
        return fit.pivot(*self.zone_of(head))

    def fit_sums(self, head):
        keys, values = self.zone_of(head)
        as_sum = self.case.queries_as == model.QUERIES_SUM
        rows = fit.query_rows(self.sample_of(head), as_sum)
        weights = None if self.weights is None else self.weights[head]
        return fit.fit_sums(self.pivot(head), keys, rows, values, weights)

    def key_tensor(self, view):
        return tensor(view, LIBRARY_TYPES[self.case.key_dtype], offset=64)

    def query_tensor(self):
        return tensor(self.query_view, LIBRARY_TYPES[self.case.query_dtype])

    def row(self, entry, head):
        """The row of the store."""
        return int(self.sequences[entry]) * self.g.kv_heads + head

    def each(self):
        """(entry, head, index into [b * h], n) of every row of the batch."""
        for entry in range(self.case.batch):
            for head in range(self.g.kv_heads):
                yield entry, head, entry * self.g.kv_heads + head, int(self.lengths[entry])

    def group_of(self, entry, head):
        """float32 queries [G, d] of a row."""
        group = self.case.group
        return self.queries[entry, head * group : (head + 1) * group]

    # ---- The oracle's records, which later stages share ----

    @cached_property
    def records(self):
        """{(entry, head): oracle records}."""
        result = {}
        for entry, head, _, n in self.each():
            values = self.values[entry, head, :n] if self.case.encode_values else None
            result[entry, head] = encode.encode(
                self.g, self.params[head], self.keys[entry, head, :n], values
            )
        return result

    # ---- The library's stages ----

    @cached_property
    def encoded(self):
        """Store, occupancy, value_sums, good_counts; first_bad per piece."""
        case, g = self.case, self.g
        capacity = case.length + int(self.rng.integers(0, 70)) + 1
        store, memory = self.library.new_store(self.geometry, self.rows, capacity)
        memory[...] = PATTERN
        out = {"store": store, "memory": memory, "first_bad": [], "pieces": []}
        out["occupancy"] = None
        if g.vote == model.TIER:
            out["occupancy"] = np.zeros((self.rows, g.subspaces, 256), np.int32)
        out["value_sums"] = None
        if case.encode_values:
            out["value_sums"] = np.zeros((self.rows, g.value_dim), np.float64)
        out["good_counts"] = np.zeros(self.rows, np.int64)
        cuts = np.sort(self.rng.integers(0, case.length + 1, case.pieces - 1))
        edges = [0, *(int(cut) for cut in cuts), case.length]
        for begin, end in zip(edges[:-1], edges[1:]):
            self.encode_piece(out, begin, end)
        return out

    def encode_piece(self, out, begin, end):
        case = self.case
        starts = np.full(case.batch, begin, np.int64)
        starts = np.minimum(starts, self.lengths)
        counts = np.clip(self.lengths, begin, end) - begin
        first_bad = patterned((case.batch, self.g.kv_heads), np.int64)
        values = None
        if case.encode_values:
            values = self.value_view[:, :, begin:end]
        self.library.stage(
            "encode",
            batch=case.batch,
            codec=self.codec,
            keys=self.key_tensor(self.key_view[:, :, begin:end]),
            values=self.key_tensor(values) if values is not None else tensor(None),
            sequences=self.sequences,
            starts=starts,
            counts=counts,
            store=out["store"],
            occupancy=out["occupancy"],
            value_sums=out["value_sums"],
            good_counts=out["good_counts"],
            first_bad=first_bad,
        )
        out["first_bad"].append(first_bad)
        out["pieces"].append((starts, counts))

    @cached_property
    def plane_shapes(self):
        """{name: (shape per token or sketch, dtype)} of the canonical planes."""
        g = self.g
        shapes = {"signs": ((g.subspaces,), np.uint8)}
        if g.vote == model.GRADED:
            shapes["vote_factors"] = ((), np.uint16)
        shapes["codes"] = ((g.code_planes, g.subspaces), np.uint8)
        shapes["factors"] = ((g.factors,), np.uint16)
        if g.sketch_bits:
            shapes["value_signs"] = ((g.value_dim // 8,), np.uint8)
            shapes["value_codes"] = ((g.sketch_bits - 1, g.value_dim // 8), np.uint8)
            shapes["value_factors"] = ((), np.uint16)
        if g.value_norm:
            shapes["value_norms"] = ((), np.uint16)
        return shapes

    def export(self, store, row, begin, count):
        sketches = self.sketches(begin, count)
        planes = {}
        for name, (shape, dtype) in self.plane_shapes.items():
            entries = sketches if name in rerank.SKETCH_PLANES else count
            planes[name] = patterned((entries, *shape), dtype)
        self.library.convert_store("export", self.geometry, store, row, begin, count, planes)
        return planes

    def sketches(self, begin, count):
        """How many of the positions [begin, begin + count) have a sketch."""
        if not self.g.sketch_bits:
            return 0
        return int(np.sum((begin + np.arange(count)) % self.g.stride == 0))
