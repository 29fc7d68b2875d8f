"""Small synthetic layers for the tests of bench/rules."""

import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="the rules need numpy: pip install numpy")

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests" / "cli"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from cli_files import safetensors_bytes  # noqa: E402

from bench.rules import base  # noqa: E402


def geometry(d=16, group=2, k=10, sink=4, local=8, scale=0.25, seed=0):
    row = {"key_bytes": 2 * d, "value_bytes": 2 * d}
    return base.Geometry(d, d, group, scale, sink, local, k, **row, seed=seed)


class Layer:
    """One KV head: keys that drift, values, queries at every position from `first` on."""

    def __init__(self, n=200, first=150, d=16, group=2, seed=3):
        random = np.random.default_rng(seed)
        drift = np.linspace(0, 1, n)[:, None] * random.standard_normal(d)
        self.keys = (random.standard_normal((n, d)) + drift + 1).astype(np.float32)
        self.values = random.standard_normal((n, d)).astype(np.float32)
        self.positions = np.arange(first, n)
        count = n - first
        self.queries = (2 * random.standard_normal((count, group, d))).astype(np.float32)

    def build(self, rule, fit):
        """`rule` after a prefill with the first `fit` queries."""
        tokens = int(self.positions[fit - 1]) + 1
        rule.build(
            self.keys[:tokens], self.values[:tokens], self.queries[:fit], self.positions[:fit]
        )
        return rule

    def ask(self, rule, i):
        """(answer, regions, query) of query i."""
        regions = self.regions(rule, i)
        t = regions.tokens
        query = self.queries[i]
        return rule.select(query, self.keys[:t], self.values[:t], regions), regions, query

    def regions(self, rule, i):
        g = rule.geometry
        return base.regions_at(int(self.positions[i]), g.sink, g.local)


def safetensors(metadata=None, **arrays):
    """Bytes of a file."""
    return safetensors_bytes(arrays, metadata)


def trace_arrays(n=180, queries=12, heads=2, group=2, d=16, seed=4):
    random = np.random.default_rng(seed)
    shapes = {"k": (heads, n, d), "v": (heads, n, d), "q": (queries, heads * group, d)}
    arrays = {
        name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()
    }
    return {**arrays, "q_pos": np.arange(n - queries, n, dtype=np.int64)}
