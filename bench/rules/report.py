"""Tables of results, and reading results back."""

import json
import math
from pathlib import Path

from bench.rules.harness import FIGURES

KIB = 1024
BUDGETS = [64, 128, 256, 512, 1024, 2048, 4096]  # KiB per step and KV head
ORACLES = ("exact",)  # no rule: it reads every key to know what to read


class ResultsError(ValueError):
    """The text names file and field."""


TEXTS = ("trace", "method", "setting")
NUMBERS = ("n", "k", "queries", "device_bytes_per_key", "host_bytes_per_key", "build_s")


def check_figure(where, value):
    if value is None:
        return
    if not isinstance(value, dict) or set(value) != {"mean", "low", "high"}:
        raise ResultsError(f"{where}: accepted: null, or mean, low and high")
    for part, number in value.items():
        if type(number) not in (int, float) or not math.isfinite(number):
            raise ResultsError(f"{where}.{part}: {number!r}, accepted: a finite number")


def dumps(document):
    """JSON with 7 digits a number and a line for each result."""

    def rounded(value):
        if isinstance(value, dict):
            return {name: rounded(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [rounded(part) for part in value]
        return float(f"{value:.7g}") if isinstance(value, float) else value

    parts = []
    for name, value in rounded(document).items():
        lines = [f"  {json.dumps(entry)}" for entry in value] if name == "results" else []
        text = "[\n" + ",\n".join(lines) + "\n ]" if lines else json.dumps(value)
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def load(path):
    """The document of `--json`, or several of them under "runs", checked."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from None
    if isinstance(document, dict) and "runs" in document:
        if not isinstance(document["runs"], list):
            raise ResultsError(f"{path}: runs: accepted: a list")
        for i, run in enumerate(document["runs"]):
            check(f"{path}: runs[{i}].", run)
        return joined(document["runs"])
    check(f"{path}: ", document)
    return document


def check(path, document):
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise ResultsError(f"{path}results: missing, accepted: a list")
    if not isinstance(document.get("left_out", []), list):
        raise ResultsError(f"{path}left_out: accepted: a list")
    for i, entry in enumerate(document["results"]):
        where = f"{path}results[{i}]"
        if not isinstance(entry, dict):
            raise ResultsError(f"{where}: accepted: an object")
        for name in (*TEXTS, *NUMBERS, *FIGURES):
            if name not in entry:
                raise ResultsError(f"{where}.{name}: missing")
        for name in TEXTS:
            if not isinstance(entry[name], str):
                raise ResultsError(f"{where}.{name}: {entry[name]!r}, accepted: a text")
        for name in NUMBERS:
            if type(entry[name]) not in (int, float) or not math.isfinite(entry[name]):
                raise ResultsError(f"{where}.{name}: {entry[name]!r}, accepted: a finite number")
        for name in FIGURES:
            check_figure(f"{where}.{name}", entry[name])
        for name in ("error", "mass", "device_bytes", "host_bytes"):
            if entry[name] is None:
                raise ResultsError(f"{where}.{name}: null, accepted: mean, low and high")
    for i, entry in enumerate(document.get("left_out", [])):
        if not isinstance(entry, dict) or not {"setting", "reason"} <= set(entry):
            raise ResultsError(f"{path}left_out[{i}]: accepted: setting and reason")


def joined(documents):
    """Results of several runs, each trace, setting and k once."""
    results, left_out = {}, []
    for document in documents:
        for entry in document["results"]:
            results.setdefault((entry["trace"], entry["setting"], entry["k"]), entry)
        left_out += document.get("left_out", [])
    ordered = sorted(results.values(), key=lambda entry: entry["trace"])  # stable
    return {"results": ordered, "left_out": left_out}


def means(results):
    """One entry per setting and k that every trace has: means over the traces. The interval of a
    mean is that of independent traces."""
    traces = {result["trace"] for result in results}
    found = []
    for key in dict.fromkeys((result["setting"], result["k"]) for result in results):
        group = [result for result in results if (result["setting"], result["k"]) == key]
        if len(group) != len(traces):
            continue
        entry = {"trace": "mean", **{name: group[0][name] for name in ("method", "setting", "k")}}
        for name in ("device_bytes_per_key", "host_bytes_per_key", "build_s", "n"):
            entry[name] = sum(result[name] for result in group) / len(group)
        for name in FIGURES:
            known = [result[name] for result in group if result[name]]
            entry[name] = mean_of(known) if len(known) == len(group) else None
        found.append(entry)
    return found


def mean_of(figures):
    count = len(figures)
    mean = sum(figure["mean"] for figure in figures) / count
    widths = {
        side: math.hypot(*(figure["mean"] - figure[side] for figure in figures)) / count
        for side in ("low", "high")
    }
    return {"mean": mean, "low": mean - widths["low"], "high": mean + widths["high"]}


def read_of(entry):
    return entry["device_bytes"]["mean"], entry["host_bytes"]["mean"]


def is_on_front(entry, entries):
    """Nothing else has less error with no more bytes from the device and no more from the host."""
    device, host = read_of(entry)
    others = (other for other in entries if other["method"] not in ORACLES)
    return not any(
        read_of(other)[0] <= device
        and read_of(other)[1] <= host
        and other["error"]["mean"] < entry["error"]["mean"]
        for other in others
    )


def decimal(figure, digits=3):
    return "-" if figure is None else f"{figure['mean']:.{digits}f}"


def interval(figure):
    return f"{figure['mean']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"


COLUMNS = (
    ("trace", lambda r: r["trace"]),
    ("setting", lambda r: r["setting"]),
    ("k", lambda r: str(r["k"])),
    ("cand.", lambda r: decimal(r["candidate_recall"])),
    ("recall", lambda r: decimal(r["recall"])),
    ("mass", lambda r: decimal(r["mass"])),
    ("error [95 %]", lambda r: interval(r["error"])),
    ("KL", lambda r: decimal(r["kl"], 4)),
    ("device KiB", lambda r: f"{r['device_bytes']['mean'] / KIB:.1f}"),
    ("host KiB", lambda r: f"{r['host_bytes']['mean'] / KIB:.1f}"),
    ("device B/key", lambda r: f"{r['device_bytes_per_key']:.1f}"),
    ("host B/key", lambda r: f"{r['host_bytes_per_key']:.1f}"),
    ("build s", lambda r: f"{r['build_s']:.2f}"),
)


def aligned(rows, left=2):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def table(results):
    rows = [[*(name for name, _ in COLUMNS), ""]]
    for trace in dict.fromkeys(result["trace"] for result in results):
        group = [result for result in results if result["trace"] == trace]
        for result in group:
            mark = "*" if is_on_front(result, group) else ""
            rows.append([*(cell(result) for _, cell in COLUMNS), mark])
    return aligned(rows)


def budget_table(entries):
    """Per budget of bytes read in a step, all alike, the settings with the least error."""
    rows = [["KiB read", "least error", "", "next, another rule", "", "ours", ""]]
    entries = [entry for entry in entries if entry["method"] not in ORACLES]
    for budget in BUDGETS:
        within = [entry for entry in entries if sum(read_of(entry)) <= budget * KIB]
        within.sort(key=lambda entry: entry["error"]["mean"])
        if not within:
            continue
        first = within[0]
        second = next((e for e in within if e["method"] != first["method"]), None)
        ours = next((e for e in within if e["method"] == "default"), None)
        cells = []
        for entry in (first, second, ours):
            cells += ["-", "-"] if entry is None else [named(entry), decimal(entry["error"], 4)]
        rows.append([str(budget), *cells])
    return aligned(rows, left=0)


def named(entry):
    return f"{entry['setting']} k={entry['k']}"


def lines_of(document):
    results = document["results"]
    lines = []
    if results:
        averages = means(results)
        shown = results if len({r["trace"] for r in results}) == 1 else results + averages
        lines += table(shown)
        lines += ["", "* nothing else has less error with no more bytes of either kind", ""]
        lines += budget_table(averages)
    for entry in document.get("left_out", []):
        where = f" on {entry['trace']}" if "trace" in entry else ""
        lines.append(f"left out: {entry['setting']}{where}: {entry['reason']}")
    return lines
