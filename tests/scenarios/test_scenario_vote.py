"""Vote: queries without direction, nearly parallel keys, the steps of length schedules."""

import numpy as np
import pytest
from capi import Codec, Config, Index
from decoding import Plan, Step
from reference import exact_best, normal, recall


@pytest.mark.parametrize("profile", ["default", "paper"])
@pytest.mark.parametrize("group", [1, 4])
def test_queries_without_direction_score_finitely(machine, profile, group):
    dim, n, k = 128, 1000, 10
    keys = normal(1, 1, n, dim)
    config = Config(machine, profile, head_dim=dim, v_source="none", tail="drop", k=k)
    index = Index(machine, Codec.fit(machine, config, keys), 1, n)
    index.append(0, keys)
    step = Step(Plan(machine, index, config, 1, group))
    for value in (0.0, -0.0, 1.0, -1.0):
        step.retrieve(np.full((1, group, dim), value, np.float32))
        assert step.counts[0, 0] == k
        assert np.isfinite(step.scores).all()
        if value == 0:  # every score ties: the smaller positions
            assert len(set(step.scores.ravel().tolist())) == 1
            assert step.found().tolist() == step.chosen()[:k].tolist()
            votes = np.zeros(n) if profile == "default" else votes_of_equal_sums(index.records())
            order = np.argsort(-votes, kind="stable")[: step.candidate_counts[0, 0]]
            assert step.chosen().tolist() == sorted(order.tolist())


def votes_of_equal_sums(records):
    """4.3 where all sums of patterns are equal: they come in ascending order."""
    patterns = records["signs"]
    n = len(patterns)
    bounds = [-(-n * 50 * tau // 10**4) for tau in (5, 15, 30, 50, 75, 100)]
    votes = np.zeros(n)
    for column in patterns.T:
        counts = np.bincount(column, minlength=256)
        before = np.cumsum(counts) - counts
        votes += sum((before[column] < bound) for bound in bounds)
    return votes


@pytest.mark.parametrize("sampled", [False, True])
def test_nearly_parallel_keys_are_told_apart(machine, sampled):
    dim, n, k = 128, 32_768, 100
    mean = normal(2, dim)
    mean *= np.float32(10) / np.linalg.norm(mean)
    keys = np.float32(0.05) * normal(3, 1, n, dim) + mean
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", candidates="0.1", k=k)
    queries = normal(4, 1, 64, dim) if sampled else None
    index = Index(machine, Codec.fit(machine, config, keys, queries), 1, n)
    index.append(0, keys)
    step = Step(Plan(machine, index, config, 1, 1))
    assert step.plan.candidates == 3277
    recalls = []
    for query in normal(5, 20, dim):
        step.retrieve(query[None, None])
        recalls.append(recall(step.found(), exact_best(keys[0], query, k)))
    assert np.mean(recalls) >= 0.5


LENGTHS = [
    4999,
    5000,
    9999,
    10_000,
    16_383,
    16_384,
    29_999,
    30_000,
    32_767,
    32_768,
    131_071,
    131_072,
]


@pytest.mark.parametrize("profile", ["default", "paper"])
def test_both_sides_of_every_step_of_a_schedule(machine, profile):
    """docs/algorithm.md: the shares of section 1, rho of 4.3, the count of section 5."""
    dim, k, planted = 64, 100, 4321
    keys, query = normal(6, 1, LENGTHS[-1], dim), normal(7, 1, 1, dim)
    keys[0, planted] = query[0, 0]
    config = Config(machine, profile, head_dim=dim, v_source="none", tail="drop", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, LENGTHS[-1])
    step = Step(Plan(machine, index, config, 1, 1))
    steps = {"default": ((16_384, 100_000), (32_768, 50_000), (131_072, 20_000), (2**31, 10_000)),
             "paper": ((131_072, 100_000), (2**31, 50_000))}[profile]  # fmt: skip
    for n in LENGTHS:
        index.append(0, keys[:, index.length(0) : n])
        step.retrieve(query)
        ppm = next(ppm for below, ppm in steps if n < below)
        assert step.candidate_counts[0, 0] == min(n, max(k, -(-n * ppm // 10**6))), n
        assert step.counts[0, 0] == k
        assert step.found()[0] == planted, n
