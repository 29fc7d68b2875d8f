"""KIVI: K and V of all tokens in few bits."""

import numpy as np

from bench.rules.base import Answer, Rule, SettingError, softmax


def quantise(groups, bits):
    """(codes, step, least) of groups [.., size]: code * step + least, step and least in 16 bits."""
    least = groups.min(axis=-1, keepdims=True).astype(np.float16).astype(np.float32)
    most = groups.max(axis=-1, keepdims=True)
    step = ((most - least) / ((1 << bits) - 1)).astype(np.float16).astype(np.float32)
    codes = np.rint((groups - least) / np.where(step > 0, step, 1))
    return np.clip(codes, 0, (1 << bits) - 1).astype(np.uint8), step, least


def rounded(groups, bits):
    codes, step, least = quantise(groups, bits)
    return codes * step + least


class Kivi(Rule):
    """Keys per channel, in groups of `group` tokens; values per token, in groups of `group`
    channels; asymmetric, with a step and a least value per group. Tokens that do not fill a group
    yet, and the local window (512 here, 128 in the paper), stay exact. Every token is attended
    to, all in device memory."""

    NAME = "kivi"
    TAKES_K = False
    PAPER = "Liu et al. 2024 (arXiv:2402.02750), section 3; 2 bits, groups of 32, 128 exact tokens"
    GROUP = "each head for itself; rows are read once"
    PARAMS = {"bits": (2, 1, 8), "group": (32, 1, 1024)}

    def __init__(self, geometry, **params):
        super().__init__(geometry, **params)
        if geometry.value_dim % self.p.group:
            raise SettingError(
                f"group={self.p.group} does not divide value_dim {geometry.value_dim}"
            )
        self.keys = np.empty((0, geometry.head_dim))  # rounded, in float64 for the products
        self.values = np.empty((0, geometry.value_dim))

    def build(self, keys, values, queries, positions):
        self.grow(keys, values, self.prefilled(keys))

    def grow(self, keys, values, regions):
        size = self.p.group
        begin, end = len(self.keys), regions.zone // size * size
        if begin == end:
            return
        part = slice(regions.sink_end + begin, regions.sink_end + end)
        by_channel = keys[part].reshape(-1, size, keys.shape[1]).swapaxes(1, 2)
        fresh = rounded(by_channel, self.p.bits).swapaxes(1, 2).reshape(-1, keys.shape[1])
        self.keys = np.concatenate([self.keys, fresh])
        by_token = values[part].reshape(end - begin, -1, size)
        fresh = rounded(by_token, self.p.bits).reshape(end - begin, -1)
        self.values = np.concatenate([self.values, fresh])

    def select(self, query, keys, values, regions):
        self.grow(keys, values, regions)
        g = self.geometry
        begin, end = regions.sink_end, regions.sink_end + len(self.keys)
        parts = (slice(0, begin), slice(begin, end), slice(end, regions.tokens))
        k, v = (
            [stored[parts[0]], rounded_rows, stored[parts[2]]]
            for stored, rounded_rows in ((keys, self.keys), (values, self.values))
        )
        query = query.astype(np.float64)
        weights = softmax(g.scale * np.concatenate([query @ rows.T for rows in k], axis=1))
        output = sum(weights[:, part] @ rows for part, rows in zip(parts, v))
        rows = np.arange(regions.sink_end, regions.zone_end)
        return Answer(rows, self.memory(regions.zone)[0], weights=weights, output=output)

    def memory(self, zone):
        g = self.geometry
        whole = zone // self.p.group * self.p.group
        row = (g.head_dim + g.value_dim) * (self.p.bits / 8 + 4 / self.p.group)
        return whole * row + (zone - whole) * g.row_bytes, 0

    @classmethod
    def for_budget(cls, budget, geometry):
        width = geometry.head_dim + geometry.value_dim
        bits = int((budget / width - 4 / 32) * 8)
        return {"bits": min(bits, 8)} if bits >= 2 else None
