"""Layers of n keys, and the methods that both sections have."""

from bench.compare import ours, torch_attention
from bench.compare.context import (
    HEAD_DIM,
    KV_HEADS,
    QUERY_HEADS,
    context_bytes,
    make_context,
    make_queries,
)
from bench.compare.measure import Method

GIB = 1 << 30
PILOT_BYTES = 1 << 20


def layer_bytes(n):
    return context_bytes(n) + KV_HEADS * n * ours.INDEX_BYTES


def layer_count(n, wanted, room):
    """Layers that rotate: as many as `room` bytes hold, at least one."""
    return max(1, min(wanted, int(room // layer_bytes(n))))


class Section:
    def __init__(self, room, n, share, layers):
        self.room, self.library, self.n, self.share = room, room.library, n, share
        self.contexts = [make_context(n, seed) for seed in range(layers)]
        codec = ours.fit(self.library, self.contexts[0])
        self.layers = [ours.Layer(self.library, codec, context) for context in self.contexts]
        self.pilot_layer = ours.pilot_layer(self.library, codec)
        self.queries = make_queries(room.options.repeat + 1, seed=95)
        self.methods = []

    def record(self, method, backend, stage, **fields):
        """What the results say about a method; `work` is in keys times queries."""
        return {
            "backend": backend,
            "stage": stage,
            "method": method,
            "n": self.n,
            "batch": 1,
            "kv_heads": KV_HEADS,
            "query_heads": QUERY_HEADS,
            "head_dim": HEAD_DIM,
            "k": None,
            "candidates": None,
            "profile": None,
            "dtype": "bf16",
            "tail": None,
            "rows": "host",
            "cold": True,
            "threads": self.room.options.threads,
            "runs": self.room.options.repeat,
            "bytes": None,
            "work": KV_HEADS * self.n,
            **fields,
        }

    @staticmethod
    def method(record, measured, pilot):
        return Method(record, measured.run, lambda: pilot.run(0))

    def add_ours(self, method, kind, **fields):
        measured = kind(self.library, self.layers, self.queries, self.share)
        pilot = kind(self.library, [self.pilot_layer], self.queries, self.share)
        fields = {
            "k": ours.K,
            "candidates": self.share,
            "profile": "default",
            "threads": self.library.threads,
            "layers": len(self.layers),
            **fields,
        }
        record = self.record(method, self.library.backend, fields.pop("stage", method), **fields)
        self.methods.append(self.method(record, measured, pilot))
        return measured

    def add_read(self):
        size = KV_HEADS * self.n * ours.VOTE_BYTES
        read = torch_attention.PlainRead(size, len(self.layers))
        pilot = torch_attention.PlainRead(min(size, PILOT_BYTES), 1)
        record = self.record(
            "read", "torch", "read", bytes=size, dtype="i64", setting="sum of the vote's bytes"
        )
        self.methods.append(self.method(record, read, pilot))
