"""What each default of the library is worth: one option changed at a time, on traces of models.

    python -m bench.ablations TRACE.. --seeds 1,2,3 --json results.json
    python -m bench.ablations --show results.json

Each setting is a `pariskv eval --methods default` per sign seed, at two shares of candidates, with
everything else as the profile `default` has it. docs/ablations.md has the figures and what cannot
be varied from outside. Exit codes: 0 done, 2 usage, 3 bad input (a trace, a results file)."""

import argparse
import datetime
import json
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.compare.report import write
from bench.peers import device_name

ROOT = Path(__file__).resolve().parents[1]
FIT_QUERIES = 64  # queries of each trace that may be fitted to; the others judge, in all settings
# name -> (options of the default first, then each alternative)
KNOBS = {
    "center": [{"center": "on"}, {"center": "off"}],
    "balance": [{"balance": "on"}, {"balance": "off"}],
    "fit": [{"fit": "picked"}, {"fit": "keys"}],
    "fit queries": [{"fit_queries": n} for n in (64, 0, 4, 16, 32)],
    "rounds": [{"rounds": 1}, {"rounds": 2}],
    "codec": [{"codec": "scalar4"}, {"codec": "polar4"}, {"codec": "scalar5"}],
    "vote": [{"vote": "graded"}, {"vote": "tier"}, {"vote": "tier", "rho_of": "centroids"}],
    "vote group": [{"vote_group": "sum"}, {"vote_group": "heads"}],
    "rank": [{"rank": "group"}, {"rank": "mean"}],
    "value norm": [{"value_norm": "off"}, {"value_norm": "on"}],
    "tail": [{"tail": t} for t in ("sampled", "drop", "mean", "sketch2", "sketch4")],
    "tail samples": [{"tail_samples": n} for n in (512, 128, 256, 1024, 2048)],
    "without rows": [{"k": 0}, {"k": 0, "tail": "sketch2"}, {"k": 0, "tail": "sketch4"}],
    "k": [{"k": k} for k in (100, 32, 200, 400)],
    "map": [{}, {"map": "on", "center": "off", "balance": "off", "fit": "keys"}],  # bench/maps.py
    "candidates": [{}, {"candidates": 0.01}, {"candidates": 0.1}, {"candidates": 0.2}],
}
FIGURES = ("candidate_recall", "recall", "mass", "error", "bytes_per_key")


class AblationError(ValueError):
    pass


def label_of(options):
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "as given"


def read(path):
    """(data, header) of a safetensors file; offsets count from the data's first byte."""
    raw = Path(path).read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    return raw[begin:], json.loads(raw[8:begin])


