"""Query, vote and select (docs/algorithm.md, sections 4 and 5)."""

import numpy as np

from oracle import model
from oracle.encode import unpack_bits
from oracle.f32 import F32, fold, from_bf16, quiet, sum_in_order
from oracle.rotation import rotate


@quiet
def rotated_queries(geometry, params, queries):
    """(q'_g [G, d], Q' [d], whether the row's query is bad) from queries [G, d] (4.1, 4.4)."""

    def turn(x):
        return rotate(x * params.inv_balance, params.signs_1, params.signs_2, geometry.rounds)

    heads = turn(queries)
    total = turn(sum_in_order(queries))
    norms = np.append(fold(heads * heads), fold(total * total))
    return heads, total, not np.isfinite(norms).all()


def sign_matrix(records):
    """+1 where the sign bit is set, else -1: float64 [n, d], for exact integer products."""
    return unpack_bits(records.signs).astype(np.float64) * 2 - 1


@quiet
def graded_integers(y):
    """z [m, d] for rotated queries y [m, d] with one common A (4.2)."""
    top = fold(np.abs(y).reshape(len(y), -1, 8)).max()
    if top == 0:
        return np.zeros(y.shape, F32)
    return np.rint((F32(123) * y) / top)


@quiet
def graded_votes(geometry, params, records, queries, vote_group):
    heads, total, bad = rotated_queries(geometry, params, queries)
    if bad:
        return np.full(len(records.signs), np.nan, F32)
    y = heads if vote_group == model.GROUP_HEADS else total[None]
    z = graded_integers(y)
    assert np.abs(z).reshape(len(z), -1, 8).sum(axis=-1).max() <= 127
    t = (sign_matrix(records) @ z.T.astype(np.float64)).max(axis=1)  # exact integers
    votes = t.astype(np.int64).astype(F32) * from_bf16(records.vote_factors)
    votes[~records.good] = np.nan
    return votes


def tier_boundaries(n, rho_n):
    """ceil(n * rho * tau / 10^4), rho chosen by rho_n."""
    rho = 50 if rho_n < 5000 else 30 if rho_n < 10000 else 25 if rho_n < 30000 else 20
    return [-(-(n * rho * tau) // 10**4) for tau in (5, 15, 30, 50, 75, 100)]


@quiet
def tier_points(geometry, total, counts, rho_of):
    """Points per subspace and pattern [S, 256] from Q' and the occupancy [S, 256] (4.3)."""
    bits = unpack_bits(np.arange(256, dtype=np.uint8)[:, None]).astype(bool)
    y = total.reshape(-1, 1, 8)
    order = np.argsort(-fold(np.where(bits, y, -y)), axis=1, kind="stable")
    good = int(counts[0].sum())
    size = good
    ordered = np.take_along_axis(counts.astype(np.int64), order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    if rho_of == model.RHO_CENTROIDS:
        size = 256
        before = np.broadcast_to(np.arange(256), before.shape)
    limits = tier_boundaries(size, good)
    points_in_order = sum((before < limit).astype(np.int64) for limit in limits)
    points = np.empty_like(points_in_order)
    np.put_along_axis(points, order, points_in_order, axis=1)
    return points


@quiet
def tier_votes(geometry, params, records, queries, counts, rho_of):
    _, total, bad = rotated_queries(geometry, params, queries)
    if bad:
        return np.full(len(records.signs), np.nan, F32)
    points = tier_points(geometry, total, counts, rho_of)
    per_subspace = points[np.arange(geometry.subspaces), records.signs]
    votes = per_subspace.sum(axis=1).astype(F32)
    votes[~records.good] = np.nan
    return votes


def candidate_count(n, k, schedule):
    """C of section 5; schedule is [(below, ppm), ..], the last entry for all longer rows."""
    ppm = next((p for below, p in schedule if n < below), schedule[-1][1])
    return min(n, max(k, -(-(n * ppm) // 10**6)))


def share_to_ppm(share):
    return max(1, int(np.rint(share * 1e6)))


def select(votes, count):
    """Positions of the `count` highest votes that are not NaN, ascending."""
    order = np.argsort(-votes, kind="stable")  # NaN sorts last
    chosen = order[: min(count, int((~np.isnan(votes)).sum()))]
    return np.sort(chosen)
