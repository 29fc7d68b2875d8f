"""RetrievalAttention-like: a graph over the keys, in host memory."""

import numpy as np

from bench.rules.base import Answer, Rule


class Graph(Rule):
    """HNSW by inner product (FAISS's IndexHNSWFlat) over keys less their mean, which changes no
    order and finds more; a step walks it for the k best keys. The paper builds its graph from the
    prefill's queries, as keys alone are far from queries; that graph is not in FAISS, and a trace
    has too few queries for it: this is its baseline without them."""

    NAME = "hnsw"
    PAPER = "Liu et al. 2024 (arXiv:2409.10516), top-100; Malkov, Yashunin 2016 (arXiv:1603.09320)"
    GROUP = "one walk, for the mean query (the paper walks for every head)"
    LIBRARY = "faiss"
    PARAMS = {
        "links": (32, 2, 256),
        "construct": (100, 1, 4096),
        "ef": (256, 1, 65536),
        "center": (1, 0, 1),
    }

    def build(self, keys, values, queries, positions):
        import faiss

        g = self.geometry
        self.index = faiss.IndexHNSWFlat(g.head_dim, self.p.links, faiss.METRIC_INNER_PRODUCT)
        self.index.hnsw.efConstruction = self.p.construct
        self.index.hnsw.efSearch = max(self.p.ef, g.k)
        self.stats = faiss.cvar.hnsw_stats
        regions = self.prefilled(keys)
        zone = keys[regions.sink_end : regions.zone_end]
        self.mean = zone.mean(axis=0) if self.p.center and len(zone) else np.float32(0)
        self.grow(keys, regions)

    def grow(self, keys, regions):
        begin = regions.sink_end + self.index.ntotal
        if begin < regions.zone_end:
            self.index.add(np.ascontiguousarray(keys[begin : regions.zone_end] - self.mean))

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g = self.geometry
        count = min(g.k, regions.zone)
        rows = np.arange(0)
        self.stats.reset()
        if count:
            _, found = self.index.search(query.mean(axis=0, keepdims=True), count)
            rows = regions.sink_end + found[0][found[0] >= 0]
        links = self.stats.nhops * 2 * self.p.links * 4
        read = self.stats.ndis * g.key_bytes + links + len(rows) * g.value_bytes
        return Answer(rows, 0, float(read))

    def memory(self, zone):
        return 0, zone * (self.geometry.row_bytes + 2 * self.p.links * 4)
