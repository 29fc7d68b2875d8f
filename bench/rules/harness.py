"""Judges rules on a trace against full attention in float64 (docs/quality.md)."""

import time
from dataclasses import dataclass

import numpy as np

from bench.rules import library
from bench.rules.base import Geometry, SettingError, best, regions_at, softmax, subset_weights
from bench.rules.stats import summary

FIGURES = ("candidate_recall", "recall", "mass", "error", "kl", "device_bytes", "host_bytes")


@dataclass(frozen=True)
class Setup:
    k: int = 100
    sink: int = 128
    local: int = 512
    fit_queries: int = 64
    seed: int = 0


def geometry_of(trace, setup):
    return Geometry(
        head_dim=trace.keys.shape[2],
        value_dim=trace.values.shape[2],
        group=trace.group,
        scale=float(trace.scale),
        sink=setup.sink,
        local=setup.local,
        k=setup.k,
        key_bytes=trace.row_bytes[0],
        value_bytes=trace.row_bytes[1],
        seed=setup.seed,
    )


class PerHead:
    """A rule of one KV head, for each of a layer's. It sees no token before its time."""

    def __init__(self, rule, trace, setup, params):
        self.trace = trace
        self.keys = trace.keys.astype(np.float32)
        self.values = trace.values.astype(np.float32)
        self.rules = [rule(geometry_of(trace, setup), **params) for _ in range(trace.kv_heads)]

    def queries(self, numbers, head):
        group = self.trace.group
        found = self.trace.queries[numbers, ..., head * group : (head + 1) * group, :]
        return found.astype(np.float32)

    def build(self, fit_queries, fit_position):
        tokens = fit_position + 1
        positions = self.trace.positions[:fit_queries]
        for head, rule in enumerate(self.rules):
            queries = self.queries(slice(0, fit_queries), head)
            rule.build(self.keys[head, :tokens], self.values[head, :tokens], queries, positions)

    def select(self, number, regions):
        tokens = regions.tokens
        return [
            rule.select(
                self.queries(number, head),
                self.keys[head, :tokens],
                self.values[head, :tokens],
                regions,
            )
            for head, rule in enumerate(self.rules)
        ]

    def memory(self, zone):
        return self.rules[0].memory(zone)


class PerLayer:
    """This library, which takes all KV heads of a layer."""

    def __init__(self, rule, trace, setup, params):
        self.trace, self.rule = trace, rule(geometry_of(trace, setup), **params)

    def build(self, fit_queries, fit_position):
        last = int(self.trace.positions[fit_queries:].max())
        self.rule.build(self.trace, fit_queries, fit_position, last)

    def select(self, number, regions):
        return self.rule.select_all(self.trace, number, regions)

    def memory(self, zone):
        return self.rule.memory(zone)


class Truth:
    """Full attention of one query group, and the exact best k of the zone."""

    def __init__(self, query, keys, values, regions, geometry):
        logits = geometry.scale * (query @ keys.T)
        self.logits, self.regions, self.query = logits, regions, query
        self.keys, self.values, self.scale = keys, values, geometry.scale
        self.weights = softmax(logits)
        self.output = self.weights @ values
        scores = logits.mean(axis=0)[regions.sink_end : regions.zone_end]
        self.best = regions.sink_end + best(scores, min(geometry.k, regions.zone))


def share(wanted, found):
    return float(np.isin(wanted, found).mean()) if len(wanted) else None


