"""What the scores of many prompts say: shares, wins and losses against full attention."""

import numpy as np

from bench.rules.stats import summary

LEAST = 0.5  # of full attention's mean score; a task and length below it does not count


def cells(rows):
    """{(task, length): rows}, in the order of appearance."""
    found = {}
    for row in rows:
        found.setdefault((row["task"], row["length"]), []).append(row)
    return found


def against_full(rows, method):
    """Wins, losses and differences of a method's scores against full attention's."""
    pairs = [(row["scores"][method], row["scores"]["full"]) for row in rows]
    signs = [float(np.sign(mine - full)) for mine, full in pairs]
    return {
        "prompts": len(pairs),
        "wins": sum(sign > 0 for sign in signs),
        "losses": sum(sign < 0 for sign in signs),
        "net_percent": scaled(summary(signs), 100),
        "difference_percent": scaled(summary([mine - full for mine, full in pairs]), 100),
    }


def scaled(values, factor):
    return values and {name: value * factor for name, value in values.items()}


def summarise(rows, least=LEAST):
    """Per task and length, then per length and in all over those that count: full attention has
    at least `least`."""
    methods = list(rows[0]["scores"]) if rows else []
    per_task, counted = [], {}
    for (task, length), some in cells(rows).items():
        scores = {m: summary([row["scores"][m] for row in some]) for m in methods}
        counts = "full" not in methods or bool(scores["full"]["mean"] >= least)
        per_task.append({"task": task, "length": length, "prompts": len(some), "counts": counts,
                         "scores": scores})  # fmt: skip
        if counts:
            counted.setdefault(length, []).extend(some)
    totals = []
    if len(counted) > 1:
        counted["all"] = [row for some in counted.values() for row in some]
    for length, some in counted.items():
        for method in methods:
            found = {"length": length, "method": method, "prompts": len(some),
                     "score": summary([row["scores"][method] for row in some])}  # fmt: skip
            if "full" in methods and method != "full":
                found.update(against_full(some, method))
            totals.append(found)
    return {"per_task": per_task, "counted": totals}


def lines_of(found):
    """As a text of tables."""
    lines = []
    for row in found["per_task"]:
        scores = "  ".join(f"{m} {100 * s['mean']:.1f}" for m, s in row["scores"].items())
        note = "" if row["counts"] else "  (does not count)"
        lines.append(f"{row['task']:16} {row['length']:>7} x{row['prompts']:<4} {scores}{note}")
    for row in found["counted"]:
        line = f"{'counted':16} {row['length']:>7} x{row['prompts']:<4} {row['method']} "
        line += f"{100 * row['score']['mean']:.1f}"
        if "wins" in row:
            net, diff = row["net_percent"], row["difference_percent"]
            line += f"  wins {row['wins']} losses {row['losses']}, net {net['mean']:+.1f} % "
            line += f"({net['low']:+.1f} .. {net['high']:+.1f}), score {diff['mean']:+.2f} points "
            line += f"({diff['low']:+.2f} .. {diff['high']:+.2f})"
        lines.append(line)
    return lines
