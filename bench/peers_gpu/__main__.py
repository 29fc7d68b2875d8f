"""A decode step of one layer by each selection rule as batched torch operations, beside full
attention (and, with --prefix, this library), in one process.

    python -m bench.peers_gpu --n 131072,1048576 --batches 8x131072 --json results.json

8 KV heads, 32 query heads, d = 128, bf16, on random data, as CUDA graphs of 16 calls (eager where a
graph cannot be captured), over layers in turn, with a new query for every call. K and V of the
zone lie where the rule's paper has them: on the device (full, exact, quest) or in pinned host
memory, which kernels read where it lies. 128 + 768 further tokens are attended in full by all.
docs/quality.md, section 4, says what these times are and what they are not."""

import argparse
import functools
import json
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path

import torch

from bench import gpu_peers
from bench.compare.report import write

from . import base, magicpig, methods

GIB = 1 << 30
PEERS = {
    peer.NAME: peer
    for peer in (
        methods.Exact, methods.Quest, methods.PQCache, magicpig.MagicPIG, methods.ShadowKV,
        methods.RaBitQ)
}  # fmt: skip
FULL, OURS = "full", "default"


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench.peers_gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", default="131072,1048576", help="tokens of the zone")
    parser.add_argument("--batches", default="", help="further shapes: BATCHxTOKENS, a list")
    parser.add_argument("--methods", default=",".join([FULL, *PEERS]))
    parser.add_argument("--k", type=int, default=100, help="rows of the zone per step")
    parser.add_argument("--memory", type=float, default=8, help="GiB of pinned host memory")
    parser.add_argument("--device-memory", type=float, default=80, help="GiB for a rule's layers")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no row after that")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prefix", type=Path, help="where this library is installed: its rows too")
    parser.add_argument("--candidates", default="0.02", help="of this library")
    parser.add_argument("--tail", default="sampled", help="of this library")
    parser.add_argument("--row-cache", type=int, default=512, help="of this library; 0: none")
    parser.add_argument("--drift", type=float, default=0.4)
    parser.add_argument("--json", help="write the results")
    chosen = parser.parse_args(argv)
    try:
        chosen.shapes = [(1, int(n)) for n in chosen.n.split(",") if n]
        for shape in filter(None, chosen.batches.split(",")):
            batch, n = map(int, shape.split("x"))
            chosen.shapes.append((batch, n))
    except ValueError:
        parser.error(f"--n {chosen.n} --batches {chosen.batches}: accepted: 131072,.. 8x131072,..")
    chosen.methods = chosen.methods.split(",")
    unknown = set(chosen.methods) - {FULL, *PEERS}
    if unknown:
        parser.error(f"--methods: {', '.join(unknown)}; choose from {FULL}, {', '.join(PEERS)}")
    return chosen


class Clock:
    """Microseconds of a call, by events on a GPU; a graph of the calls where one can be had."""

    def __init__(self, device, repeat):
        self.is_gpu, self.repeat = torch.device(device).type == "cuda", repeat
        self.stream = torch.cuda.Stream() if self.is_gpu else None
        if self.is_gpu:
            torch.cuda.set_stream(self.stream)

    def measure(self, calls, renew):
        """(times, setting)"""
        if not self.is_gpu:
            return self.by_hand(calls, renew), "eager"
        try:
            run = gpu_peers.capture(self.stream, calls).replay
            setting = f"graph of {len(calls)}"
        except RuntimeError as error:
            torch.cuda.synchronize()
            setting = f"eager: {str(error).strip().splitlines()[0][:100]}"
            run = lambda: [call() for call in calls]  # noqa: E731
        return gpu_peers.measure(self.stream, run, len(calls), renew, self.repeat), setting

    def by_hand(self, calls, renew):
        found = []
        for _ in range(self.repeat):
            renew()
            began = time.perf_counter()
            for call in calls:
                call()
            found.append(1e6 * (time.perf_counter() - began) / len(calls))
        return found


