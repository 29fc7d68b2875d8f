"""Our decode step and search beside those of others, in one process on the same data.

    python -m bench.peers --n 32768,131072,1048576 --candidates 0.05,0.02,0.01 --json peers.json

Step: pkv_step_run (8 KV heads, 32 query heads, d = 128, bf16, k = 100, default profile, 128 + 768
dense tokens) against full attention by torch over the same n + 896 tokens. Search: pkv_retrieve
(vote, exact selection, rerank), and the stages vote and select, over 8 x n keys, against FAISS
indices of the same keys, per key and query. Both against a plain read of as many bytes as the vote
reads, on as many threads.

Methods take turns. Before each turn the last-level cache is read full of something else, threads
that still spin get time to stop, and the method does a little work untimed to be awake. Every turn
has a query of its own; layers rotate. Only ratios within one run count.

Needs bench/requirements.txt and a built library. Exit codes: 0 done, 1 ours disagrees with full
attention or with itself, 2 usage, 4 backend or peer unavailable."""

import datetime
import json
import os
import platform
import shlex
import sys
from pathlib import Path

from bench.compare import capi, options, report
from bench.compare.measure import last_level_cache


class UnavailableError(Exception):
    pass


def open_library(chosen):
    path = capi.library_path(chosen.library)
    if not path.is_file():
        raise UnavailableError(f"{path} is not there: build it, or name it by --library")
    try:
        library = capi.Library(path, chosen.backend, chosen.threads, chosen.plugin)
    except (capi.PariskvError, OSError) as error:
        raise UnavailableError(error) from error
    kind = library.describe()["device_type"]
    if kind != "cpu":
        raise UnavailableError(
            f"backend {library.backend} works in memory of type {kind}, accepted: cpu"
        )
    return library


def device_name():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} CPUs, last-level cache {last_level_cache() >> 20} MiB"


def run(chosen, argv, out):
    """(document, exit code); prints tables."""
    try:
        from bench.compare.room import DisagreementError, Room
    except ImportError as error:
        raise UnavailableError(f"{error}: pip install -r bench/requirements.txt") from error
    library = open_library(chosen)
    room = Room(library, chosen)
    document = {
        "device": device_name(),
        "command": shlex.join(["python", "-m", "bench.peers", *argv]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": room.versions(),
        "results": [],
        "left_out": room.left_out,
    }
    versions = ", ".join(f"{name} {version}" for name, version in room.versions().items())
    print(f"{document['device']}\n{versions}; backend {library.backend}", file=out)
    try:
        document["step_error"] = room.step_error()
        print(f"step with every key fetched against torch: {document['step_error']:.1e}", file=out)
        for title, results in room.all_sections():
            report.add_ratios(results)
            document["results"] += results
            print(f"\n{title}", *report.table(results), sep="\n", file=out, flush=True)
    except DisagreementError as error:
        print(f"peers: {error}", file=sys.stderr)
        return document, 1
    for entry in room.left_out:
        print("left out: {method}, n = {n}: {reason}".format(**entry), file=out)
    return document, 0


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    chosen = options.parse(argv, __doc__)
    try:
        document, code = run(chosen, argv, sys.stderr if chosen.json == "-" else sys.stdout)
    except (UnavailableError, capi.PariskvError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        return 130
    if chosen.json and code == 0:
        report.write(chosen.json, json.dumps(document, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
