"""python -m bench.ranks: a decoding step over ranks of torch.distributed beside one device, and
what each exchange takes. Starts its ranks itself: gloo on CPUs, NCCL with --device cuda (a GPU to
each). Prints one JSON object; --output writes it.

One layer. `one`: pariskv.Index with all keys on rank 0. `rank`, `global`: ShardedIndex with budgets
of each rank and of one device. `error`: largest difference of its output from one device's, in
parts of the largest number. On GPUs `one` and `rank` are measured as a graph of --calls steps too
(`graph_us`). Exchanges: microseconds of each kind by itself, and the bytes that a rank sends."""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pariskv
import torch
import torch.distributed as dist
from pariskv.distributed import ShardedIndex, broadcast_codec

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SAMPLE = 65536
BINS = 2048


def parse(argv):
    parser = argparse.ArgumentParser(prog="bench.ranks", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--n", type=int, default=131072, help="keys of all ranks together")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--candidates", type=float, default=0.02)
    add("--k", type=int, default=100)
    add("--tail", default="mean")
    add("--repeat", type=int, default=20)
    add("--calls", type=int, default=16, help="steps of a graph")
    add("--output", type=Path)
    add("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    add("--meeting", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.ranks < 1 or options.n < options.ranks or options.repeat < 1 or options.calls < 1:
        parser.error("--ranks, --n, --repeat, --calls: accepted are 1 and more")
    return options


def start(argv, options):
    """The ranks as processes of their own; what rank 0 prints. RuntimeError: one has failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.ranks", *argv, "--meeting", f"{folder}/meeting"]
        started = [
            subprocess.Popen([*command, "--rank", str(rank)], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
            for rank in range(options.ranks)
        ]  # fmt: skip
        try:
            outputs = [process.communicate() for process in started]
        finally:
            for process in started:
                process.kill()
    for rank, (process, output) in enumerate(zip(started, outputs)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} ended with {process.returncode}: {output[1][-2000:]}")
    return json.loads(outputs[0][0].strip().splitlines()[-1])


class Rank:
    def __init__(self, options):
        self.options = options
        self.is_gpu = options.device == "cuda"
        if self.is_gpu:
            torch.cuda.set_device(options.rank)
            torch.cuda.set_stream(torch.cuda.Stream())
        self.device = f"cuda:{options.rank}" if self.is_gpu else "cpu"
        self.dtype = torch.bfloat16 if self.is_gpu else torch.float32
        dist.init_process_group(
            "nccl" if self.is_gpu else "gloo", init_method=f"file://{options.meeting}",
            rank=options.rank, world_size=options.ranks, timeout=timedelta(seconds=60),
        )  # fmt: skip
        self.steps = {"candidates": options.candidates, "k": options.k, "tail": options.tail}

    def random(self, seed, *shape):
        """The same on every rank."""
        chance = torch.Generator(self.device).manual_seed(seed)
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(generator=chance)

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def times(self, call, repeat=None, alone=False):
        """Microseconds, all ranks beginning together."""
        found = []
        for turn in range(-3, repeat or self.options.repeat):
            self.wait()
            if not alone:
                dist.barrier()
                self.wait()
            began = time.perf_counter()
            call()
            self.wait()
            if turn >= 0:
                found.append((time.perf_counter() - began) * 1e6)
        return {"median_us": round(statistics.median(found), 2), "min_us": round(min(found), 2)}

    def over(self, step, queries, captures, alone=False):
        """Times of a step, with a query of its own every time."""
        turn = itertools.cycle(queries)
        row = self.times(lambda: step(next(turn)), alone=alone)
        if self.is_gpu and captures:
            row.update(self.graph_us(step, queries, alone))
        return row

    def graph_us(self, step, queries, alone):
        """Of a step, in one graph of all the queries; or why there is none."""
        for query in queries:
            step(query)
        self.wait()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for query in queries:
                    step(query)
        except RuntimeError as error:
            return {"graph_trouble": str(error).splitlines()[0][:200]}

        def run():
            for query in queries:
                query.normal_()
            graph.replay()

        both = self.times(run, alone=alone)
        fill = self.times(lambda: [query.normal_() for query in queries], alone=alone)
        # New queries every time, so that rows are cold; their making is taken off.
        return {name.replace("_us", "_graph_us"): round((both[name] - fill[name]) / len(queries), 2)
                for name in both}  # fmt: skip

    def run(self):
        options = self.options
        keys = self.random(1, KV_HEADS, options.n, HEAD_DIM)
        values = self.random(2, KV_HEADS, options.n, HEAD_DIM)
        queries = [self.random(3 + i, 1, QUERY_HEADS, HEAD_DIM) for i in range(options.calls)]
        sample = self.random(99, QUERY_HEADS, 64, HEAD_DIM)
        rows, outputs = {}, {}
        codec = None
        if options.rank == 0:
            codec = pariskv.Codec.fit(keys[:, :SAMPLE], sample, values[:, :SAMPLE], **self.steps)
        here = pariskv.device("cuda", options.rank) if self.is_gpu else None
        codec = broadcast_codec(codec, device=here, value_dim=HEAD_DIM, **self.steps)
        for budgets in ("rank", "global"):
            rows[budgets], outputs[budgets] = self.sharded(codec, budgets, keys, values, queries)
        wanted = torch.zeros(1, QUERY_HEADS, HEAD_DIM, device=self.device)
        if options.rank == 0:
            rows["one"] = self.one(codec, keys, values, queries, wanted)
        dist.broadcast(wanted, 0)
        for name, out in outputs.items():
            rows[name]["error"] = float((out - wanted).abs().max() / wanted.abs().max())
        return rows

    def sharded(self, codec, budgets, keys, values, queries):
        """(times, output for the first query)."""
        shard = ShardedIndex(codec, self.options.n, budgets=budgets)
        shard.append(keys, values)
        out = shard.step(queries[0])[0].clone()
        row = self.over(lambda query: shard.step(query), queries, budgets == "rank")
        return {**row, "own_keys": shard.own_length()}, out

    def one(self, codec, keys, values, queries, wanted):
        """On rank 0, while the others wait."""
        index = pariskv.Index(codec, self.options.n)
        index.append(keys, values)
        both = torch.stack([keys, values], 2)[None]
        if self.is_gpu:
            both = both.cpu().pin_memory()
        rows = both[..., 0, :], both[..., 1, :]
        index.step(self.random(3, 1, QUERY_HEADS, HEAD_DIM), *rows, out=wanted)
        return self.over(lambda query: index.step(query, *rows), queries, True, alone=True)

    def exchanges(self):
        """Of a step of one token: {name: times, bytes sent by a rank}."""
        k, place = self.options.k, {"device": self.device}
        shapes = {
            "histogram": (torch.int32, (1, KV_HEADS, BINS), True),
            "sums": (torch.float64, (4, 1, QUERY_HEADS), False),
            "hits": (torch.float64, (2, 1, KV_HEADS, k), False),
            "outputs": (torch.float32, (1, QUERY_HEADS, HEAD_DIM + 1), False),
            "nothing": (torch.float32, (1,), True),
        }
        found = {}
        for name, (dtype, shape, is_sum) in shapes.items():
            own = torch.zeros(shape, dtype=dtype, **place)
            parts = [torch.empty_like(own) for _ in range(self.options.ranks)]
            call = (lambda own=own: dist.all_reduce(own)) if is_sum else (
                lambda own=own, parts=parts: dist.all_gather(parts, own))  # fmt: skip
            found[name] = {**self.times(call, 4 * self.options.repeat), "bytes": own.nbytes}
        return found


@torch.no_grad()
def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    if options.rank < 0:
        found = start(argv, options)
        text = json.dumps(found, indent=1)
        print(text)
        if options.output:
            options.output.write_text(text + "\n")
        return 0
    if options.device == "cpu":
        torch.set_num_threads(1)
    rank = Rank(options)
    exchanges, steps = rank.exchanges(), rank.run()
    if options.rank == 0:
        name = torch.cuda.get_device_name() if rank.is_gpu else "cpu"
        print(json.dumps({
            "command": "python -m bench.ranks " + " ".join(argv[: argv.index("--meeting")]),
            "device": name, "ranks": options.ranks, "n": options.n,
            "processors": os.cpu_count(), "date": time.strftime("%Y-%m-%d"),
            "versions": {"torch": torch.__version__, "pariskv": pariskv.version()},
            "exchanges": exchanges, "steps": steps,
        }))  # fmt: skip
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
