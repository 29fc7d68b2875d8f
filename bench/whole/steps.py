"""Decoding steps of a model over some attention: as one CUDA graph, launched for every token, or
plain calls where there is no GPU; and their times."""

import gc
import statistics
import time

import torch

from bench.kernels import spent_by_kind

WARM = 3


class Steps:
    """A model, an attention, and the tokens that go from one step to the next."""

    def __init__(self, model, attention, batch, count, stream=None):
        """`stream`: of a GPU; None: steps are plain calls. count: tokens that are there."""
        self.model, self.attention, self.stream = model, attention, stream
        self.count, self.graph = count, None
        self.tokens = torch.empty(batch, dtype=torch.long, device=model.device)
        self.positions = torch.empty_like(self.tokens)
        self.logits = None
        self.start()

    def start(self, token=1):
        self.tokens.fill_(token)
        self.positions.fill_(self.count)

    def _call(self):
        self.attention.begin(self.positions)
        self.logits = self.model.step(self.tokens, self.positions, self.attention)

    def run(self):
        """One token of every sequence."""
        if self.graph is None:
            self._call()
            return
        advance = getattr(self.attention, "advance", None)
        if advance is not None:
            advance()
        self.graph.replay()

    def prepare(self):
        """A first step as it is, and on a GPU the capture of a second one."""
        self._call()
        if self.stream is None:
            return
        self.stream.synchronize()
        gc.collect()
        gc.disable()  # what it frees, a stream that is captured may not
        try:
            graph = torch.cuda.CUDAGraph()
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
                self._call()
        finally:
            gc.enable()
        self.graph = graph

    def is_as_plain(self):
        """Whether a launch of the graph gives the bits of plain calls; of an attention that has
        tokens take each other's places, so that a step may be repeated. None without a graph."""
        if self.graph is None or hasattr(self.attention, "advance"):
            return None
        self.start()
        self.run()
        launched = self.logits.clone()
        self.start()
        kept = self.logits
        self._call()
        equal = torch.equal(launched, self.logits)
        self.logits = kept
        return equal

    def milliseconds(self, replays):
        """Of each of so many steps, one behind the other, nothing awaited between."""
        for _ in range(WARM):
            self.run()
        if self.stream is None:
            times = [time.perf_counter()]
            for _ in range(replays):
                self.run()
                times.append(time.perf_counter())
            return [(after - before) * 1e3 for before, after in zip(times, times[1:])]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        self.stream.synchronize()
        events[0].record(self.stream)
        for event in events[1:]:
            self.run()
            event.record(self.stream)
        self.stream.synchronize()
        return [before.elapsed_time(after) for before, after in zip(events, events[1:])]

    def kernels(self):
        return spent_by_kind(self.run, 2) if self.stream is not None else {}


def summary(times, batch):
    """Of milliseconds of steps of `batch` tokens."""
    ms = {"min": min(times), "median": statistics.median(times), "max": max(times)}
    return {
        "step_ms": {name: round(value, 4) for name, value in ms.items()},
        "tokens_per_second": {
            "min": round(batch * 1e3 / ms["max"], 2),
            "median": round(batch * 1e3 / ms["median"], 2),
            "max": round(batch * 1e3 / ms["min"], 2),
        },
        "replays": len(times),
    }
