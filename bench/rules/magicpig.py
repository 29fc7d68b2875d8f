"""MagicPIG: tokens sampled by locality sensitive hashing, weighed by their chance of being
sampled."""

import numpy as np

from bench.rules.base import Answer, Rule, dense_mask, softmax


def collision_chance(query, keys):
    """[G, n]: that one random hyperplane has query and key on the same side, 1 - angle / pi."""
    norms = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    cosine = np.clip((query @ keys.T) / np.maximum(norms, 1e-30), -1, 1)
    return 1 - np.arccos(cosine) / np.pi


def sampling_chance(chance, bits, tables):
    """That at least two of `tables` tables, each of `bits` hyperplanes, hold both in one bucket."""
    same = chance**bits
    return 1 - (1 - same) ** tables - tables * same * (1 - same) ** (tables - 1)


def hash_codes(vectors, planes, bits):
    """[n, tables] bucket numbers; planes [d, tables * bits]."""
    signs = (vectors @ planes > 0).reshape(len(vectors), -1, bits)
    return (signs @ (1 << np.arange(bits))).astype(np.uint16)


class MagicPIG(Rule):
    """Keys, less their mean, lie in `tables` hash tables of `bits` random hyperplanes. A query
    samples the keys that share its bucket in at least two tables; each counts exp(logit) /
    chance, so that numerator and denominator of attention are unbiased over the hyperplanes. Sink
    and local count as they are. Tables, K, V and the sampled attention are in host memory. How
    many rows are sampled follows from tables and bits, not from k."""

    NAME = "magicpig"
    TAKES_K = False
    PAPER = "Chen et al. 2024 (arXiv:2410.16179), section 4; K = 10 bits, L = 150 tables, two hits"
    GROUP = "each head samples for itself; a row that several sample is read once"
    PARAMS = {"bits": (10, 1, 16), "tables": (150, 2, 4096)}

    def build(self, keys, values, queries, positions):
        g = self.geometry
        random = np.random.default_rng(g.seed)
        shape = (g.head_dim, self.p.tables * self.p.bits)
        self.planes = random.standard_normal(shape).astype(np.float32)
        regions = self.prefilled(keys)
        zone = keys[regions.sink_end : regions.zone_end]
        self.mean = zone.mean(axis=0) if len(zone) else np.zeros(g.head_dim, np.float32)
        self.codes = np.empty((0, self.p.tables), np.uint16)
        self.grow(keys, regions)

    def grow(self, keys, regions):
        for begin in range(regions.sink_end + len(self.codes), regions.zone_end, 2048):
            part = keys[begin : min(begin + 2048, regions.zone_end)] - self.mean
            codes = hash_codes(part, self.planes, self.p.bits)
            self.codes = np.concatenate([self.codes, codes])

    def sample(self, query):
        """[G, n] hits of each key of the zone over the tables."""
        codes = hash_codes(query, self.planes, self.p.bits)
        return np.stack([np.count_nonzero(self.codes == code, axis=1) for code in codes])

    def log_chance(self, query, zone):
        """[G, n] ln of the chance that a key of the zone is sampled."""
        chance = collision_chance(query.astype(np.float64), (zone - self.mean).astype(np.float64))
        chance = sampling_chance(chance, self.p.bits, self.p.tables)
        return np.log(np.maximum(chance, 1e-300))

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g = self.geometry
        zone = slice(regions.sink_end, regions.zone_end)
        logits = g.scale * (query.astype(np.float64) @ keys.astype(np.float64).T)
        hits = self.sample(query)
        sampled = hits >= 2
        logits[:, zone] -= self.log_chance(query, keys[zone])
        mask = np.broadcast_to(dense_mask(regions), logits.shape).copy()
        mask[:, zone] |= sampled
        weights = softmax(np.where(mask, logits, -np.inf))
        rows = regions.sink_end + np.flatnonzero(sampled.any(axis=0))
        read = 4 * hits.sum() + len(rows) * g.row_bytes  # ids in the buckets, then rows
        heads = [regions.sink_end + np.flatnonzero(head) for head in sampled]
        return Answer(rows, 0, float(read), head_rows=heads, weights=weights)

    def memory(self, zone):
        tables = self.p.tables * 4 * (zone + (1 << self.p.bits))  # ids, where buckets begin
        return 0, tables + zone * self.geometry.row_bytes
