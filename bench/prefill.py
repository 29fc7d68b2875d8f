"""What the prefill of a prompt costs in a cache, beside what the model itself takes.

    python -m bench.prefill --device cuda --tokens 4096,16384 --json prefill.json

A prompt's keys, values and queries of every layer are appended to an empty pariskv.Cache in one
piece, as `pariskv.hf` does: rows are placed, queries kept, the codec is fitted to the zone and the
zone encoded. `layout`: heads, [h, n, d] as transformers has it, or tokens, [n, h, d]. Milliseconds
of all layers, the device awaited at the end; the geometry is that of Qwen2.5-1.5B unless given."""

import argparse
import datetime
import itertools
import json
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path

import pariskv
import torch


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench.prefill", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--tokens", default="4096,16384", help="of a prompt")
    add("--layers", type=int, default=28)
    add("--kv-heads", type=int, default=2)
    add("--query-heads", type=int, default=12)
    add("--head-dim", type=int, default=128)
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--rows", default="device,host", help="memory of K and V; on CPUs there is one")
    add("--repeat", type=int, default=3, help="prompts, behind one that is not counted")
    add("--json", type=Path, help="write the results")
    options = parser.parse_args(argv)
    options.tokens = [int(n) for n in options.tokens.split(",")]
    options.rows = options.rows.split(",") if options.device == "cuda" else ["host"]
    if min(options.tokens) < 1 or options.repeat < 1:
        parser.error("--tokens, --repeat: accepted are 1 and more")
    return options


def prompt_of(options, tokens, layout):
    """Keys, values, queries [n, h, d], random; the same for every layout."""
    generator = torch.Generator(options.device).manual_seed(1)

    def make(heads):
        shape = (heads, tokens, options.head_dim)
        numbers = torch.randn(
            shape, device=options.device, dtype=torch.bfloat16, generator=generator
        ).transpose(0, 1)
        return numbers.contiguous() if layout == "tokens" else numbers

    return make(options.kv_heads), make(options.kv_heads), make(options.query_heads)


def wait(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def seconds(cache, options, prompt):
    keys, values, queries = prompt
    sequence = cache.add()
    wait(options)
    begin = time.perf_counter()
    for layer in range(options.layers):
        cache.append(layer, keys, values, queries, sequences=[sequence])
    wait(options)
    spent = time.perf_counter() - begin
    cache.remove(sequence)
    return spent


def measured(options):
    for rows, tokens in itertools.product(options.rows, options.tokens):
        cache = pariskv.Cache(
            options.layers, options.kv_heads, options.query_heads, options.head_dim,
            dtype=torch.bfloat16, device=options.device, rows_memory=rows,
            capacity=tokens, sequences=1,
        )  # fmt: skip
        for layout, with_queries in itertools.product(("heads", "tokens"), (True, False)):
            keys, values, queries = prompt_of(options, tokens, layout)
            prompt = keys, values, queries if with_queries else None
            times = [1e3 * seconds(cache, options, prompt) for _ in range(options.repeat + 1)][1:]
            yield {
                "rows": rows,
                "tokens": tokens,
                "layout": layout,
                "queries": with_queries,
                "min_ms": round(min(times), 3),
                "median_ms": round(statistics.median(times), 3),
                "max_ms": round(max(times), 3),
            }


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    is_cuda = options.device == "cuda"
    report = {
        "command": "python -m bench.prefill " + shlex.join(argv),
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if is_cuda else platform.processor() or "cpu",
        "geometry": {
            name: getattr(options, name)
            for name in ("layers", "kv_heads", "query_heads", "head_dim")
        },
        "results": [],
    }
    for row in measured(options):
        report["results"].append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
