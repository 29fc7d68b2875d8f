"""Rerank (docs/algorithm.md, section 6): estimates, scores, adaptive k, the rest's mass."""

import numpy as np

from oracle import model
from oracle.encode import key_tables, unpack_codes
from oracle.f32 import F32, fold, from_bf16, quiet
from oracle.rotation import gain
from oracle.vote import rotated_queries, sign_matrix

LIMIT = F32(1e30)
SKETCH_PLANES = ("value_signs", "value_codes", "value_factors")


def take(records, positions):
    """The records at `positions`, without what only some positions have."""
    chosen = {
        name: None if plane is None or name in SKETCH_PLANES else plane[positions]
        for name, plane in vars(records).items()
    }
    return type(records)(**chosen)


def limited(e):
    """[-1e30, 1e30], NaN becoming -1e30; in the dtype of e."""
    return np.clip(np.where(np.isnan(e), -LIMIT, e), -LIMIT, LIMIT).astype(e.dtype)


@quiet
def estimates(geometry, params, records, queries):
    """(estimates [G, m] float32, sums of absolute terms [G, m]) for the given records (6.1)."""
    heads, _, _ = rotated_queries(geometry, params, queries)
    base = fold(queries * params.center)[:, None]
    sign = sign_matrix(records)
    codes = unpack_codes(records.codes)
    table = key_tables(geometry.codec)[1]
    size = gain(geometry.head_dim, geometry.rounds)
    factors = from_bf16(records.factors)
    if geometry.codec == model.POLAR4:
        weights = np.repeat(factors.astype(np.float64), 8, axis=1)
        terms = sign * table[codes].astype(np.float64) * weights
        rotated = heads.astype(np.float64)
        e = rotated @ terms.T / size + base.astype(np.float64)
        magnitude = np.abs(rotated) @ np.abs(terms).T / size + np.abs(base.astype(np.float64))
        return limited(e).astype(F32), magnitude
    top = np.abs(heads).max(axis=1, keepdims=True)
    c = np.where(top == 0, F32(0), np.rint((F32(32512) * heads) / top))
    unit = (top / F32(32512)) / F32(size)
    # Integers below 2^53: the float64 product is exact, and so rounds once to float32.
    dot = c.astype(np.float64) @ (sign * table[codes].astype(np.float64)).T
    assert np.abs(dot).max(initial=0) < 2**53
    e = ((dot.astype(np.int64).astype(F32) * factors[:, 0]) * unit) + base
    return limited(e), np.abs(e.astype(np.float64))


def log_sum_exp(x, axis=-1):
    """float64; -inf for no terms."""
    if x.shape[axis] == 0:
        return np.full(np.delete(x.shape, axis), -np.inf)
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(x - top).sum(axis=axis, keepdims=True))
    return np.squeeze(total + top, axis=axis)


@quiet
def mean_scores(est):
    """((est_0 + est_1) + ..) / fp32(G), exact, from estimates [G, m] float32."""
    total = est[0]
    for row in est[1:]:
        total = total + row
    return total / F32(len(est))


def group_scores(est, logit):
    """float64 [m]: ln sum_g exp(L(est_g) - lse_g)."""
    logits = logit(est)
    return log_sum_exp(logits - log_sum_exp(logits)[:, None], axis=0)


@quiet
def scores(est, rank, logit, norms=None):
    """float64 (an exact float32 value for rank mean without norms) of the candidates (6.2)."""
    if est.shape[1] == 0:
        return np.zeros(0)
    if rank == model.RANK_MEAN:
        score = mean_scores(est).astype(np.float64)
    else:
        score = group_scores(est, logit)
    if norms is not None:
        nv = from_bf16(norms).astype(np.float64)
        score = np.where(nv == 0, float(LIMIT) * -1, score + np.log(nv))
    return score


def top(score, k):
    """Indices of the first k by score descending, then index ascending."""
    return np.argsort(-score, kind="stable")[:k]


def adaptive_counts(score, share, tolerance):
    """(lowest, highest) admissible smallest c before the limits (6.3), when every weight may be off
    by the relative `tolerance`."""
    weights = np.sort(np.exp(score - score.max()))[::-1]
    cumulative = np.cumsum(weights)
    target = share * cumulative[-1]
    low = int(np.searchsorted(cumulative, target * (1 - 2 * tolerance))) + 1
    high = int(np.searchsorted(cumulative, target * (1 + 2 * tolerance))) + 1
    return min(low, len(score)), min(high, len(score))


def sample_positions(n, stride, samples):
    """Positions of the samples (6.4), ascending; stride 0 stands for no sketch."""
    stride = max(stride, 1)
    sketches = -(-n // stride)
    count = min(sketches, samples)
    return np.array([stride * (i * sketches // count) for i in range(count)], np.int64)


@quiet
def sample_estimates(geometry, params, records, queries, positions):
    """(estimates [G, c] float32 at the samples, NaN at bad keys; sums of absolute terms)."""
    if rotated_queries(geometry, params, queries)[2]:
        nothing = np.full((len(queries), len(positions)), np.nan, F32)
        return nothing, np.zeros(nothing.shape)
    est, size = estimates(geometry, params, take(records, positions), queries)
    bad = ~records.good[positions]
    est[:, bad], size[:, bad] = np.nan, 0
    return est, size


@quiet
def rest_lse(est, positions, n, candidates, logit):
    """(ln rest [G] float64, largest |L(est)| among its terms), from the samples' estimates."""
    outside = ~np.isin(positions, candidates)
    good = outside & ~np.isnan(est).any(axis=0)
    if not good.any():
        return np.full(len(est), -np.inf), 0.0
    logits = logit(est[:, good])
    share = (n - len(candidates)) / outside.sum()
    return log_sum_exp(logits) + np.log(share), float(np.abs(logits).max())
