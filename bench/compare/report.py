"""Results of a comparison as a table and as JSON (the form of `pariskv bench --json`)."""

import os
import tempfile
from pathlib import Path


def add_ratios(results):
    """Time per key and query over ours and over the plain read, by minima and by medians.

    results: of one section; one of them has is_baseline, at most one has the method "read"."""
    baseline = next(result for result in results if result.pop("is_baseline", False))
    read = next((result for result in results if result["method"] == "read"), None)
    for result in results:
        for name, other in (("ours", baseline), ("read", read)):
            for figure in ("min", "median") if other else ():
                result[f"{figure}_x_{name}"] = round(ratio(result, other, f"{figure}_us"), 3)


def ratio(result, other, figure):
    return result[figure] / result["work"] / (other[figure] / other["work"])


COLUMNS = (
    ("method", lambda r: r["method"]),
    ("backend", lambda r: r["backend"]),
    ("min us", lambda r: f"{r['min_us']:.1f}"),
    ("median us", lambda r: f"{r['median_us']:.1f}"),
    ("max us", lambda r: f"{r['max_us']:.1f}"),
    ("GB/s", lambda r: f"{r['bytes'] / r['median_us'] / 1e3:.1f}" if r["bytes"] else "-"),
    ("x ours: min", lambda r: f"{r['min_x_ours']:.2f}"),
    ("median", lambda r: f"{r['median_x_ours']:.2f}"),
    ("x read: min", lambda r: f"{r['min_x_read']:.2f}" if "min_x_read" in r else "-"),
    ("median", lambda r: f"{r['median_x_read']:.2f}" if "median_x_read" in r else "-"),
    ("recall", lambda r: f"{r['candidate_recall']:.3f}" if "candidate_recall" in r else "-"),
    ("setting", lambda r: r.get("setting", "")),
)


def table(results):
    """Lines of a table, the fastest per key and query first."""
    ordered = sorted(results, key=lambda result: result["median_x_ours"])
    rows = [[name for name, _ in COLUMNS]]
    rows += [[cell(result) for _, cell in COLUMNS] for result in ordered]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    left = {0, 1, len(COLUMNS) - 1}
    return [
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def write(path, text):
    """To stdout for "-". A file appears whole or not at all: under another name in the same
    folder, flushed, then renamed."""
    if path == "-":
        print(text, end="")
        return
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
