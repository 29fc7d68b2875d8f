"""The command line of peers.py."""

import argparse
import os
from pathlib import Path

TORCH = ("matmul-bf16", "sdpa-bf16", "matmul-f32", "sdpa-f32")
FAISS = ("flat", "pq-fastscan", "rabitq-fastscan", "ivfpq", "hnsw")
OURS = ("step", "retrieve", "vote+select")
NAMES = (*OURS, "read", *TORCH, *FAISS)
GROUPS = {"all": NAMES, "ours": OURS, "torch": TORCH, "faiss": FAISS}


def number(kind, lowest, highest):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text!r}, accepted: {lowest}..{highest}")
        return value

    return parse


def numbers(kind, lowest, highest):
    one = number(kind, lowest, highest)
    return lambda text: [one(part) for part in text.split(",")]


def methods(text):
    chosen = set()
    for name in text.split(","):
        if name not in NAMES and name not in GROUPS:
            accepted = ", ".join((*GROUPS, *NAMES))
            raise argparse.ArgumentTypeError(f"{name!r}, accepted: {accepted}")
        chosen.update(GROUPS.get(name, (name,)))
    return chosen


def parser_of(module, about):
    """Of `python -m module`; `about` is its docstring."""
    title, _, rest = about.partition("\n")
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=title,
        epilog=rest,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def make_parser(about):
    parser = parser_of("bench.peers", about)

    def add(name, kind, default, about):
        parser.add_argument(name, type=kind, default=default, help=about)

    add(
        "--n",
        numbers(int, 128, 1 << 24),
        [32768, 131072, 1048576],
        "keys of the zone, one or more, commas between (default 32768,131072,1048576)",
    )
    add(
        "--candidates",
        numbers(float, 1e-6, 1),
        None,
        "their shares, one per n or one for all (default .05 below 64Ki keys, .02 below 512Ki, "
        ".01 else)",
    )
    add("--threads", number(int, 1, 1024), os.cpu_count(), "of every method (default: all CPUs)")
    add("--repeat", number(int, 1, 100000), 20, "timed turns of each method (default 20)")
    choices = f"names or groups, commas between: {', '.join((*GROUPS, *NAMES))} (default all)"
    add("--methods", methods, set(NAMES), choices)
    add("--backend", str, "auto", "ours (default auto)")
    add("--library", str, None, "libpariskv.so (default PARISKV_LIBRARY, else one under build/)")
    add("--plugin", str, None, "a backend library to load first")
    add("--layers", number(int, 1, 1024), 4, "that rotate, memory permitting (default 4)")
    add("--memory", number(float, 0.1, 4096), 14, "GiB for keys, values and records (default 14)")
    add(
        "--search-limit",
        number(int, 128, 1 << 24),
        131072,
        "largest n for the comparison of searches (default 131072)",
    )
    add(
        "--hnsw-limit",
        number(int, 128, 1 << 24),
        131072,
        "most keys in one HNSW graph (default 131072)",
    )
    add("--pause", number(float, 0, 10), 0.03, "seconds before each turn (default 0.03)")
    parser.add_argument("--json", metavar="FILE", help="the results as JSON, - for stdout")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    return parser


def default_share(n):
    return 0.05 if n < 1 << 16 else 0.02 if n < 1 << 19 else 0.01


def parse(argv, about):
    """Options, with a share of candidates for each n."""
    parser = make_parser(about)
    options = parser.parse_args(argv)
    count = len(options.n)
    if options.candidates is None:
        options.candidates = [default_share(n) for n in options.n]
    if len(options.candidates) not in (1, count):
        parser.error(f"--candidates has {len(options.candidates)} shares, accepted: 1 or {count}")
    options.candidates = (options.candidates * count)[:count]
    if options.json not in (None, "-"):
        check_output(parser, Path(options.json), options.force)
    return options


def check_output(parser, path, force):
    if not path.parent.is_dir():
        parser.error(f"--json {path}: no folder {path.parent}")
    if path.exists() and not force:
        parser.error(f"--json {path} exists, accepted: a new file, or --force")
