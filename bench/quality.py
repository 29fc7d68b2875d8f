"""The rules that choose what a decoding step attends to, judged on traces of models.

    python -m bench.quality TRACE.. --methods default,quest,pqcache --budget 16,32 --json out.json
    python -m bench.quality FOLDER --preset peers --jobs 16 --minutes 3 --json out.json

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
import time

import numpy as np

from bench.compare.report import write
from bench.peers import device_name
from bench.rules import harness, jobs, options, registry, report, trace

SAVE_SECONDS = 10


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


def jobs_of(chosen, traces):
    """(jobs in the order of results, left out)."""
    parts, found, left_out = [], [], []
    for part in chosen.parts:
        settings, left = runnable(part.methods)
        parts.append((settings, part))
        left_out += [entry for entry in left if entry not in left_out]
    for path, one in traces:
        for settings, part in parts:
            for i, k in enumerate(part.k):
                setup = harness.Setup(k, chosen.sink, chosen.local, chosen.fit_queries, chosen.seed)
                wanted = registry.with_budgets(
                    settings, part.budget, harness.geometry_of(one, setup)
                )
                wanted = [setting for setting in wanted if i == 0 or setting.rule.TAKES_K]
                found.append(jobs.Job(path, one.keys.shape[1], setup, wanted))
    return found, left_out


def run_alone(wanted, traces):
    """One after the other, here."""
    by_path, results, left_out = dict(traces), [], []
    for job in wanted:
        progress = progress_of(f"{by_path[job.path].name}, k = {job.setup.k}")
        found, left = harness.evaluate(by_path[job.path], job.settings, job.setup, progress)
        results += found
        left_out += left
    return results, left_out


def run_shared(chosen, wanted, save):
    """In processes; `save` gets what is there from time to time."""
    began = saved = time.monotonic()
    found, left_out = [], []

    def keep(job, outcome):
        nonlocal saved
        found.extend(jobs.placed(job, outcome))
        left_out.extend(outcome[1])
        now = time.monotonic()
        print(f"{now - began:.0f} s: {job.label}", file=sys.stderr, flush=True)
        if now - saved > SAVE_SECONDS:
            saved = now
            save(in_order(found), left_out)

    jobs.run(jobs.split(wanted), chosen.jobs, began + 60 * chosen.minutes, keep)
    return in_order(found), left_out


def in_order(placed):
    return [result for _, result in sorted(placed, key=lambda pair: pair[0])]


def load_traces(parser_error, chosen):
    """[(path, trace)]; a folder stands for the traces in it."""
    paths = [path for name in chosen.traces for path in trace.paths_of(name)]
    traces = [(path, trace.load(path)) for path in paths]
    for path, one in traces:
        last = len(one.positions) - 1
        if chosen.fit_queries > last:
            parser_error(f"--fit-queries {chosen.fit_queries}, accepted: 0..{last} for {path}")
    return traces


def judge(chosen, argv):
    """The document; with several processes it is written from time to time, too."""
    traces = load_traces(options.make_parser(__doc__).error, chosen)
    wanted, missing = jobs_of(chosen, traces)

    def document(results, left_out):
        return {
            "device": device_name(),
            "command": shlex.join(["python", "-m", "bench.quality", *argv]),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "versions": versions(),
            "results": results,
            "left_out": missing + left_out,
        }

    def save(results, left_out):
        if chosen.json not in (None, "-"):
            write(chosen.json, report.dumps(document(results, left_out)))

    if chosen.jobs > 1:
        return document(*run_shared(chosen, wanted, save))
    return document(*run_alone(wanted, traces))


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    chosen = options.parse(argv, __doc__)
    try:
        if chosen.show:
            document = report.joined(report.load(path) for path in chosen.show)
        else:
            document = judge(chosen, argv)
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
