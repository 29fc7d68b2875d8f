"""Tokens per second of a whole model, decoding: full attention over K and V on the device (torch's
cuDNN and flash kernels, the faster), and pariskv with K and V of the zone in host memory.

    python -m bench.whole_model --output whole.json

The model is Llama-3-8B's geometry with random weights (--layers, --hidden, .. for others), written
in plain torch: RMSNorm, QKV, rotary positions, attention, output projection, SwiGLU, head, argmax.
A step is one token of every sequence, in one CUDA graph that is launched for every token; argmax
and position go from one to the next on the device. On a CPU steps are plain calls.

Methods:
  full       new K and V take the place of the oldest of the newest 768 tokens; all are attended to
  index      pariskv.Index; the newest 768 tokens likewise a ring on the device, 128 first tokens
             too; the zone between stands still
  row-cache  the same with a row cache of --row-cache rows per KV head; `repeats`: how many of the
             rows came from there
  cache      pariskv.Cache: the step appends its token to pages in host memory; encoding waits for
             a flush every 512 tokens, whose share of a step is added (median_with_flush)

What does not fit is refused with its numbers, or run with the largest batch that does (`wanted`:
what was asked for). With --shared-rows layers take turns with the rows of as many layers as fit
into --host-memory (`rows_of_layers`): a device caches none of them, so that times are those of rows
that lie apart, but it is no model that could run so. Only methods of an index share."""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pariskv
import torch

from bench.whole import attention, room
from bench.whole.model import Geometry, Model
from bench.whole.room import GIB, Room, gib
from bench.whole.steps import Steps, summary

METHODS = ("full", "index", "row-cache", "cache")
OVER_INDEX = ("index", "row-cache")
SHAPES = "1x128K,1x256K,1x384K,8x128K,5x256K,1x1M"
UNITS = {"K": 1 << 10, "M": 1 << 20}
LARGEST_BATCH = 64
INTERVAL = 512  # tokens by which a cache's zone grows


def tokens_of(text):
    count = int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)
    if not 16 <= count < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text} tokens, accepted: 16..2147483647, also 128K, 1M")
    return count


def shapes_of(text):
    found = []
    for part in text.split(","):
        batch, _, count = part.rpartition("x")
        try:
            shape = int(batch or 1), tokens_of(count)
        except ValueError:
            shape = 0, 0
        if not 1 <= shape[0] <= LARGEST_BATCH:
            raise argparse.ArgumentTypeError(
                f"{part!r}, accepted: BATCHxTOKENS with a batch of 1..{LARGEST_BATCH}, as 8x128K"
            )
        found.append(shape)
    return found


def methods_of(text):
    chosen = text.split(",")
    if unknown := set(chosen) - set(METHODS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}, accepted: {', '.join(METHODS)}")
    return chosen


def make_parser():
    title, _, rest = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="bench.whole_model", description=title, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    for name, value in Geometry()._asdict().items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=type(value), default=value, help=f"default {value:g}", metavar="N")
    add("--shapes", type=shapes_of, default=shapes_of(SHAPES), help=f"default {SHAPES}")
    add("--methods", type=methods_of, default=list(METHODS), help=f"default {','.join(METHODS)}")
    add("--candidates", type=float, default=0.02, help="share of the zone's keys (default .02)")
    add("--k", type=int, default=100, help="rows fetched per KV head (default 100)")
    add("--tail", default="mean", help="default mean")
    add("--set", action="append", default=[], help="OPTION=VALUE of pariskv, several")
    add("--row-cache", type=int, default=512, help="rows per KV head (default 512)")
    add("--drift", type=float, default=0.4,
        help="of a token's embedding, what it does not share with others (default .4)")  # fmt: skip
    add("--replays", type=int, default=48, help="steps measured (default 48)")
    add("--host-memory", type=float, help="GiB of pinned memory at most (default: what is free)")
    add("--device-memory", type=float, help="GiB beside the weights at most (default: likewise)")
    add("--shared-rows", action="store_true", help="layers may share rows (see below)")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    add("--minutes", type=float, default=1e9, help="after that, what is left is left out")
    add("--output", type=Path, metavar="FILE", help="JSON, written anew after every configuration")
    add("--force", action="store_true", help="replace FILE")
    return parser


