"""PQCache: the best keys by product quantisation, trained on the keys of the prefill."""

import numpy as np

from bench.rules.base import Answer, Rule, SettingError


class PQCache(Rule):
    """`m` sub-vectors of a key, each by the nearest of 2^bits k-means centroids (FAISS's
    IndexPQ). A step scans all codes, which the paper prefetches to the device, and fetches the k
    best rows from host memory."""

    NAME = "pqcache"
    PAPER = "Zhang et al. 2024 (arXiv:2407.12820), section 3; m = 2, b = 6"
    GROUP = "inner products with the mean query, the order of the mean score"
    LIBRARY = "faiss"
    PARAMS = {"m": (2, 1, 512), "bits": (6, 1, 12)}

    def __init__(self, geometry, **params):
        super().__init__(geometry, **params)
        if geometry.head_dim % self.p.m:
            raise SettingError(f"m={self.p.m} does not divide head_dim {geometry.head_dim}")

    def build(self, keys, values, queries, positions):
        import faiss

        g = self.geometry
        regions = self.prefilled(keys)
        if regions.zone < 1 << self.p.bits:
            raise SettingError(
                f"{regions.zone} keys of the prefill for {1 << self.p.bits} centroids"
            )
        self.index = faiss.IndexPQ(g.head_dim, self.p.m, self.p.bits, faiss.METRIC_INNER_PRODUCT)
        self.index.pq.cp.min_points_per_centroid = 1  # no warnings
        self.index.pq.cp.seed = 1234 + g.seed
        self.index.train(np.ascontiguousarray(keys[regions.sink_end : regions.zone_end]))
        self.grow(keys, regions)

    def grow(self, keys, regions):
        begin = regions.sink_end + self.index.ntotal
        if begin < regions.zone_end:
            self.index.add(np.ascontiguousarray(keys[begin : regions.zone_end]))

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g = self.geometry
        count = min(g.k, regions.zone)
        rows = np.arange(0)
        if count:
            _, found = self.index.search(query.mean(axis=0, keepdims=True), count)
            rows = regions.sink_end + found[0]
        read = regions.zone * self.index.code_size + self.centroid_bytes()
        return Answer(rows, read, len(rows) * g.row_bytes)

    def centroid_bytes(self):
        return 2 * self.geometry.head_dim << self.p.bits  # 16 bits a number

    def memory(self, zone):
        codes = -(-self.p.m * self.p.bits // 8)
        return zone * codes + self.centroid_bytes(), zone * self.geometry.row_bytes

    @classmethod
    def for_budget(cls, budget, geometry):
        divisors = [m for m in range(1, geometry.head_dim + 1) if geometry.head_dim % m == 0]
        return {"m": max(m for m in divisors if m <= max(1, budget)), "bits": 8}
