"""Attend (docs/algorithm.md, section 8), in float64, for the G heads of one row."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle import model
from oracle.encode import unpack_bits, unpack_codes, value_tables
from oracle.f32 import from_bf16
from oracle.rerank import log_sum_exp
from oracle.rotation import unrotate

TRUSTED = 32  # samples at which the samples' value counts one half


@dataclass
class Zone:
    """What is known of the keys that were not fetched."""

    length: int  # n
    candidates: np.ndarray  # positions, ascending
    estimates: np.ndarray  # float32 [G, candidates]
    rest_lse: np.ndarray  # float32 [G]
    fetched: np.ndarray  # positions of fetched rows
    value_sums: np.ndarray  # float64 [dv]
    good_count: int
    records: Optional[object] = None  # all of the row, with a sketch
    samples: Optional[np.ndarray] = None  # positions, with a sketch
    sample_estimates: Optional[np.ndarray] = None  # float32 [G, samples]


def sketch_entries(geometry, positions):
    """Where the sketches of `positions` lie in the value planes."""
    assert (positions % geometry.stride == 0).all()
    return positions // geometry.stride


def sketch_values(geometry, params, records, positions):
    """Approximate values of the keys at `positions`, float64 [m, dv]."""
    entries = sketch_entries(geometry, positions)
    table = value_tables(geometry.sketch_bits)[1].astype(np.float64)
    sign = unpack_bits(records.value_signs[entries]).astype(np.float64) * 2 - 1
    factors = from_bf16(records.value_factors[entries]).astype(np.float64)
    y = factors[:, None] * sign * table[unpack_codes(records.value_codes[entries])]
    turned = unrotate(y, params.value_signs_1, params.value_signs_2)
    return params.value_center.astype(np.float64) + turned


class Tail:
    """The tail of one row: what each head adds to the softmax."""

    def __init__(self, geometry, params, tail, logit, zone):
        self.tail, self.logit, self.zone = tail, logit, zone
        self.left = ~np.isin(zone.candidates, zone.fetched)
        self.mean = None
        if zone.good_count:
            self.mean = zone.value_sums / zone.good_count
        if tail == model.SKETCH:
            positions = zone.candidates[self.left]
            self.sketched = sketch_values(geometry, params, zone.records, positions)
        if tail in (model.SKETCH, model.SAMPLED):
            known = zone.candidates if tail == model.SKETCH else zone.fetched
            good = zone.records.good[zone.samples]
            self.good_samples = good & ~np.isin(zone.samples, known)
            positions = zone.samples[self.good_samples]
            self.sampled = sketch_values(geometry, params, zone.records, positions)

    def sample_logits(self, head):
        return self.logit(self.zone.sample_estimates[head, self.good_samples])

    def pseudo_value(self, head):
        """The value of the one token that stands for many keys."""
        if self.tail == model.MEAN:
            return self.mean
        logits = self.sample_logits(head)
        if len(logits) == 0:
            return self.mean
        o = np.exp(logits - logits.max())
        value = o @ self.sampled / o.sum()
        number = o.sum() ** 2 / (o**2).sum()
        trust = number / (number + TRUSTED)
        if self.tail == model.SKETCH and len(self.zone.samples) == self.zone.length:
            trust = 1.0
        return trust * value + (1 - trust) * self.mean

    def tokens(self, head):
        """(logits, values) that one head attends to."""
        logits, values = [], []
        estimates = self.logit(self.zone.estimates[head, self.left])
        rest = float(self.zone.rest_lse[head])
        if self.tail == model.SKETCH:
            logits.append(estimates)
            values.append(self.sketched)
        else:
            rest = float(log_sum_exp(np.append(estimates, rest)))
        if self.mean is not None and rest > -np.inf:
            logits.append(np.array([rest]))
            values.append(self.pseudo_value(head)[None])
        return logits, values

    def largest_logit(self, head):
        if self.tail not in (model.SKETCH, model.SAMPLED):
            return 0.0
        return np.abs(self.sample_logits(head)).max(initial=0)


def attend(geometry, params, queries, keys, values, logit, tail=model.DROP, zone=None, sinks=None):
    """(output [G, dv], lse [G], spread [G]): float64. keys [m, d] and values [m, dv] are the dense
    parts and fetched rows together, sinks [G] the heads' sink logits; spread bounds the relative
    error of a weight in float64."""
    width = values.shape[1]
    output = np.zeros((len(queries), width))
    lse = np.full(len(queries), -np.inf)
    spread = np.zeros(len(queries))
    keys = keys.astype(np.float64)
    added = None if tail == model.DROP else Tail(geometry, params, tail, logit, zone)
    for head, query in enumerate(queries.astype(np.float64)):
        all_logits = [logit(keys @ query)]
        all_values = [values.astype(np.float64)]
        largest = 0.0
        if added is not None:
            more = added.tokens(head)
            all_logits += more[0]
            all_values += more[1]
            largest = added.largest_logit(head)
        if sinks is not None and sinks[head] > -np.inf:
            all_logits.append(sinks[head : head + 1].astype(np.float64))
            all_values.append(np.zeros((1, width)))
        logits, rows = np.concatenate(all_logits), np.concatenate(all_values)
        if len(logits) == 0:
            continue
        lse[head] = log_sum_exp(logits)
        if lse[head] == -np.inf:
            continue
        output[head] = np.exp(logits - lse[head]) @ rows
        terms = np.abs(logit(np.abs(keys) @ np.abs(query)))
        largest = max(largest, np.abs(logits).max(), terms.max(initial=0))
        spread[head] = (len(query) + 8) * largest * 2.0**-52
    return output, lse, spread


def largest_value(geometry, params, tail, zone):
    """The largest element of the values that a tail can add, for tolerances."""
    largest = 0.0
    if zone.good_count:
        largest = np.abs(zone.value_sums / zone.good_count).max()
    if tail in (model.SKETCH, model.SAMPLED):
        positions = zone.samples[zone.records.good[zone.samples]]
        if tail == model.SKETCH:
            positions = np.append(positions, zone.candidates)
        entries = sketch_entries(geometry, positions)
        factors = from_bf16(zone.records.value_factors[entries]).astype(np.float64)
        top = value_tables(geometry.sketch_bits)[1][-1]
        spread = factors.max(initial=0) * float(top) * geometry.value_dim
        largest = max(largest, np.abs(params.value_center).max() + spread)
    return float(largest)
