"""Plans, and a decoding step on numpy arrays: retrieve, fetch, attend."""

import ctypes as c

import numpy as np
from binding import aligned_bytes, pointer, tensor
from capi import Handle
from capi_structs import Attention, Hits, PlanDesc, Rows
from structs import I64, P


class Plan(Handle):
    def __init__(self, machine, index, config, batch, query_heads, sequences=None, **desc):
        super().__init__(machine, "pkv_plan_destroy")
        if sequences is not None:
            sequences = np.array(sequences, np.int32)
        self.index, self.batch, self.query_heads = index, batch, query_heads
        self.k, self.tail = int(config.get("k")), config.get("tail")
        self.tail_samples = int(config.get("tail_samples"))
        desc = PlanDesc(
            batch=batch,
            query_heads=query_heads,
            sequences=None if sequences is None else pointer(sequences),
            **desc,
        )
        machine.call("pkv_plan_create", index, config, c.byref(desc), self.out)
        out = I64()
        machine.call("pkv_plan_candidates", self, c.byref(out))
        self.candidates = out.value
        machine.call("pkv_plan_scratch_bytes", self, c.byref(out))
        self.scratch_bytes = out.value


class Step:
    """Everything that one decoding step on a plan writes; fresh arrays hold 0xAA bytes."""

    def __init__(self, plan, stream=None):
        self.plan, self.machine = plan, plan.machine
        self.stream = stream or self.machine.stream
        g = plan.index.geometry
        b, h, hq, k = plan.batch, g.kv_heads, plan.query_heads, plan.k
        self.positions = patterned((b, h, k), np.int32)
        self.scores = patterned((b, h, k), np.float32)
        self.counts = patterned((b, h), np.int32)
        self.candidates = patterned((b, h, plan.candidates), np.int32)
        self.candidate_counts = patterned((b, h), np.int32)
        self.estimates = patterned((b, hq, plan.candidates), np.float32)
        self.rest_lse = patterned((b, hq), np.float32)
        self.sample_estimates = patterned((b, hq, plan.tail_samples), np.float32)
        self.output = patterned((b, hq, g.value_dim), np.float32)
        self.lse = patterned((b, hq), np.float32)
        self.row_keys = self.row_values = None
        self.scratch = aligned_bytes(plan.scratch_bytes)
        names = [name for name, *_ in Hits._fields_[2:]]
        self.hits = Hits(**{name: pointer(getattr(self, name)) for name in names})

    def retrieve(self, query, dtype=None):
        """query [b, hq, d]"""
        self.machine.call(
            "pkv_retrieve",
            self.plan,
            self.stream,
            c.byref(tensor(query, dtype)),
            P(pointer(self.scratch)),
            c.byref(self.hits),
        )
        self.machine.call("pkv_stream_sync", self.stream)
        return self

    def found(self, entry=0, head=0):
        """Positions in use of one row, best first."""
        return self.positions[entry, head, : self.counts[entry, head]]

    def chosen(self, entry=0, head=0):
        return self.candidates[entry, head, : self.candidate_counts[entry, head]]

    def fetch(self, keys, values=None, dtype=None):
        """keys [sequences, h, n, d], values [sequences, h, n, dv] or None."""
        shape = self.positions.shape
        self.row_keys = patterned((*shape, keys.shape[-1]), keys.dtype)
        self.row_values = None
        if values is not None:
            self.row_values = patterned((*shape, values.shape[-1]), values.dtype)
        source = Rows(keys=tensor(keys, dtype), values=tensor(values, dtype))
        rows = Rows(keys=tensor(self.row_keys, dtype), values=tensor(self.row_values, dtype))
        self.machine.call(
            "pkv_fetch",
            self.plan,
            self.stream,
            c.byref(source),
            c.byref(self.hits),
            c.byref(rows),
        )
        self.machine.call("pkv_stream_sync", self.stream)
        return self

    def attend(self, query, dense=(), zone=True, dtype=None):
        """dense: (keys [b, h, t, d], values [b, h, t, dv], lengths or None); zone: with the hits
        and the tail."""
        attention = Attention(
            query=tensor(query, dtype),
            dense_count=len(dense),
            output=tensor(self.output),
            lse=pointer(self.lse),
            scratch=pointer(self.scratch),
        )
        kept = []
        for i, (keys, values, lengths) in enumerate(dense):
            lengths = None if lengths is None else np.array(lengths, np.int64)
            kept.append(lengths)
            attention.dense[i].rows = Rows(keys=tensor(keys, dtype), values=tensor(values, dtype))
            attention.dense[i].lengths = None if lengths is None else pointer(lengths)
        attention.rows = Rows()
        if zone:
            attention.hits = c.pointer(self.hits)
            if self.plan.k:
                attention.rows = Rows(
                    keys=tensor(self.row_keys, dtype), values=tensor(self.row_values, dtype)
                )
        self.machine.call("pkv_attend", self.plan, self.stream, c.byref(attention))
        self.machine.call("pkv_stream_sync", self.stream)
        return self


def patterned(shape, dtype):
    """Memory that shows where nothing was written."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).reshape(-1)[...] = 0xAA
    return array