def divergence(weights, truth):
    """[G]: KL(rule || full attention) in nats, over the tokens that the rule attends to."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = weights * (np.log(weights) - np.log(np.maximum(truth.weights, 1e-300)))
    return np.where(weights > 0, terms, 0).sum(axis=1)


def judge(truth, answer):
    """Figures of one answer: numbers per KV head, lists per query head."""
    regions, weights, output = truth.regions, answer.weights, answer.output
    if weights is None and output is None:
        rows = answer.rows
        weights = subset_weights(truth.query, truth.keys, regions, rows, truth.scale)
    if output is None:
        output = weights @ truth.values
    dense = truth.weights[:, : regions.sink_end].sum(axis=1)
    dense = dense + truth.weights[:, regions.zone_end :].sum(axis=1)
    head_rows = answer.head_rows or [answer.rows] * len(dense)
    mass = [min(1.0, dense[g] + truth.weights[g, rows].sum()) for g, rows in enumerate(head_rows)]
    size = np.linalg.norm(truth.output, axis=1)
    error = np.linalg.norm(output - truth.output, axis=1) / np.where(size > 0, size, 1)
    candidates = answer.candidates
    return {
        "candidate_recall": None if candidates is None else share(truth.best, candidates),
        "recall": share(truth.best, answer.rows),
        "mass": [float(value) for value in mass],
        "error": [float(value) for value in error],
        "kl": None if weights is None else divergence(weights, truth).tolist(),
        "device_bytes": float(answer.device_bytes),
        "host_bytes": float(answer.host_bytes),
    }


class Entrant:
    """One setting on one trace, and its figures so far: [query][KV head]."""

    def __init__(self, setting, trace, setup, fit_position):
        kind = PerLayer if issubclass(setting.rule, library.Library) else PerHead
        self.setting, self.figures, self.seconds = setting, [], 0.0
        self.state = kind(setting.rule, trace, setup, setting.params)
        start = time.perf_counter()
        self.state.build(setup.fit_queries, fit_position)
        self.build_s = time.perf_counter() - start

    def ask(self, number, regions, truths):
        start = time.perf_counter()
        answers = self.state.select(number, regions)
        self.seconds += time.perf_counter() - start
        self.figures.append([judge(truth, answer) for truth, answer in zip(truths, answers)])

    def result(self, trace, setup, zone):
        def figures(rows):
            found = {}
            for name in FIGURES:
                values = [row[name] for row in rows if row[name] is not None]
                flat = [x for value in values for x in (value if type(value) is list else [value])]
                found[name] = summary(flat)
            return found

        device, host = self.state.memory(zone) if zone else (0, 0)
        heads = [
            {"kv_head": label, **figures([row[head] for row in self.figures])}
            for head, label in enumerate(trace.kv_labels)
            if len(trace.kv_labels) > 1  # else they are those of the whole
        ]
        return {
            "trace": trace.name,
            "layer": trace.layer,
            "kv_heads": trace.kv_labels,
            "method": self.setting.method,
            "setting": self.setting.label,
            "params": self.setting.params,
            "n": trace.keys.shape[1],
            "k": int(self.setting.params.get("k", setup.k)),
            "queries": len(self.figures),
            **figures([row for rows in self.figures for row in rows]),
            "device_bytes_per_key": device / zone if zone else 0,
            "host_bytes_per_key": host / zone if zone else 0,
            "build_s": round(self.build_s, 4),
            "python_us": round(1e6 * self.seconds / len(self.figures), 1),
            "heads": heads,
        }


def truths_of(trace, keys, values, number, regions, geometry):
    group, tokens = trace.group, regions.tokens
    queries = trace.queries[number].astype(np.float64).reshape(-1, group, geometry.head_dim)
    return [
        Truth(queries[head], keys[head, :tokens], values[head, :tokens], regions, geometry)
        for head in range(trace.kv_heads)
    ]


def evaluate(trace, settings, setup, progress=lambda queries: queries):
    """(results, left out) of one trace."""
    geometry = geometry_of(trace, setup)
    fit_position = int(trace.positions[max(setup.fit_queries, 1) - 1])
    entrants, left_out = [], []
    for setting in settings:
        try:
            entrants.append(Entrant(setting, trace, setup, fit_position))
        except SettingError as error:
            entry = {"trace": trace.name, "setting": setting.label, "reason": str(error)}
            left_out.append(entry)
    judged = range(setup.fit_queries, len(trace.positions))
    judged = sorted(judged, key=lambda number: trace.positions[number])  # stable, as eval
    keys, values = trace.keys.astype(np.float64), trace.values.astype(np.float64)
    for number in progress(judged):
        regions = regions_at(int(trace.positions[number]), setup.sink, setup.local)
        truths = truths_of(trace, keys, values, number, regions, geometry)
        for entrant in entrants:
            entrant.ask(number, regions, truths)
    return [entrant.result(trace, setup, regions.zone) for entrant in entrants], left_out
