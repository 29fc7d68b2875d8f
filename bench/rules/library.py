"""This library, through its Python package: profiles `paper` and `default`."""

import numpy as np

from bench.rules.base import Answer, Rule, SettingError, regions_at, subset_weights

PLANES = {1: 3, 2: 3, 3: 4}  # of magnitudes: polar4, scalar4, scalar5
POLAR4, GRADED = 1, 2


class Library(Rule):
    """All KV heads of a layer at once. Parameters are the library's options. A codec is fitted to
    the zone and the queries of the prefill, the index grows with the zone, and a step is
    retrieve, fetch, attend. Records are in device memory, K and V of the zone in host memory.
    Bytes are those of canonical records (docs/format.md): sign planes and vote factors of all
    keys; whole records of the candidates and of the tail's samples; the tail's sketches and mean
    value; k rows."""

    NAME = PROFILE = "default"
    PAPER = "docs/algorithm.md"
    GROUP = "one selection, by the option rank"
    LIBRARY = "pariskv"
    PARAMS = None  # the library knows them

    def __init__(self, geometry, **options):
        import pariskv

        self.geometry, self.package = geometry, pariskv
        self.options = {"k": geometry.k, "seed": geometry.seed, **options}
        self.k = int(self.options["k"])

    def build(self, trace, fit_queries, fit_position, last_position):
        g = self.geometry
        regions = regions_at(fit_position, g.sink, g.local)
        zone = slice(regions.sink_end, regions.zone_end)
        queries = trace.queries[:fit_queries].swapaxes(0, 1) if fit_queries else None
        options = {**self.options, "scale": trace.scale}
        try:
            self.codec = self.package.Codec.fit(
                trace.keys[:, zone], queries, trace.values[:, zone], profile=self.PROFILE, **options
            )
            capacity = max(1, regions_at(last_position, g.sink, g.local).zone)
            self.index = self.package.Index(self.codec, capacity)
        except self.package.Error as error:
            raise SettingError(str(error)) from error
        self.tail = self.codec.config["tail"]
        self.held = 0
        self.grow(trace, regions)

    def grow(self, trace, regions):
        part = slice(regions.sink_end + self.held, regions.zone_end)
        if part.start < part.stop:
            self.index.append(trace.keys[:, part], trace.values[:, part])
            self.held = regions.zone

    def select_all(self, trace, number, regions):
        """Answers of all KV heads to query `number` of the trace."""
        self.grow(trace, regions)
        query = trace.queries[number : number + 1]
        heads = trace.kv_heads
        zone = slice(regions.sink_end, regions.zone_end)
        dense = [
            (trace.keys[None, :, part], trace.values[None, :, part])
            for part in (slice(0, regions.sink_end), slice(regions.zone_end, regions.tokens))
            if part.start < part.stop
        ]
        output = np.empty((1, query.shape[1], trace.values.shape[2]), np.float32)
        hits = self.index.retrieve(query)
        rows = None
        if self.k:
            rows = self.index.fetch(
                hits,
                trace.keys[None, :, zone],
                trace.values[None, :, zone],
                query_heads=query.shape[1],
            )
        self.index.attend(query, hits, rows, dense=dense, out=output)
        outputs = output[0].reshape(heads, trace.group, -1)
        return [self.answer(trace, number, regions, hits, h, outputs[h]) for h in range(heads)]

    def answer(self, trace, number, regions, hits, head, output):
        g = self.geometry
        candidates = hits.candidates[0, head, : hits.candidate_counts[0, head]]
        positions = hits.positions[0, head, : hits.counts[0, head]]
        rows = regions.sink_end + positions.astype(np.int64)
        weights = None
        if self.tail == "drop":  # else a pseudo-token has a share, which is no token's
            query = trace.queries[number, head * g.group : (head + 1) * g.group]
            seen = trace.keys[head, : regions.tokens]
            weights = subset_weights(query, seen, regions, rows, g.scale)
        return Answer(
            rows,
            self.step_bytes(regions.zone, len(candidates), len(positions)),
            len(rows) * g.row_bytes,
            candidates=regions.sink_end + candidates.astype(np.int64),
            weights=weights,
            output=output,
        )

    def step_bytes(self, zone, candidates, fetched):
        """Of device memory, per KV head."""
        shape, width = self.codec.geometry, self.geometry.head_dim // 8
        factors = width if shape.codec == POLAR4 else 1
        record = width + PLANES[shape.codec] * width + 2 * factors
        scan = zone * (width + (2 if shape.vote == GRADED else 0))
        occupancy = 0 if shape.vote == GRADED else width * 256 * 4
        total = scan + occupancy + candidates * record
        if self.tail == "drop":
            return total
        stride = shape.sketch_stride or 1
        samples = min(-(-zone // stride), int(self.codec.config["tail_samples"]))
        sketch = self.geometry.value_dim // 8 * (shape.sketch_bits or 0) + 2
        total += samples * record + 4 * self.geometry.value_dim
        if self.tail == "sampled":
            total += samples * sketch
        if self.tail in ("sketch2", "sketch4"):
            total += (max(0, candidates - fetched) + samples) * sketch
        return total

    def memory(self, zone):
        rows = zone * self.geometry.row_bytes if self.k else 0
        return zone * self.index.stats().bytes_per_key, rows

    @classmethod
    def for_budget(cls, budget, geometry):
        """As many candidates as the budget holds beside the scan; the tail's samples come on
        top."""
        if cls.PROFILE != "default":
            return None
        scan, record = geometry.head_dim // 8 + 2, geometry.head_dim // 2 + 2
        share = (budget - scan) / record
        return {"candidates": f"{min(1.0, share):.4f}"} if share > 0.001 else None


class Paper(Library):
    """The profile `paper`: the ParisKV paper's choices, as docs/algorithm.md states them."""

    NAME = PROFILE = "paper"
    PAPER = "ParisKV (arXiv:2602.07721), as docs/algorithm.md states it"
    GROUP = "mean of the heads' estimates"
