"""Fit (docs/algorithm.md, 2.2), in float64."""

from dataclasses import dataclass, replace
from typing import Optional

import numpy as np

from oracle import encode, model, vote
from oracle.f32 import F32, quiet, sum_in_order

PICKED_PPM = 100_000
FEWEST_PICKS = 32
SMALLEST_SPREAD = 2.0**-40


@dataclass(frozen=True)
class Sums:
    """Of one KV head, about `pivot`; `*_size` are sums of absolute terms, for tolerances."""

    pivot: np.ndarray
    count: int
    weight: int  # W
    sums: np.ndarray
    squares: np.ndarray
    query_count: int
    query_squares: np.ndarray
    value_sums: Optional[np.ndarray]
    sums_size: np.ndarray
    value_size: Optional[np.ndarray]


@quiet
def usable(rows):
    """All elements finite and the sum of squares finite in fp32."""
    squares = np.sum(rows.astype(np.float64) ** 2, axis=-1)
    return np.isfinite(rows).all(axis=-1) & np.isfinite(squares.astype(F32))


def used(keys, values=None):
    good = usable(keys)
    return good if values is None else good & usable(values)


def pivot(keys, values=None):
    """The first usable key, zeros if there is none."""
    index = np.flatnonzero(used(keys, values))
    return keys[index[0]] if len(index) else np.zeros(keys.shape[1], F32)


def query_rows(queries, as_sum):
    """The fit's query rows [.., d] from queries [G, m, d] of a group: each head's, or q_sum of each
    position."""
    return sum_in_order(queries) if as_sum else queries.reshape(-1, queries.shape[-1])


@quiet
def fit_sums(pivot, keys, queries=None, values=None, weights=None):
    """keys [t, d], rows of queries [m, d], values [t, dv]; float32. Integer weights [t]."""
    good = used(keys, values)
    if weights is None:
        weights = np.ones(len(keys), np.int64)
    o = weights[good].astype(np.float64)[:, None]
    centred = keys[good].astype(np.float64) - pivot.astype(np.float64)
    query_count, query_squares = 0, np.zeros(keys.shape[1])
    if queries is not None:
        rows = queries[usable(queries)].astype(np.float64)
        query_count, query_squares = len(rows), np.sum(rows**2, axis=0)
    value_sums = value_size = None
    if values is not None:
        chosen = values[good].astype(np.float64)
        value_sums, value_size = np.sum(chosen, axis=0), np.sum(np.abs(chosen), axis=0)
    return Sums(
        pivot,
        int(good.sum()),
        int(weights[good].sum(dtype=np.int64)),
        np.sum(o * centred, axis=0),
        np.sum(o * centred**2, axis=0),
        query_count,
        query_squares,
        value_sums,
        np.sum(o * np.abs(centred), axis=0),
        value_size,
    )


def key_spread(sums, center_on):
    """(spread of the keys squared, or of the keys themselves with center off; the terms behind it)
    per coordinate, before the limit to 0."""
    weight = max(sums.weight, 1)
    shift = sums.sums / weight
    squares = sums.squares / weight
    if center_on:
        return squares - shift**2, squares + shift**2
    center = sums.pivot.astype(np.float64)  # E k^2 = E (k-c)^2 + 2 c E (k-c) + c^2
    terms = squares + 2 * np.abs(center * shift) + center**2
    return squares + 2 * center * shift + center**2, terms


def spread_terms(sums, center_on):
    """What a spread is measured against: below SMALLEST_SPREAD of it, it is rounding."""
    center = 0 if center_on else sums.pivot.astype(np.float64)
    return sums.squares / max(sums.weight, 1) + center**2


@quiet
def fit_params(sums, center_on=True, balance_on=True):
    """(mu, s, mu_v) of one KV head, float64 before the one rounding to float32."""
    center = sums.pivot.astype(np.float64)
    size = len(center)
    mu, s, key_rms = np.zeros(size), np.ones(size), np.zeros(size)
    if sums.weight:
        if center_on:
            mu = center + sums.sums / sums.weight
        spread = key_spread(sums, center_on)[0]
        counts = spread > SMALLEST_SPREAD * spread_terms(sums, center_on)
        key_rms = np.sqrt(np.where(counts, spread, 0))
    if balance_on and sums.query_count:
        query_rms = np.sqrt(sums.query_squares / sums.query_count)
        both = (query_rms > 0) & (key_rms > 0)
        if both.any():
            ratio = np.sqrt(query_rms[both] / key_rms[both])
            ratio = ratio / np.exp(np.mean(np.log(ratio)))
            s[both] = np.clip(ratio, 1 / 16, 16)
    value_center = None
    if sums.value_sums is not None:
        value_center = sums.value_sums / max(sums.count, 1)
    return mu, s, value_center


def pick_weights(geometry, center, balance, keys, queries):
    """How many query positions of queries [G, m, d] pick each key [t, d], int64 [t]: the graded
    vote of each with k = 0 and a tenth of the keys, given the first pass."""
    graded = replace(geometry, vote=model.GRADED, sketch_bits=0, value_norm=0)
    params = model.make_params(graded, center, balance)
    records = encode.encode(graded, params, keys)
    count = vote.candidate_count(len(keys), 0, ((len(keys) + 1, PICKED_PPM),))
    weights = np.zeros(len(keys), np.int64)
    for position in range(queries.shape[1]):
        votes = vote.graded_votes(graded, params, records, queries[:, position], model.GROUP_SUM)
        weights[vote.select(votes, count)] += 1
    return weights


def picked_sums(first, geometry, center, balance, keys, queries, values=None):
    """(sums of the second pass, weights), or (first, weights) where the first pass stands. `center`
    and `balance` (float32) are the first pass's parameters, `first` its sums."""
    weights = pick_weights(geometry, center, balance, keys, queries)
    if np.count_nonzero(weights) < FEWEST_PICKS:
        return first, weights
    rows = query_rows(queries, as_sum=True)
    second = fit_sums(first.pivot, keys, rows, values, weights)
    if second.weight == 0:
        return first, weights
    return replace(second, value_sums=first.value_sums), weights


def fit_picked(geometry, keys, queries, values=None, center_on=True, balance_on=True):
    """(mu, s, mu_v) with fit = picked, float64 before the last rounding: keys [t, d], queries
    [G, m, d] or None."""
    rows = None if queries is None else query_rows(queries, as_sum=False)
    sums = fit_sums(pivot(keys, values), keys, rows, values)
    mu, s, value_center = fit_params(sums, center_on, balance_on)
    if queries is None or not (center_on or balance_on):
        return mu, s, value_center
    center, balance = mu.astype(F32), s.astype(F32)
    sums, _ = picked_sums(sums, geometry, center, balance, keys, queries, values)
    return fit_params(sums, center_on, balance_on)
