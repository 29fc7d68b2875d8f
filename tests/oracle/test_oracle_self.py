"""The oracle against itself: known answers and the identities its parts must satisfy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from oracle import attend, encode, f32, fit, levels, model, rerank, rotation, signs, vote

ALL_DIMS = range(8, 577, 8)
GEOMETRY = model.Geometry(kv_heads=1, head_dim=128, value_dim=128, seed=0x1234567890ABCDEF)


def random_params(geometry, rng, queries=None, keys=None):
    if keys is None:
        ones = np.ones(geometry.head_dim, np.float32)
        return model.make_params(geometry, 0 * ones, ones, np.zeros(geometry.value_dim, np.float32))
    sums = fit.fit_sums(keys[0], keys, queries)
    mu, s, _ = fit.fit_params(sums)
    value_center = rng.standard_normal(geometry.value_dim).astype(np.float32)
    return model.make_params(geometry, mu.astype(np.float32), s.astype(np.float32), value_center)


def outlier_keys(rng, n, dim):
    scales = np.exp(rng.standard_normal(dim))
    offset = 2 * rng.standard_normal(dim)
    return (rng.standard_normal((n, dim)) * scales + offset).astype(np.float32)


def test_philox_known_answers():
    ones = 0xFFFFFFFF
    answers = (
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ones, ones, ones, ones), (ones, ones), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    )
    for counter, key, text in answers:
        assert signs.philox(counter, key) == [int(word, 16) for word in text.split()]


def test_bf16_rounds_to_nearest_even():
    for text, want in (
        ("3f808000", 0x3F80),  # tie, to even
        ("3f818000", 0x3F82),
        ("3f808001", 0x3F81),
        ("7f7fffff", 0x7F80),
        ("80000001", 0x8000),
        ("ff800000", 0xFF80),
        ("ff800001", 0x7FC0),  # a NaN
        ("7fffffff", 0x7FC0),
    ):
        x = np.array([int(text, 16)], np.uint32).view(np.float32)
        assert f32.bf16(x)[0] == want, text


def test_fold_of_eight_and_of_odd_counts():
    x = np.random.default_rng(1).standard_normal(8).astype(np.float32)
    want = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    assert f32.fold(x) == want
    assert f32.fold(np.float32([3])) == 3
    padded = np.concatenate([x, np.zeros(8, np.float32)])
    for m in range(1, 9):
        assert f32.fold(x[:m]) == f32.fold(np.where(np.arange(16) < m, padded, np.float32(0)))


def test_inverse_sqrt_is_the_nearest_float():
    for count in ALL_DIMS:
        exact = math.isqrt(10**60 // count)  # 1/sqrt(count) * 10^30
        got = f32.inverse_sqrt(count)
        errors = [
            abs(int(float(x) * 2.0**60) * 10**30 // 2**60 - exact)
            for x in (np.nextafter(got, f32.F32(0)), got, np.nextafter(got, f32.F32(1)))
        ]
        assert errors[1] < errors[0] and errors[1] < errors[2], count


@pytest.mark.parametrize(
    ("moments", "count", "top", "thresholds", "points"),
    [
        (levels.sphere_moments, 8, 0.9, levels.P_THRESHOLDS, levels.P_LEVELS),
        (levels.gaussian_moments, 8, 3.0, levels.N4_THRESHOLDS, levels.N4_LEVELS),
        (levels.gaussian_moments, 2, 2.0, levels.N2_THRESHOLDS, levels.N2_LEVELS),
        (levels.gaussian_moments, 16, 3.5, levels.N5_THRESHOLDS, None),
    ],
)
def test_constants_are_lloyd_max_points(moments, count, top, thresholds, points):
    solved, edges = levels.lloyd_max(moments, count, top)
    assert (edges.astype(np.float32) == thresholds).all()
    if points is not None:
        assert (solved.astype(np.float32) == points).all()


def test_integers_follow_the_levels():
    for count, top, unit, integers in (
        (8, 3.0, 93.3, levels.N4_INTEGERS),
        (16, 3.5, 75.4, levels.N5_INTEGERS),
    ):
        solved, _ = levels.lloyd_max(levels.gaussian_moments, count, top)
        assert (integers % 2 == 1).all() and integers.max() <= 255
        assert np.abs(solved * unit - integers).max() < 1.05


@pytest.mark.parametrize("rounds", [1, 2])
def test_rotation_is_orthogonal_and_inverts(rounds):
    rng = np.random.default_rng(2)
    for dim in ALL_DIMS:
        first, second = (signs.sign_vector(dim, t, dim) for t in (1, 2))
        identity = np.eye(dim)
        matrix = rotation.rotate(identity, first, second, rounds, np.float64)
        gain = rotation.gain(dim, rounds)
        # Blocks scaled by fp32(2^(-p/2)) are orthogonal up to twice its rounding, each.
        bound = 2.0**-21 * gain
        assert np.abs(matrix @ matrix.T - gain * identity).max() < bound, dim
        back = rotation.unrotate(matrix, first, second, rounds)
        assert np.abs(back - identity).max() < 2.0**-21, dim
        a = rng.standard_normal((3, dim)).astype(np.float32)
        exact = rotation.rotate(a.astype(np.float64), first, second, rounds, np.float64)
        rounded = rotation.rotate(a, first, second, rounds)
        assert rounded.dtype == np.float32
        assert np.abs(rounded - exact).max() < 1e-5 * np.abs(exact).max(), dim


def test_center_and_balance_keep_products():
    """<q,k> = <q/s, (k-mu)*s> + <q,mu>, through the rotation."""
    rng = np.random.default_rng(3)
    for dim in (24, 64, 128, 296):
        geometry = replace(GEOMETRY, head_dim=dim)
        keys, queries = outlier_keys(rng, 40, dim), rng.standard_normal((5, dim))
        queries = queries.astype(np.float32)
        params = random_params(geometry, rng, queries, keys)
        y = encode.rotated_keys(params, keys, 1).astype(np.float64)
        heads, _, bad = vote.rotated_queries(geometry, params, queries)
        got = heads.astype(np.float64) @ y.T / rotation.gain(dim, 1)
        got += (queries.astype(np.float64) @ params.center)[:, None]
        size = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
        assert not bad
        assert (np.abs(got - queries.astype(np.float64) @ keys.T) < 1e-5 * size).all()


@pytest.mark.parametrize("codec", [model.POLAR4, model.SCALAR4, model.SCALAR5])
@pytest.mark.parametrize("dim", [64, 128, 296])
def test_estimates_are_close_and_nearly_unbiased(codec, dim):
    """The relative distortion of Lloyd-Max points is 0.0095 for 16 levels, 0.0025 for 32; the
    factor makes <x, quantised> = <x, x>, so the error is orthogonal to the key: its size relative
    to |q| |x| / sqrt(d) is near sqrt(distortion)."""
    rng = np.random.default_rng(dim + codec)
    geometry = replace(GEOMETRY, head_dim=dim, codec=codec)
    params = random_params(geometry, rng)
    keys = rng.standard_normal((400, dim)).astype(np.float32)
    queries = rng.standard_normal((64, dim)).astype(np.float32)
    records = encode.encode(geometry, params, keys)
    est, _ = rerank.estimates(geometry, params, records, queries)
    true = queries.astype(np.float64) @ keys.T
    size = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(keys, axis=1) / np.sqrt(dim)
    error = (est - true) / size
    bound = {model.POLAR4: 0.11, model.SCALAR4: 0.11, model.SCALAR5: 0.057}[codec]
    assert np.sqrt(np.mean(error**2)) < bound
    assert abs(np.mean(error)) < 4 * bound / np.sqrt(len(keys))
    slope = np.sum(est * true) / np.sum(true * true)
    assert abs(slope - 1) < 0.01


def test_graded_vote_ranks_like_the_products():
    rng = np.random.default_rng(6)
    geometry, keys = GEOMETRY, rng.standard_normal((500, 128)).astype(np.float32)
    params, queries = random_params(GEOMETRY, rng), rng.standard_normal((1, 128))
    queries = queries.astype(np.float32)
    records = encode.encode(geometry, params, keys)
    votes = vote.graded_votes(geometry, params, records, queries, model.GROUP_SUM)
    heads = vote.graded_votes(geometry, params, records, queries, model.GROUP_HEADS)
    assert (votes == heads).all()  # one head: sum and maximum agree
    assert np.corrcoef(votes, (queries @ keys.T)[0])[0, 1] > 0.7
    assert set(vote.select(votes, 500)) == set(range(500))


def test_tier_points_count_the_boundaries():
    rng = np.random.default_rng(7)
    geometry = replace(GEOMETRY, head_dim=16, vote=model.TIER)
    counts = np.full((2, 256), 4, np.int32)
    total = rng.standard_normal(16).astype(np.float32)
    points = vote.tier_points(geometry, total, counts, model.RHO_KEYS)
    again = vote.tier_points(geometry, total, counts, model.RHO_CENTROIDS)
    assert (points == again).all()  # equal occupancy: keys and centroids agree
    assert points.max() == 6 and points.min() == 0
    # 1,024 keys, rho 50: boundaries at 25.6, 76.8, .. 512 keys, 4 keys per pattern.
    assert [(points >= p).sum() for p in (6, 5, 4, 3, 2, 1)] == [14, 40, 78, 128, 192, 256]
    best = sum(1 << j for j in range(8) if total[j] >= 0)
    assert points[0, best] == 6 and points[0, best ^ 255] == 0


@pytest.mark.parametrize("bits", [2, 4])
def test_value_sketch_error(bits):
    """One sign and one or three bits of magnitude: distortion 0.118 or 0.0095."""
    rng = np.random.default_rng(bits)
    geometry = replace(GEOMETRY, sketch_bits=bits, value_dim=96)
    keys = rng.standard_normal((200, 128)).astype(np.float32)
    params = random_params(geometry, rng, keys[:9], keys)
    values = rng.standard_normal((200, 96)).astype(np.float32)
    records = encode.encode(geometry, params, keys, values)
    error = attend.sketch_values(geometry, params, records, np.arange(200)) - values
    centred = values - params.value_center
    relative = np.sum(error**2) / np.sum(centred**2)
    assert relative < {2: 0.15, 4: 0.0125}[bits]


def test_adaptive_counts():
    score = np.log(np.array([0.5, 0.3, 0.1, 0.1]))
    for share, want in ((0.4, 1), (0.6, 2), (0.85, 3), (0.95, 4)):
        assert rerank.adaptive_counts(score, share, 1e-12) == (want, want)
