"""Without an index: all tokens, the exact best ones, none of the zone."""

import numpy as np

from bench.rules.base import Answer, Rule, best


class Full(Rule):
    """Attention over all tokens, K and V in device memory."""

    NAME = "full"
    TAKES_K = False
    PAPER = "Vaswani et al. 2017 (arXiv:1706.03762)"
    GROUP = "each head for itself; rows are read once"

    def select(self, query, keys, values, regions):
        rows = np.arange(regions.sink_end, regions.zone_end)
        return Answer(rows, regions.zone * self.geometry.row_bytes, candidates=rows)


class Exact(Rule):
    """The k tokens with the largest mean of the group's exact scores; the rest is dropped. Reads
    every key, in device memory: what retrieval without a tail can reach at most."""

    NAME = "exact"
    PAPER = "by definition (docs/cli.md, section 5)"
    GROUP = "mean of the group's scores"

    def select(self, query, keys, values, regions):
        g = self.geometry
        zone = keys[regions.sink_end : regions.zone_end].astype(np.float64)
        scores = zone @ query.astype(np.float64).mean(axis=0)
        rows = regions.sink_end + best(scores, g.k)
        read = regions.zone * g.key_bytes + len(rows) * g.value_bytes
        return Answer(rows, read, candidates=np.arange(regions.sink_end, regions.zone_end))


class Streaming(Rule):
    """StreamingLLM: first tokens (attention sinks) and a window of the last ones. The paper has 4
    sinks; here sink and window are the harness's, as for all rules."""

    NAME = "streaming"
    TAKES_K = False
    PAPER = "Xiao et al. 2023 (arXiv:2309.17453), section 3.2; 4 sinks, rolling window"
    GROUP = "all heads alike"

    def select(self, query, keys, values, regions):
        return Answer(np.arange(0), candidates=np.arange(0))

    def memory(self, zone):
        return 0, 0
