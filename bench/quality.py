"""The rules that choose what a decoding step attends to, judged on traces of models.

    python -m bench.quality TRACE.. --methods default,quest,pqcache --budget 16,32 --json out.json

Full attention, exact top-k, StreamingLLM, Quest, SnapKV, H2O, MagicPIG, PQCache, HNSW,
ShadowKV-like low rank, RaBitQ, KIVI, and this library's two profiles, in one harness: same sink
and local tokens, same k, same queries, bytes counted by each rule's own layout. docs/quality.md
says what each figure means.

Quality only: rules are in numpy, FAISS and this library, so that times say nothing but how long a
build took here. Needs numpy; FAISS and tqdm are in bench/requirements.txt; the package pariskv on
PYTHONPATH, or installed. A rule whose library is missing is left out, and the table says so.

Exit codes: 0 done, 2 usage, 3 bad input (a trace, a results file)."""

import datetime
import importlib.metadata
import shlex
import sys

import numpy as np

from bench.compare.report import write
from bench.peers import device_name
from bench.rules import harness, options, registry, report, trace


def progress_of(name):
    try:
        from tqdm import tqdm
    except ImportError:
        return lambda queries: queries
    return lambda queries: tqdm(queries, desc=name, unit="query", disable=None, leave=False)


def versions():
    found = {"numpy": np.__version__}
    for name in ("faiss-cpu", "pariskv"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def runnable(settings):
    """(settings whose library is here, left out)."""
    reasons = {setting.method: registry.missing(setting.rule) for setting in settings}
    left_out = [
        {"setting": setting.label, "reason": reasons[setting.method]}
        for setting in settings
        if reasons[setting.method]
    ]
    return [setting for setting in settings if not reasons[setting.method]], left_out


def run(chosen, traces):
    settings, left_out = runnable(chosen.settings)
    results = []
    for one in traces:
        for i, k in enumerate(chosen.k):
            setup = harness.Setup(k, chosen.sink, chosen.local, chosen.fit_queries, chosen.seed)
            geometry = harness.geometry_of(one, setup)
            wanted = registry.with_budgets(settings, chosen.budget, geometry)
            wanted = [setting for setting in wanted if i == 0 or setting.rule.TAKES_K]
            found, left = harness.evaluate(one, wanted, setup, progress_of(f"{one.name}, k = {k}"))
            results += found
            left_out += left
    return results, left_out


def load_traces(parser_error, chosen):
    traces = [trace.load(path) for path in chosen.traces]
    for path, one in zip(chosen.traces, traces):
        last = len(one.positions) - 1
        if chosen.fit_queries > last:
            parser_error(f"--fit-queries {chosen.fit_queries}, accepted: 0..{last} for {path}")
    return traces


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    chosen = options.parse(argv, __doc__)
    try:
        if chosen.show:
            document = report.joined(report.load(path) for path in chosen.show)
        else:
            traces = load_traces(options.make_parser(__doc__).error, chosen)
            results, left_out = run(chosen, traces)
            command = shlex.join(["python", "-m", "bench.quality", *argv])
            document = {
                "device": device_name(),
                "command": command,
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "versions": versions(),
                "results": results,
                "left_out": left_out,
            }
    except (trace.TraceError, report.ResultsError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    out = sys.stderr if chosen.json == "-" else sys.stdout
    print(*report.lines_of(document), sep="\n", file=out)
    if chosen.json:
        write(chosen.json, report.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
