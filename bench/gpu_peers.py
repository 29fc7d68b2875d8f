"""python -m bench.gpu_peers: a decode step by CUDA graph replay, and torch's full attention over as
many tokens, in one process. One JSON object a line (the rows of `pariskv bench --json`, with what
was special); tools/gpu_check collects them. Needs torch with a device.

Layers take turns, each with records and dense tokens of its own, so that these are cold in the
device's cache; K and V of the zone lie in pinned host memory, of as many layers as --memory holds.
K and V of a token lie side by side. Every call has a query of its own, new for every replay: one
that has nothing to do with those before, so that every row is cold, or, with --row-cache, a layer's
queries drift, so that rows come again; `repeats` says how many did. Times are between events around
a replay, divided by its calls."""

import argparse
import ctypes as c
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.compare import capi
from bench.compare.capi import I32, I64, Dense, PlanDesc, RowCacheStats, Rows, Step, tensor

QUERY_HEADS, KV_HEADS, HEAD_DIM, K = 32, 8, 128, 100
DENSE = (128, 768)  # tokens attended in full: the sink, the newest
ROW_BYTES = 2 * HEAD_DIM  # bf16
VOTE_BYTES = HEAD_DIM // 8 + 2
CALLS = 16  # of a graph
GIB = 1 << 30
DEVICE_CACHE = 160 << 20  # more than devices have
MAX_LAYERS = 28
DEVICE = "cuda"
ATTENTION = {
    "torch cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch flash": SDPBackend.FLASH_ATTENTION,
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("backend", "cuda"),
        ("n", "131072"),
        ("batches", ""),
        ("candidates", "0.02,0.05"),
        ("tail", "mean"),
        ("attention", ",".join(ATTENTION)),
    ):
        parser.add_argument(f"--{name}", default=value)
    parser.add_argument("--prefix", type=Path, default=Path("build/cuda"))
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--memory", type=int, default=8, help="GiB of pinned host memory")
    parser.add_argument("--row-cache", type=int, default=512, help="rows kept; 0: none")
    parser.add_argument(
        "--drift", type=float, default=0.4, help="of a layer's next query, what is new in it"
    )
    parser.add_argument("--seconds", type=float, default=150, help="after that, rows are left out")
    return parser.parse_args()


def base_row(backend, stage, batch, n, **more):
    return {
        "backend": backend,
        "stage": stage,
        "n": n,
        "batch": batch,
        "kv_heads": KV_HEADS,
        "query_heads": QUERY_HEADS,
        "head_dim": HEAD_DIM,
        "k": K,
        "candidates": None,
        "profile": "default",
        "dtype": "bf16",
        "tail": None,
        "rows": "device",
        "cold": True,
        "threads": 1,
        **more,
    }


def times_of(replays):
    return {
        "min_us": round(min(replays), 3),
        "median_us": round(statistics.median(replays), 3),
        "max_us": round(max(replays), 3),
    }


def randn(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)