def joined(header, parts):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def without_queries(path, count):
    """The safetensors file without the first `count` queries."""
    raw, header, parts, at = *read(path), [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        if name in ("q", "q_pos"):
            rows = entry["shape"][0]
            if rows <= count:
                raise AblationError(f"{path}: {rows} queries, more than {count} are needed")
            first += (end - first) // rows * count
            entry["shape"][0] -= count
        parts.append(raw[first:end])
        entry["data_offsets"] = [at, at + end - first]
        at += end - first
    return joined(header, parts)


def mapped(path):
    """The trace under a map of each KV head, fitted to its zone and the first queries."""
    try:
        import torch
    except ImportError as error:
        raise AblationError(f"the knob map needs torch ({error})") from None
    from bench.maps import fitted
    from bench.rules import trace
    from bench.rules.harness import Setup, regions_at

    one, setup = trace.load(str(path)), Setup()
    regions = regions_at(int(one.positions[FIT_QUERIES - 1]), setup.sink, setup.local)
    keys = torch.from_numpy(one.keys.astype("float32"))
    queries = torch.from_numpy(one.queries.astype("float32")).transpose(0, 1)
    zone = keys[:, regions.sink_end : regions.zone_end]
    mean, found = fitted(zone, queries[:, :FIT_QUERIES])
    inverse = torch.linalg.inv(found).repeat_interleave(one.group, 0)
    moved = {"k": (keys.double() - mean) @ found.transpose(1, 2),
             "q": (queries.double() @ inverse).transpose(0, 1)}  # fmt: skip
    raw, header, parts, at = *read(path), [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if name in moved:
            entry["dtype"], part = "F32", moved[name].float().contiguous().numpy().tobytes()
        else:
            part = raw[slice(*entry["data_offsets"])]
        entry["data_offsets"] = [at, at + len(part)]
        parts.append(part)
        at += len(part)
    return joined(header, parts)


class Eval:
    """Runs `pariskv eval`, each command once."""

    def __init__(self, program, traces, folder):
        self.program, self.traces, self.folder = program, traces, Path(folder)
        self.known, self.cut = {}, {}

    def traces_for(self, fit_queries, is_mapped):
        """The traces with only the last `fit_queries` of the queries before those that judge, or
        under a map."""
        if fit_queries == FIT_QUERIES and not is_mapped:
            return self.traces
        name = "mapped" if is_mapped else f"{fit_queries}"
        if name not in self.cut:
            (self.folder / name).mkdir()
            self.cut[name] = [self.folder / name / path.name for path in self.traces]
            for path, target in zip(self.traces, self.cut[name]):
                count = FIT_QUERIES - fit_queries
                target.write_bytes(mapped(path) if is_mapped else without_queries(path, count))
        return self.cut[name]

    def run(self, options, seed):
        """[figures of each trace]"""
        options = {"k": 100, "fit_queries": FIT_QUERIES, "seed": seed, **options}
        key = json.dumps(options, sort_keys=True)
        if key not in self.known:
            is_mapped = options.pop("map", "off") == "on"
            given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
            paths = map(str, self.traces_for(options["fit_queries"], is_mapped))
            command = [self.program, "eval", *paths, "--methods", "default", "--json", *given]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise AblationError(done.stderr.strip() or f"{command[0]}: {done.returncode}")
            self.known[key] = json.loads(done.stdout)["results"]
        return self.known[key]


def figures_of(per_seed):
    """Means over traces, of them the mean, least and largest over seeds; and per trace."""
    found = {}
    for name in FIGURES:
        rows = [[entry[name] for entry in entries] for entries in per_seed]
        if any(value is None for row in rows for value in row):  # nothing to find
            continue
        means = [statistics.fmean(row) for row in rows]
        per_trace = [statistics.fmean(column) for column in zip(*rows)]
        found[name] = {"mean": statistics.fmean(means), "low": min(means), "high": max(means),
                       "traces": [round(value, 5) for value in per_trace]}  # fmt: skip
    return found


def measure(evaluator, knobs, shares, seeds, say=lambda text: None):
    for name in knobs:
        for share in shares:
            base = None
            for options in KNOBS[name]:
                if name == "candidates" and options and share != shares[0]:
                    continue
                say(f"{name}: {label_of(options)}, {share:g}")
                per_seed = [evaluator.run({"candidates": share, **options}, s) for s in seeds]
                row = {"knob": name, "candidates": options.get("candidates", share),
                       "options": options, "label": label_of(options), "is_default": base is None,
                       **figures_of(per_seed)}  # fmt: skip
                if base is not None:  # paired by seed
                    row["change"] = changes(base, per_seed)
                else:
                    base = per_seed
                yield row


def changes(base, per_seed):
    """Differences of the means over traces to the default's, least and largest over seeds."""
    found = {}
    for name in ("candidate_recall", "error"):
        pairs = [
            [statistics.fmean(entry[name] for entry in entries) for entries in (mine, theirs)]
            for mine, theirs in zip(per_seed, base)
            if mine[0][name] is not None and theirs[0][name] is not None
        ]
        if pairs:
            steps = [mine - theirs for mine, theirs in pairs]
            found[name] = {"mean": statistics.fmean(steps), "low": min(steps), "high": max(steps)}
    return found


def lines_of(document):
    for row in document["results"]:
        mark = "*" if row["is_default"] else " "
        cells = [f"{mark} {row['knob']:14} {row['label']:32} {100 * row['candidates']:5.1f} %"]
        for name, digits in (("candidate_recall", 3), ("error", 4)):
            if name in row:
                one = row[name]
                worst = min(one["traces"]) if name == "candidate_recall" else max(one["traces"])
                cells.append(f"{name} {one['mean']:.{digits}f} (worst {worst:.{digits}f})")
        for one in row.get("change", {}).values():
            cells.append(f"{one['mean']:+.4f} ({one['low']:+.4f} .. {one['high']:+.4f})")
        cells.append(f"{row['bytes_per_key']['mean']:.1f} B")
        yield "  ".join(cells)


def load(path):
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AblationError(f"{path}: {error}") from None
    rows = document.get("results") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise AblationError(f"{path}: field 'results' must be a list")
    for i, row in enumerate(rows):
        for name in ("knob", "label", "candidates", "is_default", "bytes_per_key"):
            if not isinstance(row, dict) or name not in row:
                raise AblationError(f"{path}: results[{i}] has no field {name!r}")
    return document


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench.ablations", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    parser.add_argument(
        "--knobs",
        default=",".join(name for name in KNOBS if name != "map"),
        help="which; default: all but map, which needs torch",
    )
    parser.add_argument("--shares", default="0.05,0.02", help="of the keys as candidates")
    parser.add_argument("--seeds", default="1,2,3", help="of the signs")
    default = ROOT / "build" / "dev" / "bin" / "pariskv"
    parser.add_argument("--program", default=str(default), help="the program pariskv")
    parser.add_argument("--json", help="write the results")
    parser.add_argument("--show", help="the table of a results file")
    chosen = parser.parse_args(argv)
    if bool(chosen.traces) == bool(chosen.show):
        parser.error("give traces, or --show RESULTS")
    chosen.knobs = [name.strip() for name in chosen.knobs.split(",")]
    for name in chosen.knobs:
        if name not in KNOBS:
            parser.error(f"--knobs {name}: choose from {', '.join(KNOBS)}")
    try:
        chosen.shares = [float(text) for text in chosen.shares.split(",")]
        chosen.seeds = [int(text) for text in chosen.seeds.split(",")]
    except ValueError as error:
        parser.error(f"--shares, --seeds: {error}")
    return chosen


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    chosen = parse(argv)
    try:
        if chosen.show:
            document = load(chosen.show)
        else:
            with tempfile.TemporaryDirectory() as folder:
                evaluator = Eval(chosen.program, chosen.traces, folder)
                rows = list(measure(evaluator, chosen.knobs, chosen.shares, chosen.seeds,
                                    lambda text: print(text, file=sys.stderr)))  # fmt: skip
            document = {
                "device": device_name(),
                "machine": platform.machine(),
                "command": shlex.join(["python", "-m", "bench.ablations", *argv]),
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "traces": [path.stem for path in chosen.traces],
                "seeds": chosen.seeds,
                "results": rows,
            }
    except (AblationError, OSError, ValueError) as error:
        print(f"ablations: {error}", file=sys.stderr)
        return 3
    print(*lines_of(document), sep="\n")
    if chosen.json:
        write(chosen.json, json.dumps(document, indent=None).replace('{"knob"', '\n{"knob"') + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
