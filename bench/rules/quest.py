"""Quest: pages of tokens, chosen by an upper bound of the scores in them."""

import numpy as np

from bench.rules.base import Answer, Rule, best, pages_for


def page_bounds(query, least, most):
    """[G, pages]: sum_j max(q_j * least_j, q_j * most_j), at least <q, k> for every key k of a page
    whose coordinates lie in least [pages, d] .. most."""
    return np.maximum(query, 0) @ most.T + np.minimum(query, 0) @ least.T


class Quest(Rule):
    """Per page the coordinate-wise least and largest key; a step reads the rows of the pages with
    the largest bounds, as many as hold k rows. K, V and the bounds' numbers stay on the device."""

    NAME = "quest"
    PAPER = "Tang et al. 2024 (arXiv:2406.10774), section 3.3; pages of 16 tokens"
    GROUP = (
        "mean of the heads' bounds, a bound of the mean score (the paper has a KV head per head)"
    )
    PARAMS = {"page": (16, 1, 4096)}

    def __init__(self, geometry, **params):
        super().__init__(geometry, **params)
        self.least = np.empty((0, geometry.head_dim), np.float32)
        self.most = self.least
        self.held = 0  # tokens of the zone in them

    def build(self, keys, values, queries, positions):
        self.grow(keys, self.prefilled(keys))

    def grow(self, keys, regions):
        """Pages count from the zone's first token; the last one may still be filling."""
        if regions.zone == self.held:
            return
        page, whole = self.p.page, self.held // self.p.page
        starts = np.arange(whole * page, regions.zone, page)
        fresh = keys[regions.sink_end + starts[0] : regions.zone_end]
        edges = starts - starts[0]
        self.least = np.concatenate([self.least[:whole], np.minimum.reduceat(fresh, edges)])
        self.most = np.concatenate([self.most[:whole], np.maximum.reduceat(fresh, edges)])
        self.held = regions.zone

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g, page = self.geometry, self.p.page
        bounds = page_bounds(query, self.least, self.most).mean(axis=0)
        chosen = best(bounds, pages_for(g.k, page))
        rows = (chosen[:, None] * page + np.arange(page)).ravel()
        rows = regions.sink_end + np.sort(rows[rows < regions.zone])
        read = 2 * len(self.least) * g.key_bytes + len(rows) * g.row_bytes
        return Answer(rows, read)

    def memory(self, zone):
        g = self.geometry
        return zone * g.row_bytes + 2 * pages_for(zone, self.p.page) * g.key_bytes, 0

    @classmethod
    def for_budget(cls, budget, geometry):
        return {"page": int(-(-2 * geometry.key_bytes // budget))}
