"""Rules that keep k rows of the zone and forget the others: SnapKV, H2O.

Both watch attention weights. A trace has some of a decoding's queries and none of the prefill, so
the trace's first queries stand for the prompt's last ones."""

import numpy as np

from bench.rules.base import Answer, Rule, best, softmax, subset_weights


def causal_weights(query, keys, position, scale):
    """[tokens]: softmax weights of one query group at `position`, summed over the group."""
    logits = scale * (query.astype(np.float64) @ keys[: position + 1].astype(np.float64).T)
    return softmax(logits).sum(axis=0)


def max_pool(values, kernel):
    """Largest of the `kernel` values around each one."""
    half = kernel // 2
    padded = np.pad(values, half, constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, kernel).max(axis=1)[: len(values)]


class KeptRows(Rule):
    """k rows in device memory, nothing else of the zone."""

    def kept(self, rows):
        return Answer(rows, len(rows) * self.geometry.row_bytes)

    def memory(self, zone):
        return min(zone, self.geometry.k) * self.geometry.row_bytes, 0


class SnapKV(KeptRows):
    """The weights that the last `window` prompt queries give to each earlier token, summed, then
    max-pooled along the tokens; the k tokens with the most stay for good. What leaves the local
    window later is dropped, which holds the rows at k, or kept with grow=1, as in the paper."""

    NAME = "snapkv"
    PAPER = "Li et al. 2024 (arXiv:2404.14469), section 4; window 32, max pooling over 7 tokens"
    GROUP = "sum of the group's weights (the paper has a KV head per head)"
    PARAMS = {"window": (32, 1, 4096), "kernel": (7, 1, 999), "grow": (0, 0, 1)}

    def build(self, keys, values, queries, positions):
        g = self.geometry
        regions = self.prefilled(keys)
        votes = np.zeros(len(keys))
        for query, position in list(zip(queries, positions))[-self.p.window :]:
            votes[: position + 1] += causal_weights(query, keys, position, g.scale)
        zone = slice(regions.sink_end, regions.zone_end)
        pooled = max_pool(votes, self.p.kernel)[zone]
        self.rows = regions.sink_end + np.sort(best(pooled, g.k))
        self.seen = regions.zone_end

    def select(self, query, keys, values, regions):
        if self.p.grow:
            return self.kept(np.concatenate([self.rows, np.arange(self.seen, regions.zone_end)]))
        return self.kept(self.rows)


class H2O(KeptRows):
    """Heavy hitters: each token's weights are summed over all queries so far, taken among the
    tokens that are still kept; when the zone gains a token, the one with the least sum goes, for
    good. The paper splits its budget evenly into heavy hitters and recent tokens; here k is the
    former, the local window the latter."""

    NAME = "h2o"
    PAPER = "Zhang et al. 2023 (arXiv:2306.14048), section 4, algorithm 1"
    GROUP = "sum of the group's weights (the paper has a KV head per head)"

    def build(self, keys, values, queries, positions):
        g = self.geometry
        self.sums = np.zeros(len(keys))
        for query, position in zip(queries, positions):
            self.sums[: position + 1] += causal_weights(query, keys, position, g.scale)
        regions = self.prefilled(keys)
        self.rows = np.arange(regions.sink_end, regions.zone_end)
        self.seen = regions.zone_end
        self.evict()

    def evict(self):
        """Sums do not change meanwhile, so one by one and all at once come to the same."""
        self.rows = np.sort(self.rows[best(self.sums[self.rows], self.geometry.k)])

    def select(self, query, keys, values, regions):
        self.sums = np.pad(self.sums, (0, max(0, regions.tokens - len(self.sums))))
        self.rows = np.concatenate([self.rows, np.arange(self.seen, regions.zone_end)])
        self.seen = regions.zone_end
        self.evict()
        weights = subset_weights(query, keys, regions, self.rows, self.geometry.scale)
        self.sums[: regions.tokens] += weights.sum(axis=0)
        return self.kept(self.rows)
