"""What the rules share: geometry, regions, the answer to a query, softmax over chosen tokens.

A rule of one KV head sees no more than it would in a decoding engine: `build` gets the tokens and
queries of the prefill, `select` one query group and the tokens up to it. Positions are those of the
sequence. Sink and local tokens are attended in full by every rule; a rule decides about the zone
between them. Bytes count what is read of the zone in one step, by the rule's own layout; sink and
local tokens, query, and what all layers share are left out alike."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np


class SettingError(ValueError):
    """A setting that a rule cannot have for this trace."""


class Regions(NamedTuple):
    sink_end: int  # sink: [0, sink_end)
    zone_end: int  # zone: [sink_end, zone_end); local: [zone_end, tokens)
    tokens: int  # that the query sees

    @property
    def zone(self):
        return self.zone_end - self.sink_end


def regions_at(position, sink, local):
    """As `pariskv eval` divides them (tools/zone.h)."""
    tokens = position + 1
    sink_end = min(sink, tokens)
    return Regions(sink_end, sink_end + max(0, tokens - local - sink_end), tokens)


@dataclass(frozen=True)
class Geometry:
    head_dim: int
    value_dim: int
    group: int
    scale: float
    sink: int
    local: int
    k: int  # rows of the zone that a step may fetch, per KV head
    key_bytes: int  # of one stored key row
    value_bytes: int
    seed: int = 0

    @property
    def row_bytes(self):
        return self.key_bytes + self.value_bytes


@dataclass
class Answer:
    """To one query group of one KV head. Without weights: exact softmax over sink, rows, local."""

    rows: np.ndarray  # positions in the zone that are attended to, by any head of the group
    device_bytes: float = 0
    host_bytes: float = 0
    candidates: "np.ndarray | None" = None  # positions that were looked at exactly, or nearly
    head_rows: "list | None" = None  # [G] where the heads have rows of their own
    weights: "np.ndarray | None" = None  # [G, tokens] the rule's own attention
    output: "np.ndarray | None" = None  # [G, dv]; without it, weights times the stored values


class Rule:
    """One KV head. Subclasses name themselves and their parameters."""

    NAME = ""
    PAPER = ""
    GROUP = ""  # how the query heads of a group share a selection
    LIBRARY = None  # module that it needs beside numpy
    TAKES_K = True  # how many rows it reads follows from k
    PARAMS = {}  # name -> (default, lowest, highest)

    def __init__(self, geometry, **params):
        self.geometry = geometry
        defaults = {name: entry[0] for name, entry in self.PARAMS.items()}
        self.p = SimpleNamespace(**{**defaults, **params})

    def prefilled(self, keys):
        """The regions that the last query of a prefill with these keys sees."""
        return regions_at(len(keys) - 1, self.geometry.sink, self.geometry.local)

    def build(self, keys, values, queries, positions):
        """Prefill: keys [t, d], values [t, dv] that its last query sees, queries [m, G, d] at
        positions [m]; all float32."""

    def select(self, query, keys, values, regions):
        """An Answer to query [G, d]; keys [t, d] and values [t, dv] end with the query's own."""
        raise NotImplementedError

    def memory(self, zone):
        """(device, host) bytes that are kept for a zone of so many tokens."""
        return zone * self.geometry.row_bytes, 0

    @classmethod
    def for_budget(cls, budget, geometry):
        """Parameters that read at most `budget` bytes per key of the zone to choose, or None."""
        return None


def softmax(logits):
    """Of the last axis, in float64."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def dense_mask(regions):
    mask = np.zeros(regions.tokens, bool)
    mask[: regions.sink_end] = True
    mask[regions.zone_end :] = True
    return mask


def subset_weights(query, keys, regions, rows, scale):
    """[G, tokens]: exact softmax over sink, rows and local; 0 elsewhere."""
    mask = dense_mask(regions)
    mask[rows] = True
    chosen = np.flatnonzero(mask)
    weights = np.zeros((len(query), regions.tokens))
    logits = scale * (query.astype(np.float64) @ keys[chosen].astype(np.float64).T)
    weights[:, chosen] = softmax(logits)
    return weights


def best(scores, count):
    """The `count` indices with the largest scores, ties by the smaller index."""
    return np.argsort(-scores, kind="stable")[:count]


def pages_for(rows, page):
    """Pages that hold `rows` rows."""
    return -(-rows // page)