class Bench:
    def __init__(self, chosen, clock):
        self.chosen, self.clock = chosen, clock
        self.zone = gpu_peers.Zone(int(chosen.memory * GIB))

    def begin_shape(self, batch):
        self.batch = batch
        size = batch, gpu_peers.QUERY_HEADS, gpu_peers.HEAD_DIM
        self.queries = gpu_peers.randn(gpu_peers.CALLS, *size)

    def problem(self, n, rows):
        """A layer; K and V in pinned memory, or copied to the device."""
        pairs = self.zone.pairs(self.batch, n, 1)
        if not pairs:
            raise RuntimeError(f"K and V of {n} tokens do not fit into --memory")
        device = self.chosen.device
        zone = None
        if rows == "host":
            try:
                zone = [base.device_view(x, device) for x in pairs[0]]
            except (RuntimeError, ValueError, TypeError) as error:
                self.note = f"device, as pinned memory cannot be viewed: {error}"[:160]
        if zone is None:
            zone = [x.to(device, copy=True).contiguous() for x in pairs[0]]
        tokens = sum(gpu_peers.DENSE)
        shape = self.batch, gpu_peers.KV_HEADS, tokens, gpu_peers.HEAD_DIM
        dense = [gpu_peers.randn(*shape) for _ in "kv"]
        return base.Problem(*zone, *dense, gpu_peers.QUERY_HEADS)

    def layers_of(self, peer):
        """The peer and copies of its summary, so that a layer's turn comes back cold."""
        size = max(1, sum(x.numel() * x.element_size() for x in peer.summary().values()))
        count = min(gpu_peers.MAX_LAYERS, gpu_peers.CALLS, -(-gpu_peers.DEVICE_CACHE // size) + 1)
        count = max(1, min(count, int(self.chosen.device_memory * GIB // size)))
        return [peer, *(peer.copy() for _ in range(count - 1))]

    def calls_of(self, layers):
        return [
            lambda i=i: layers[i % len(layers)].step(self.queries[i])
            for i in range(gpu_peers.CALLS)
        ]

    def row(self, name, n):
        peer = PEERS[name]
        row = {"method": name, "n": n, "batch": self.batch, "k": self.chosen.k,
               "rows": peer.ROWS}  # fmt: skip
        self.note = None
        try:
            began = time.perf_counter()
            made = peer(self.problem(n, peer.ROWS), self.chosen.k)
            self.wait()
            row["rows"] = self.note or row["rows"]
            row["build_s"] = round(time.perf_counter() - began, 3)
            row["device_bytes_per_key"] = made.device_bytes() / (
                self.batch * gpu_peers.KV_HEADS * n
            )
            if isinstance(made, magicpig.MagicPIG):
                row.update(room=made.room, lost=made.lost(self.queries[0]))
            layers = self.layers_of(made)
            times, setting = self.clock.measure(self.calls_of(layers), self.queries.normal_)
            row.update(gpu_peers.times_of(times), setting=setting, layers=len(layers))
        except Exception as error:  # costs this row, not those behind it
            row["trouble"] = trouble_of(error)
        return row

    def full(self, n):
        """The faster of two forms, by torch's own choice of kernel."""
        self.note = None
        row = {"method": FULL, "n": n, "batch": self.batch, "k": None, "rows": "device"}
        try:
            problem = self.problem(n, "device")
            pairs = [
                torch.cat(pair, 2) for pair in zip(problem.dense, (problem.keys, problem.values))
            ]
            del problem
            heads = self.batch * gpu_peers.KV_HEADS
            row["device_bytes_per_key"] = sum(x.numel() * x.element_size() for x in pairs) / (
                heads * pairs[0].shape[2]
            )
            found = {}
            for form in (gpu_peers.grouped, gpu_peers.by_head):
                calls = [
                    lambda i=i, form=form: form(self.queries[i], *pairs)
                    for i in range(gpu_peers.CALLS)
                ]
                times, setting = self.clock.measure(calls, self.queries.normal_)
                found[form.__name__] = times, setting
            best = min(found, key=lambda name: statistics.median(found[name][0]))
            row.update(gpu_peers.times_of(found[best][0]), setting=f"{found[best][1]}, {best}")
        except Exception as error:
            row["trouble"] = trouble_of(error)
        return row

    def ours(self, library, n, share, cached_rows):
        try:
            found = gpu_peers.our_step(self.clock.stream, library(), self.zone, self.batch, n,
                                       share, self.chosen, cached_rows, profiles=False)  # fmt: skip
        except Exception as error:
            found = {"n": n, "batch": self.batch, "candidates": share, "row_cache": cached_rows,
                     "trouble": trouble_of(error)}  # fmt: skip
        keep = ("n", "batch", "k", "rows", "candidates", "tail", "row_cache", "repeats", "min_us",
                "median_us", "max_us", "setting", "trouble")  # fmt: skip
        return {"method": OURS, **{name: found[name] for name in keep if name in found}}

    def wait(self):
        if self.clock.is_gpu:
            torch.cuda.synchronize()


def trouble_of(error):
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]


def rows_of(chosen, bench):
    ends = time.monotonic() + 60 * chosen.minutes
    library = functools.cache(lambda: opened(chosen.prefix, bench.clock.stream))
    for batch, n in chosen.shapes:
        bench.begin_shape(batch)
        for task in tasks_of(chosen, bench, library, n):
            if time.monotonic() > ends:
                return
            yield task()
            if bench.clock.is_gpu:
                torch.cuda.empty_cache()


def opened(prefix, stream):
    library = gpu_peers.capi.Library(prefix / "lib" / "libpariskv.so.0", "cuda")
    library.wrap_stream(stream.cuda_stream)
    return library


def tasks_of(chosen, bench, library, n):
    """Full attention and ours first, so that they are there whatever a peer does to the device."""
    if FULL in chosen.methods:
        yield functools.partial(bench.full, n)
    for share in map(float, chosen.candidates.split(",")) if chosen.prefix else ():
        for cached in sorted({0, chosen.row_cache}):
            yield functools.partial(bench.ours, library, n, share, cached)
    for name in chosen.methods:
        if name != FULL:
            yield functools.partial(bench.row, name, n)


def shape_of(row):
    return row["batch"], row["n"]


def table(rows):
    titles = f"{'median us':>11} {'min':>10} {'max':>10} {'x full':>7}  rows"
    yield f"{'method':10} {'b':>3} {'n':>8} {titles}"
    full = {shape_of(row): row.get("median_us") for row in rows if row["method"] == FULL}
    for row in rows:
        head = f"{row['method']:10} {row['batch']:>3} {row['n']:>8}"
        if "trouble" in row:
            yield f"{head} {row['trouble']}"
            continue
        whole = full.get(shape_of(row))
        ratio = f"{whole / row['median_us']:.2f}" if whole else "-"
        yield (f"{head} {row['median_us']:>11.1f} {row['min_us']:>10.1f} {row['max_us']:>10.1f} "
               f"{ratio:>7}  {row['rows']}, {row['setting']}")  # fmt: skip


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    chosen = parse(argv)
    gpu_peers.DEVICE = chosen.device
    torch.manual_seed(0)
    gpu = torch.device(chosen.device).type == "cuda"
    document = {
        "command": shlex.join(["python", "-m", "bench.peers_gpu", *argv]),
        "device": torch.cuda.get_device_name() if gpu else platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "kv_heads": gpu_peers.KV_HEADS, "query_heads": gpu_peers.QUERY_HEADS,
        "head_dim": gpu_peers.HEAD_DIM, "dtype": "bf16",
    }  # fmt: skip
    rows = []
    with torch.inference_mode():
        for row in rows_of(chosen, Bench(chosen, Clock(chosen.device, chosen.repeat))):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            if chosen.json:
                lines = ",\n".join(json.dumps(one) for one in rows)
                head = json.dumps(document)[1:-1]
                write(chosen.json, f'{{{head}, "results": [\n{lines}\n]}}\n')
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
