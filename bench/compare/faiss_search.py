"""FAISS indices over the keys of all KV heads: one joined index, and one index per head.

Each search returns as many keys as our candidates of one head, also from the joined index. Scores
are inner products; codes have the 16 bytes of our sign plane where the kind has codes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import faiss
import numpy as np

from bench.compare.context import HEAD_DIM

METRIC = faiss.METRIC_INNER_PRODUCT
CODE_BYTES = HEAD_DIM // 8
TRAIN_KEYS = 65536
HNSW_LINKS = 32
BEST = 100  # of which the recall is told


@dataclass
class Kind:
    index: str  # FAISS's class
    setting: str
    build: object  # (keys [m, d], k) -> index
    key_bytes: int  # read per key; 0: depends


def trained(index, keys):
    index.train(keys[np.linspace(0, len(keys) - 1, min(len(keys), TRAIN_KEYS)).astype(np.int64)])
    index.add(keys)
    return index


def build_ivfpq(keys, k):
    lists = max(1, min(1024, len(keys) // 256))
    quantizer = faiss.IndexFlatIP(HEAD_DIM)
    index = faiss.IndexIVFPQ(quantizer, HEAD_DIM, lists, CODE_BYTES, 8, METRIC)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # no warnings
    index.nprobe = min(lists, max(lists // 8, 4 * k * lists // len(keys) + 1))
    return trained(index, keys)


def build_hnsw(keys, k):
    index = faiss.IndexHNSWFlat(HEAD_DIM, HNSW_LINKS, METRIC)
    index.hnsw.efSearch = max(k, index.hnsw.efSearch)
    index.add(keys)
    return index


def build_flat(keys, _):
    return trained(faiss.IndexFlatIP(HEAD_DIM), keys)


def build_pq_fast_scan(keys, _):
    return trained(faiss.IndexPQFastScan(HEAD_DIM, 32, 4, METRIC), keys)


def build_rabitq_fast_scan(keys, _):
    return trained(faiss.IndexRaBitQFastScan(HEAD_DIM, METRIC), keys)


KINDS = {
    "flat": Kind("IndexFlatIP", "f32", build_flat, 4 * HEAD_DIM),
    "pq-fastscan": Kind("IndexPQFastScan", "PQ32x4", build_pq_fast_scan, CODE_BYTES),
    "rabitq-fastscan": Kind("IndexRaBitQFastScan", "1 bit", build_rabitq_fast_scan, CODE_BYTES + 8),
    "ivfpq": Kind("IndexIVFPQ", "PQ16x8, nprobe {index.nprobe} of {index.nlist}", build_ivfpq, 0),
    "hnsw": Kind("IndexHNSWFlat", "M 32, efSearch {index.hnsw.efSearch}", build_hnsw, 0),
}


def missing(kind):
    """Why FAISS cannot build this kind, or None."""
    name = KINDS[kind].index
    return None if hasattr(faiss, name) else f"faiss {faiss.__version__} has no {name}"


class Search:
    """Searches of queries [m, d] in one index, on `threads` threads of FAISS's own."""

    def __init__(self, index, queries, k, threads):
        self.index, self.queries, self.threads = index, queries, threads
        self.scores = np.empty((queries.shape[1], k), np.float32)
        self.found = np.empty((queries.shape[1], k), np.int64)

    def run(self, turn):
        faiss.omp_set_num_threads(self.threads)
        queries = self.queries[turn % len(self.queries)]
        self.index.search(queries, len(self.found[0]), D=self.scores, I=self.found)
        return self.found


class HeadSearch:
    """One query in the index of each head; the heads are dealt to threads, of `pool` if given."""

    def __init__(self, indices, queries, k, threads, pool=None):
        self.parts = [
            Search(index, queries[:, head : head + 1], k, 1) for head, index in enumerate(indices)
        ]
        self.deals = [range(first, len(indices), threads) for first in range(threads)]
        self.pool = pool or ThreadPoolExecutor(threads)

    def run(self, turn):
        list(self.pool.map(lambda deal: [self.parts[head].run(turn) for head in deal], self.deals))
        return np.concatenate([part.found for part in self.parts])


def best_keys(keys, queries):
    """[m, 100]: the keys with the largest inner products with queries [m, d], exactly."""
    scores = queries @ keys.T
    count = min(BEST, len(keys))
    return np.argpartition(-scores, count - 1, axis=1)[:, :count]


def recall(found, best):
    """Mean share of `best` [m, 100] that is in `found` [m, k]."""
    return float(np.mean([np.isin(b, f).mean() for f, b in zip(found, best)]))
