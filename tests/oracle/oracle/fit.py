"""Fit (docs/algorithm.md, 2.2), in float64."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle.f32 import F32, quiet


@dataclass(frozen=True)
class Sums:
    """Of one KV head, about `pivot`; `*_size` are sums of absolute terms, for tolerances."""

    pivot: np.ndarray
    count: int
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


@quiet
def fit_sums(pivot, keys, queries=None, values=None):
    """keys [t, d], queries [m, d] of all heads of the group, values [t, dv]; float32."""
    good = usable(keys)
    if values is not None:
        good &= usable(values)
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
        np.sum(centred, axis=0),
        np.sum(centred**2, axis=0),
        query_count,
        query_squares,
        value_sums,
        np.sum(np.abs(centred), axis=0),
        value_size,
    )


@quiet
def fit_params(sums, center_on=True, balance_on=True):
    """(mu, s, mu_v) of one KV head, float64 before the one rounding to float32."""
    pivot = sums.pivot.astype(np.float64)
    size = len(pivot)
    count = max(sums.count, 1)
    shift = sums.sums / count
    mu = pivot + shift if center_on and sums.count else np.zeros(size)
    if center_on:
        spread = sums.squares / count - shift**2
    else:  # the rms of k itself: E k^2 = E (k-c)^2 + 2 c E (k-c) + c^2
        spread = sums.squares / count + 2 * pivot * shift + pivot**2
    key_rms = np.sqrt(np.maximum(0, spread)) if sums.count else np.zeros(size)
    s = np.ones(size)
    if balance_on and sums.query_count:
        query_rms = np.sqrt(sums.query_squares / sums.query_count)
        both = (query_rms > 0) & (key_rms > 0)
        if both.any():
            ratio = np.sqrt(query_rms[both] / key_rms[both])
            ratio = ratio / np.exp(np.mean(np.log(ratio)))
            s[both] = np.clip(ratio, 1 / 16, 16)
    value_center = None
    if sums.value_sums is not None:
        value_center = sums.value_sums / count
    return mu, s, value_center
