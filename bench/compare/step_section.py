"""The whole decode step against full attention over the same tokens."""

from bench.compare import ours, torch_attention
from bench.compare.context import DENSE, HEAD_DIM, KV_HEADS, context_bytes
from bench.compare.options import TORCH
from bench.compare.section import GIB, Section, layer_bytes, layer_count

DTYPE_BYTES = {"bf16": 2, "f32": 4}


class StepSection(Section):
    def __init__(self, room, n, share):
        size = room.options.memory * GIB
        f32_bytes = 2 * context_bytes(n)  # of the one layer that is held in f32
        wants_f32 = room.wants("matmul-f32", "sdpa-f32")
        layers = layer_count(n, room.options.layers, size - f32_bytes * wants_f32)
        super().__init__(room, n, share, layers)
        self.fits_f32 = layers * layer_bytes(n) + f32_bytes <= size
        self.in_f32 = None
        self.add_ours(
            "step",
            ours.StepMethod,
            tail="sampled",
            bytes=ours.step_bytes(n, share),
            setting="pkv_step_run",
            is_baseline=True,
        )
        self.add_read()
        for name in TORCH:
            if room.wants(name):
                self.add_attention(name, *name.split("-"))

    def add_attention(self, name, form, dtype):
        if dtype == "f32" and not self.fits_f32:
            self.room.leave_out(name, self.n, "K and V in f32 do not fit into --memory")
            return
        layers = self.pairs(dtype)
        attention = torch_attention.Attention(form, layers, self.queries)
        keys, values = self.pilot_layer.context.part("zone")
        kind = layers[0][0].dtype
        pilot_layers = [(keys.to(kind), values.to(kind))]
        pilot = torch_attention.Attention(form, pilot_layers, self.queries)
        record = self.record(
            name,
            "torch",
            "full_attention",
            dtype=dtype,
            layers=len(layers),
            bytes=KV_HEADS * (self.n + DENSE) * 2 * HEAD_DIM * DTYPE_BYTES[dtype],
            setting=f"n + {DENSE} tokens",
        )
        self.methods.append(self.method(record, attention, pilot))

    def pairs(self, dtype):
        """(keys, values) of every layer; in f32 of one."""
        if dtype == "bf16":
            return [(context.keys, context.values) for context in self.contexts]
        if self.in_f32 is None:
            context = self.contexts[0]
            self.in_f32 = [(context.keys.float(), context.values.float())]
        return self.in_f32

    def results(self):
        title = f"decode step, n = {self.n}, candidates {self.share:.2%}, {len(self.layers)} layers"
        return self.room.measure(title, self.methods)
