"""Attend (docs/algorithm.md, section 8), in float64, for the G heads of one row."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle import model
from oracle.encode import unpack_bits, unpack_codes, value_tables
from oracle.f32 import from_bf16
from oracle.rerank import log_sum_exp, take
from oracle.rotation import unrotate


@dataclass
class Zone:
    """What is known of the keys that were not fetched."""

    candidates: np.ndarray  # positions, ascending
    estimates: np.ndarray  # float32 [G, candidates]
    rest_lse: np.ndarray  # float32 [G]
    fetched: np.ndarray  # positions of fetched rows
    value_sums: np.ndarray  # float64 [dv]
    good_count: int
    records: Optional[object] = None  # all of the row, with a sketch


def sketch_values(geometry, params, records):
    """Approximate values of the records, float64 [m, dv]."""
    table = value_tables(geometry.sketch_bits)[1].astype(np.float64)
    sign = unpack_bits(records.value_signs).astype(np.float64) * 2 - 1
    factors = from_bf16(records.value_factors).astype(np.float64)
    y = factors[:, None] * sign * table[unpack_codes(records.value_codes)]
    turned = unrotate(y, params.value_signs_1, params.value_signs_2)
    return params.value_center.astype(np.float64) + turned


def tail_tokens(tail, scale, zone, sketched, head):
    """(logits, values) of the unselected zone for one head; `sketched` are approximate values of
    the candidates that were not fetched."""
    logits, values = [], []
    left = ~np.isin(zone.candidates, zone.fetched)
    estimates = float(scale) * zone.estimates[head, left].astype(np.float64)
    rest = float(zone.rest_lse[head])
    if tail == model.MEAN:
        rest = float(log_sum_exp(np.append(estimates, rest)))
    else:
        logits.append(estimates)
        values.append(sketched)
    if zone.good_count and rest > -np.inf:
        logits.append(np.array([rest]))
        values.append((zone.value_sums / zone.good_count)[None])
    return logits, values


def attend(geometry, params, queries, keys, values, scale, tail=model.DROP, zone=None):
    """(output [G, dv], lse [G], spread [G]): float64. keys [m, d] and values [m, dv] are the dense
    parts and fetched rows together; spread bounds the relative error of a weight in float64."""
    width = values.shape[1]
    output = np.zeros((len(queries), width))
    lse = np.full(len(queries), -np.inf)
    spread = np.zeros(len(queries))
    keys, sketched = keys.astype(np.float64), None
    if tail == model.SKETCH:
        left = ~np.isin(zone.candidates, zone.fetched)
        sketched = sketch_values(geometry, params, take(zone.records, zone.candidates[left]))
    for head, query in enumerate(queries.astype(np.float64)):
        all_logits = [float(scale) * (keys @ query)]
        all_values = [values.astype(np.float64)]
        if tail != model.DROP:
            more = tail_tokens(tail, scale, zone, sketched, head)
            all_logits += more[0]
            all_values += more[1]
        logits, rows = np.concatenate(all_logits), np.concatenate(all_values)
        if len(logits) == 0:
            continue
        lse[head] = log_sum_exp(logits)
        if lse[head] == -np.inf:
            continue
        output[head] = np.exp(logits - lse[head]) @ rows
        terms = float(scale) * (np.abs(keys) @ np.abs(query))
        largest = max(np.abs(logits).max(), terms.max(initial=0))
        spread[head] = (len(query) + 8) * largest * 2.0**-52
    return output, lse, spread


def largest_value(geometry, params, tail, zone):
    """The largest element of the values that a tail can add, for tolerances."""
    largest = 0.0
    if zone.good_count:
        largest = np.abs(zone.value_sums / zone.good_count).max()
    if tail == model.SKETCH and len(zone.candidates):
        records = take(zone.records, zone.candidates)
        factors = from_bf16(records.value_factors).astype(np.float64)
        top = value_tables(geometry.sketch_bits)[1][-1]
        spread = factors.max() * float(top) * geometry.value_dim
        largest = max(largest, np.abs(params.value_center).max() + spread)
    return float(largest)