def parse(argv):
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.output and not options.output.parent.is_dir():
        parser.error(f"--output {options.output}: no folder {options.output.parent}")
    if options.output and options.output.exists() and not options.force:
        parser.error(f"--output {options.output} exists, accepted: a new file, or --force")
    if options.replays < 1:
        parser.error("--replays: accepted are 1 and more")
    if wrong := [pair for pair in options.set if "=" not in pair]:
        parser.error(f"--set {wrong[0]}: accepted is OPTION=VALUE")
    options.geometry = Geometry(**{name: getattr(options, name) for name in Geometry._fields})
    options.dtype = getattr(torch, options.dtype)
    options.steps = {"candidates": options.candidates, "k": options.k, "tail": options.tail}
    options.steps.update(pair.split("=", 1) for pair in options.set)
    return options


class Bench:
    def __init__(self, options):
        self.options, self.geometry = options, options.geometry
        self.is_gpu = options.device == "cuda"
        self.stream = torch.cuda.Stream() if self.is_gpu else None
        if self.is_gpu:
            torch.cuda.set_stream(self.stream)
        backend = "cuda" if self.is_gpu else os.environ.get("PKV_BACKEND", "cpu")
        self.device = pariskv.device(backend)
        longest = max(count for _, count in options.shapes)
        self.model = Model(self.geometry, longest + self.steps_to_come(), options.dtype,
                           options.device, options.drift)  # fmt: skip
        self.room = self.room_now()
        self.zone = None  # pinned once, for the largest shape
        self.ends = time.monotonic() + options.minutes * 60

    def steps_to_come(self):
        """That a cache has room for, with the interval that is flushed at last."""
        return self.options.replays + INTERVAL + 64

    def room_now(self):
        given = self.options.device_memory, self.options.host_memory
        there = room.free_device_bytes(self.options.device), room.free_host_bytes()
        return Room(*(min(b, int(a * GIB)) if a is not None else b for a, b in zip(given, there)))

    def shares(self, method):
        return self.options.shared_rows and method in OVER_INDEX

    # ---- what fits

    def need(self, method, count):
        """Of a batch."""
        size, shape = self.options.dtype.itemsize, self.geometry
        if method == "full":
            return lambda batch: room.need_of_full(shape, batch, count, size)
        if method == "cache":
            length = count + self.steps_to_come()
            return lambda batch: room.need_of_cache(
                shape, batch, length, self.options.dtype, self.options.steps, self.device
            )
        rows = self.options.row_cache if method == "row-cache" else 0
        codec = self.codec_of_shape()
        return lambda batch: room.need_of_index(shape, batch, count, size, codec, rows)

    def codec_of_shape(self):
        """One that says what records take."""
        small = attention.Tokens(self.geometry, 1, 512, self.options.dtype, self.options.device)
        rows = small.keys[0], small.queries, small.values[0]
        return pariskv.Codec.fit(*rows, **self.options.steps)

    def fitting(self, method, batch, count):
        """(batch, why it is not the one wanted)."""
        return room.largest_batch(batch, self.need(method, count), self.room, self.shares(method))

    def zone_bytes(self):
        """Pinned memory that the shapes of an index need, as far as there is."""
        largest = 0
        for batch, count in self.options.shapes:
            for method in set(self.options.methods) & set(OVER_INDEX):
                fits, _ = self.fitting(method, batch, count)
                if fits:
                    largest = max(largest, self.need(method, count)(fits).host)
        return min(largest, self.room.host)

    # ---- configurations

    def rows(self):
        """A row of every configuration, as soon as it is there."""
        for turn in ((("full",), OVER_INDEX), (("cache",),)):
            for batch, count in self.options.shapes:
                for methods in turn:
                    yield from self.timely([m for m in methods if m in self.options.methods],
                                           batch, count)  # fmt: skip

    def timely(self, methods, batch, count):
        rows = [self.base(method, batch, count) for method in methods]
        if time.monotonic() > self.ends:
            yield from ({**row, "trouble": "--minutes have passed"} for row in rows)
        elif rows:
            yield from self.group(methods, rows, batch, count)
            gc.collect()
            if self.is_gpu:
                torch.cuda.empty_cache()

    def group(self, methods, rows, batch, count):
        """Methods that share what they are filled with; rows: theirs so far."""
        fits, why = self.fitting(methods[-1], batch, count)
        if not fits:
            yield from ({**row, "refused": why} for row in rows)
            return
        for row in rows:
            row["batch"] = fits
            if why:
                row["smaller_because"] = why
        done = 0
        try:
            for found in getattr(self, f"_{methods[0].replace('-', '_')}")(methods, fits, count):
                yield {**rows[done], **found}
                done += 1
        except Exception as error:  # the others still run
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            yield from ({**row, "trouble": text} for row in rows[done:])

    def base(self, method, batch, count):
        is_ours = method != "full"
        return {
            "method": method, "tokens": count, "wanted": batch, "batch": batch,
            "rows": "host" if is_ours else "device",
            **({"candidates": self.options.candidates, "k": self.options.k,
                "tail": self.options.tail} if is_ours else {}),
        }  # fmt: skip

    def filled(self, batch, count):
        began = time.monotonic()
        tokens = attention.Tokens(
            self.geometry, batch, count, self.options.dtype, self.options.device
        )
        return tokens, began

    def measured(self, steps, began, batch, attend):
        """What a row says of prepared steps."""
        filled = time.monotonic() - began
        before = attend.rows_found()
        found = summary(steps.milliseconds(self.options.replays), batch)
        looked_up, hits = (b - a for a, b in zip(before, attend.rows_found()))
        if looked_up:
            found["repeats"] = round(hits / looked_up, 4)
        found["is_finite"] = bool(steps.logits.isfinite().all())
        found["setting"] = "one graph" if steps.graph is not None else "plain calls"
        equal = steps.is_as_plain()
        if equal is not None:
            found["graph_equals_plain"] = equal
        found.update(attend.usage(), fill_seconds=round(filled, 2))
        found["weights_device_bytes"] = self.model.bytes()
        if self.is_gpu:
            free, whole = torch.cuda.mem_get_info()
            found["device_bytes_taken"] = whole - free
            found["kernel_ms"] = steps.kernels()
        return found

    def _full(self, _, batch, count):
        tokens, began = self.filled(batch, count)
        attend = attention.Full(self.geometry, tokens)
        forms, times = (attention.FORMS if self.is_gpu else attention.CPU_FORMS), {}
        found, troubles = None, {}
        for form in forms:
            attend.choose(form)
            steps = Steps(self.model, attend, batch, count, self.stream)
            try:
                steps.prepare()
                times[form] = summary(steps.milliseconds(6), batch)["step_ms"]["median"]
            except RuntimeError as error:
                troubles[form] = str(error).strip().splitlines()[-1][:160]
                self.wait()
                continue
            if min(times.values()) == times[form]:
                found = steps
        if found is None:
            raise RuntimeError(str(troubles))
        best = min(times, key=times.get)
        attend.choose(best)
        row = self.measured(found, began, batch, attend)
        yield {**row, "form": best, "forms_ms": times, **({"no": troubles} if troubles else {})}

    def _index(self, methods, batch, count):
        tokens, began = self.filled(batch, count)
        if self.zone is None:
            began_zone = time.monotonic()
            self.zone = attention.Zone(self.zone_bytes(), self.options.dtype, self.device)
            self.say(f"{gib(self.zone.nbytes)} pinned in {time.monotonic() - began_zone:.1f} s")
        rows = self.zone.layers(tokens, self.geometry.layers)
        attend = attention.OverIndex(self.geometry, tokens, rows, self.options.steps)
        del tokens
        shared = {} if len(rows) == self.geometry.layers else {"rows_of_layers": len(rows)}
        try:
            for method in methods:
                cached = self.options.row_cache if method == "row-cache" else 0
                attend.cache_rows(cached)
                steps = Steps(self.model, attend, batch, count, self.stream)
                steps.prepare()
                row = self.measured(steps, began, batch, attend)
                yield {**row, "row_cache": cached, **shared}
                del steps
                began = time.monotonic()
        finally:
            self.wait()
            attend.close()

    _row_cache = _index

    def _cache(self, _, batch, count):
        if self.zone is not None:  # both pinned at a time would be too much
            self.zone.close()
            self.zone = None
        tokens, began = self.filled(batch, count)
        attend = attention.OverCache(
            self.geometry, tokens, self.steps_to_come(), self.options.steps, self.device
        )
        del tokens
        try:
            steps = Steps(self.model, attend, batch, count, self.stream)
            steps.prepare()
            row = self.measured(steps, began, batch, attend)
            row["flush_ms"] = self.flush_ms(attend, batch)
            median = row["step_ms"]["median"] + row["flush_ms"] / INTERVAL
            row["tokens_per_second"]["median_with_flush"] = round(batch * 1e3 / median, 2)
            yield row
            del steps
        finally:
            self.wait()
            attend.close()

    def flush_ms(self, attend, batch):
        """Of an interval of tokens."""
        attend.cache.flush()
        attend.grow(self.filled(batch, INTERVAL)[0])
        self.wait()
        began = time.perf_counter()
        attend.cache.flush()
        self.wait()
        return round((time.perf_counter() - began) * 1e3, 3)

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def say(self, text):
        print(f"whole_model: {text}", file=sys.stderr, flush=True)


