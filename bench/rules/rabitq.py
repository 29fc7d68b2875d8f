"""RaBitQ: a bit per coordinate for all keys, then exact scores of the best."""

import numpy as np

from bench.rules.base import Answer, Rule, SettingError, best, pages_for


class RaBitQ(Rule):
    """Keys less their mean, randomly rotated, as signs and two factors (FAISS's IndexRaBitQ). The
    mean is taken off here: FAISS would take it off the query as well, which inner products do not
    need and which makes the estimate's error grow with the mean. A step scans all codes; the keys
    of the best `candidates` are read from host memory, and the rows of the k with the best exact
    scores fetched."""

    NAME = "rabitq"
    PAPER = "Gao, Long 2024 (arXiv:2405.12497), section 3; 1 bit, unbiased estimate"
    GROUP = "inner products with the mean query, the order of the mean score"
    LIBRARY = "faiss"
    PARAMS = {"candidates": (0.05, 1e-6, 1.0), "query_bits": (8, 0, 8)}

    def build(self, keys, values, queries, positions):
        import faiss

        g = self.geometry
        regions = self.prefilled(keys)
        self.rotation = faiss.RandomRotationMatrix(g.head_dim, g.head_dim)
        self.rotation.init(1 + g.seed)
        self.index = faiss.IndexRaBitQ(g.head_dim, faiss.METRIC_INNER_PRODUCT)
        self.index.qb = self.p.query_bits
        zone = keys[regions.sink_end : regions.zone_end]
        if not len(zone):
            raise SettingError("no keys of the prefill in the zone")
        self.mean = zone.mean(axis=0)
        self.index.train(self.rotate(zone - self.mean))
        self.grow(keys, regions)

    def rotate(self, vectors):
        return self.rotation.apply_py(np.ascontiguousarray(vectors))

    def grow(self, keys, regions):
        begin = regions.sink_end + self.index.ntotal
        if begin < regions.zone_end:
            self.index.add(self.rotate(keys[begin : regions.zone_end] - self.mean))

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g = self.geometry
        share = int(np.ceil(self.p.candidates * regions.zone))
        count = min(regions.zone, max(g.k, share))
        candidates = np.arange(0)
        mean = query.mean(axis=0, keepdims=True)
        if count:
            _, found = self.index.search(self.rotate(mean), count)
            candidates = regions.sink_end + np.sort(found[0])
        scores = keys[candidates].astype(np.float64) @ mean[0].astype(np.float64)
        rows = candidates[best(scores, g.k)]
        fetched = len(candidates) * g.key_bytes + len(rows) * g.value_bytes
        return Answer(rows, regions.zone * self.index.code_size, fetched, candidates=candidates)

    def memory(self, zone):
        code = pages_for(self.geometry.head_dim, 8) + 8
        return zone * code, zone * self.geometry.row_bytes