def capture(stream, calls):
    """A graph of the calls, after they ran once."""
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def measure(stream, run, calls, renew, repeat):
    """Microseconds of one call, for each of `repeat` runs with new queries."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    with torch.cuda.stream(stream):
        for i in range(-2, repeat):
            renew()
            stream.synchronize()
            begin.record(stream)
            run()
            end.record(stream)
            stream.synchronize()
            if i >= 0:
                found.append(begin.elapsed_time(end) * 1000 / calls)
    return found


# ---- Full attention ------------------------------------------------------------------


def grouped(query, keys, values):
    """The heads of a group are its rows of queries."""
    rows = query.view(query.shape[0], KV_HEADS, -1, HEAD_DIM)
    return scaled_dot_product_attention(rows, keys, values)


def by_head(query, keys, values):
    return scaled_dot_product_attention(query.unsqueeze(2), keys, values, enable_gqa=True)


def full_attention(stream, batch, n, repeat, wanted):
    """The faster of two forms, of each of torch's backends that is wanted."""
    tokens = n + sum(DENSE)
    layer_bytes = 2 * batch * KV_HEADS * tokens * ROW_BYTES
    layers = min(CALLS, max(2, -(-DEVICE_CACHE // layer_bytes) + 1))
    pairs = [[randn(batch, KV_HEADS, tokens, HEAD_DIM) for _ in "kv"] for _ in range(layers)]
    queries = randn(CALLS, batch, QUERY_HEADS, HEAD_DIM)
    for name in filter(None, wanted.split(",")):
        backend = ATTENTION[name]
        row = base_row(name, "full_attention", batch, n, k=None, profile=None, bytes=layer_bytes)
        found, troubles = {}, []
        for form in (grouped, by_head):
            calls = [
                lambda i=i, form=form: form(queries[i], *pairs[i % layers]) for i in range(CALLS)
            ]
            try:
                with sdpa_kernel(backend):
                    graph = capture(stream, calls)
                found[form.__name__] = measure(stream, graph.replay, CALLS, queries.normal_,
                                              repeat)  # fmt: skip
            except RuntimeError as error:
                troubles.append(f"{form.__name__}: {str(error).strip().splitlines()[-1]}")
                torch.cuda.synchronize()
        if found:
            best = min(found, key=lambda form: statistics.median(found[form]))
            row.update(times_of(found[best]), setting=f"graph of {CALLS}, {best}")
        else:
            row["trouble"] = "; ".join(troubles)
        yield row


# ---- Ours ----------------------------------------------------------------------------


class Zone:
    """One piece of pinned memory, filled once, that every shape cuts its K and V from."""

    def __init__(self, size):
        pins = DEVICE == "cuda"
        self.memory = torch.empty(size // 2, dtype=torch.bfloat16, pin_memory=pins)
        for piece in self.memory.split(GIB // 8):
            piece.copy_(randn(piece.numel()))

    def pairs(self, batch, n, count):
        """K and V, [b, h, n, d], of at most `count` layers, side by side."""
        size = batch * KV_HEADS * n * HEAD_DIM
        fits = min(count, self.memory.numel() // (2 * size))
        whole = self.memory[: fits * 2 * size].view(fits, batch, KV_HEADS, n, 2, HEAD_DIM)
        return [(rows[..., 0, :], rows[..., 1, :]) for rows in whole]


def rows_of(keys, values):
    return Rows(keys=tensor(keys), values=tensor(values))


class Steps:
    """CALLS steps over layers in turn."""

    def __init__(self, library, zone, batch, n, share, tail, cached_rows=0, drift=1.0):
        self.library = library
        self.drift = drift
        layers = min(MAX_LAYERS, -(-DEVICE_CACHE // (batch * KV_HEADS * n * VOTE_BYTES)) + 1)
        pairs = zone.pairs(batch, n, layers)
        if not pairs:
            raise RuntimeError("K and V do not fit into --memory")
        self.config = capi.config(library, head_dim=HEAD_DIM, candidates=f"{share:.6f}", tail=tail)
        sample = [view[0, :, :65536].to(DEVICE) for view in pairs[0]]
        codec = capi.fit(library, self.config, sample[0], randn(QUERY_HEADS, 64, HEAD_DIM),
                         sample[1])  # fmt: skip
        self.queries = randn(CALLS, batch, QUERY_HEADS, HEAD_DIM)
        self.output = torch.zeros_like(self.queries)
        self.plans, self.steps, self.caches, self.append_us = [], [], [], []
        for i in range(layers):
            index = self.index(codec, batch, n, *pairs[i % len(pairs)])
            self.plans.append(self.plan(index, batch))
            if cached_rows:
                self.caches.append(self.row_cache(index, cached_rows))
        dense = [
            [(randn(batch, KV_HEADS, t, HEAD_DIM), randn(batch, KV_HEADS, t, HEAD_DIM))
             for t in DENSE]
            for _ in range(layers)
        ]  # fmt: skip
        for i in range(CALLS):
            self.steps.append(self.step(i, dense[i % layers], pairs[i % layers % len(pairs)]))
        self.dense, self.pairs = dense, pairs

    def index(self, codec, batch, n, keys, values):
        made = capi.Handle(self.library, "index", codec)
        call = self.library.call
        call("pkv_index_create", self.library.device, codec, I32(batch), I64(n), made.out)
        for sequence in range(batch):
            views = [tensor(view[sequence]) for view in (keys, values)]
            begin = time.monotonic()
            call("pkv_index_append_sync", made, self.library.stream, I32(sequence),
                 *map(c.byref, views))  # fmt: skip
            self.append_us.append(round((time.monotonic() - begin) * 1e6))
        return made

    def plan(self, index, batch):
        made = capi.Handle(self.library, "plan", index)
        desc = PlanDesc(batch=batch, query_heads=QUERY_HEADS, owns_scratch=1)
        self.library.call("pkv_plan_create", index, self.config, c.byref(desc), made.out)
        return made

    def row_cache(self, index, rows):
        made = capi.Handle(self.library, "row_cache", index)
        dtype = capi.DTYPES[str(self.queries.dtype)]
        self.library.call("pkv_row_cache_create", index, self.library.stream, I32(dtype), I32(rows),
                          made.out)  # fmt: skip
        return made

    def renew(self):
        """New queries; those of a layer, in the order of its calls, differ by the drift."""
        kept = (1 - self.drift**2) ** 0.5
        for call in range(CALLS):
            before = call - len(self.plans)
            last = self.queries[before if before >= 0 else self.last_call(call)]
            self.queries[call].copy_(kept * last + self.drift * torch.randn_like(last))

    def last_call(self, call):
        """Of a layer that begins with this one."""
        return call + (CALLS - 1 - call) // len(self.plans) * len(self.plans)

    def repeats(self):
        """Share of the rows that came again, since the last time this was asked."""
        found = looked_up = 0
        for cache in self.caches:
            stats = RowCacheStats()
            self.library.call("pkv_row_cache_stats_sync", cache, self.library.stream,
                              c.byref(stats))  # fmt: skip
            found, looked_up = found + stats.found, looked_up + stats.looked_up
        before = getattr(self, "counted", (0, 0))
        self.counted = (found, looked_up)
        return round((found - before[0]) / max(1, looked_up - before[1]), 4)

    def step(self, call, dense, pair):
        parts = [rows_of(*part) for part in dense]
        step = Step(
            dense_count=2,
            query=tensor(self.queries[call]),
            dense=(Dense * 4)(*(Dense(rows=rows) for rows in parts)),
            source=rows_of(*pair),
            output=tensor(self.output[call]),
        )
        if self.caches:
            step.row_cache = self.caches[call % len(self.plans)].handle
        step.kept += parts
        return step

    def calls(self):
        def run(i):
            plan = self.plans[i % len(self.plans)]
            step = c.byref(self.steps[i])
            self.library.call("pkv_step_run", plan, self.library.stream, step)

        return [lambda i=i: run(i) for i in range(CALLS)]

    def describe(self):
        out = c.c_char_p()
        self.library.call("pkv_plan_describe", self.plans[0], c.byref(out))
        return json.loads(out.value)


def kernels(stream, calls):
    """Microseconds of a call in each kernel, as the profiler sees them one after the other."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return {event.key[:160]: round(event.self_device_time_total / len(calls), 2)
            for event in events if event.self_device_time_total > 0}  # fmt: skip


def our_step(stream, library, zone, batch, n, share, options, cached_rows, profiles=True):
    row = base_row(library.backend, "step", batch, n, candidates=share, tail=options.tail,
                   rows="host", row_cache=cached_rows)  # fmt: skip
    drift = options.drift if cached_rows else 1.0
    try:
        stream.synchronize()
        steps = Steps(library, zone, batch, n, share, options.tail, cached_rows, drift)
    except RuntimeError as error:
        return {**row, "trouble": str(error)}
    row["plan"] = steps.describe()
    row["append_us"] = min(steps.append_us)  # a sequence's K and V from host memory
    calls = steps.calls()
    try:
        graph = capture(stream, calls)
        row["setting"] = f"graph of {CALLS}"
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        replayed = steps.output.clone()
        for call in calls:
            call()
        stream.synchronize()
        row["equal"] = bool((replayed == steps.output).all())
        run = graph.replay
    except RuntimeError as error:
        row["setting"] = f"eager: {str(error).strip().splitlines()[0][:120]}"
        torch.cuda.synchronize()
        run = lambda: [call() for call in calls]  # noqa: E731
    try:
        steps.repeats()
        row.update(times_of(measure(stream, run, CALLS, steps.renew, options.repeat)))
        if cached_rows:
            row.update(drift=drift, repeats=steps.repeats())
    except RuntimeError as error:
        return {**row, "trouble": str(error)}
    if not profiles:
        return row
    try:
        row["kernels"] = kernels(stream, calls)
    except Exception as error:  # the figures stand without it
        row["kernels"] = {"error": str(error)}
    return row


def main():
    options = parse()
    deadline = time.monotonic() + options.seconds
    shapes = [(1, int(n)) for n in options.n.split(",") if n]
    shapes += [tuple(map(int, shape.split("x"))) for shape in options.batches.split(",") if shape]
    stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    library = zone = None
    if options.backend == "cuda":
        library = capi.Library(options.prefix / "lib" / "libpariskv.so.0", options.backend)
        library.wrap_stream(stream.cuda_stream)
        zone = Zone(options.memory * GIB)
    for batch, n in shapes:
        if time.monotonic() > deadline:
            print(json.dumps(base_row("", "", batch, n, trouble="no time left")), flush=True)
            continue
        for share in map(float, options.candidates.split(",")) if library else ():
            for cached_rows in (0, options.row_cache) if options.row_cache else (0,):
                row = our_step(stream, library, zone, batch, n, share, options, cached_rows)
                print(json.dumps(row), flush=True)
                torch.cuda.empty_cache()
        for row in full_attention(stream, batch, n, options.repeat, options.attention):
            print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