# ---- Results ---------------------------------------------------------------------------


def head(bench, argv):
    options, geometry = bench.options, bench.geometry
    return {
        "command": "python -m bench.whole_model " + " ".join(argv),
        "device": torch.cuda.get_device_name() if bench.is_gpu else "cpu",
        "driver": driver() if bench.is_gpu else "",
        "versions": {"torch": torch.__version__, "pariskv": pariskv.version()},
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "geometry": geometry._asdict(),
        "dtype": str(options.dtype).rsplit(".", 1)[-1],
        "weights": "random",
        "weights_bytes_read": geometry.weights_read() * options.dtype.itemsize,
        "room": {"device_bytes": bench.room.device, "host_bytes": bench.room.host},
    }


def driver():
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip().split("\n")[0]


def rate(row):
    rates = row.get("tokens_per_second", {})
    return rates.get("median_with_flush", rates.get("median", 0.0))


def ratios(rows):
    """Of ours to full attention at as many tokens: with the same batch, and with that of its own
    batches which gives most tokens per second."""
    found = []
    full = [row for row in rows if row["method"] == "full" and rate(row)]
    for row in rows:
        peers = [other for other in full if other["tokens"] == row["tokens"]]
        if row["method"] == "full" or not rate(row) or not peers:
            continue
        best = max(peers, key=rate)
        same = [other for other in peers if other["batch"] == row["batch"]]
        found.append({
            "method": row["method"], "tokens": row["tokens"], "batch": row["batch"],
            "to_full_same_batch": round(rate(row) / rate(same[0]), 3) if same else None,
            "to_full_best": round(rate(row) / rate(best), 3), "full_best_batch": best["batch"],
        })  # fmt: skip
    return found


def write(path, found):
    """Whole or not at all."""
    partly = path.with_name(path.name + ".part")
    partly.write_text(json.dumps(found, indent=1) + "\n")
    partly.replace(path)


def table(found):
    shares = {(one["method"], one["tokens"], one["batch"]): one for one in found["ratios"]}
    lines = [("method", "batch", "tokens", "tokens/s", "least", "most", "ms/step", "x full",
              "x best full", "device", "host", "note")]  # fmt: skip
    for row in found["rows"]:
        cells = [row["method"], str(row["batch"]), f"{row['tokens']:,}"]
        note = row.get("refused") or row.get("trouble") or row.get("smaller_because", "")
        if "rows_of_layers" in row:
            note = f"rows of {row['rows_of_layers']} layers, shared; {note}".rstrip("; ")
        if "repeats" in row:
            note = f"{row['repeats']:.0%} of rows repeat; {note}".rstrip("; ")
        if "step_ms" in row:
            share = shares.get((row["method"], row["tokens"], row["batch"]), {})
            rates = row["tokens_per_second"]
            cells += [f"{rate(row):.1f}", f"{rates['min']:.1f}", f"{rates['max']:.1f}"]
            cells.append(f"{row['step_ms']['median']:.3f}")
            cells += [f"{share[name]:.2f}" if share.get(name) else ""
                      for name in ("to_full_same_batch", "to_full_best")]  # fmt: skip
            device = sum(row.get(name, 0) for name in row if name.endswith("device_bytes"))
            cells += [gib(device), gib(row.get("kv_host_bytes", 0))]
        else:
            cells += [""] * 8
        lines.append((*cells, note))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths)), line[-1]]).rstrip()
        for line in lines
    )


@torch.no_grad()
def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    bench = Bench(options)
    found = {**head(bench, argv), "ratios": [], "rows": []}
    for row in bench.rows():
        found["rows"].append(row)
        found["ratios"] = ratios(found["rows"])
        if options.output:
            write(options.output, found)
        shown = {name: value for name, value in row.items() if name != "kernel_ms"}
        bench.say(json.dumps(shown))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
