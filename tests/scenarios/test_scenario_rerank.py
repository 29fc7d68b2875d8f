"""Rerank: estimates against products, order against double precision, rows against solo runs."""

import numpy as np
import pytest
from binding import F16
from capi import Codec, Config, Index
from decoding import Plan, Step
from reference import check_attention, decoded, estimates, normal, rotate

CODECS = ("polar4", "scalar4", "scalar5")


def scores_of(machine, config, codec, keys, query):
    """Scores by position of all keys [n, d], rank = mean and one query head: the estimates."""
    index = Index(machine, codec, 1, len(keys))
    index.append(0, keys[None])
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query[None, None])
    scores = np.empty(len(keys))
    scores[step.positions[0, 0]] = step.scores[0, 0]
    return scores


FACTORS = np.array([-3, -1, 0.01, 1, 50])


@pytest.mark.parametrize("dim", [64, 128, 80])
@pytest.mark.parametrize("name", CODECS)
def test_multiples_of_the_query_are_estimated_well(machine, dim, name):
    """Within 1 %: of c |q|^2, with centre and balance of |q| |k - mu|."""
    query = normal(1, dim)
    keys = (FACTORS[:, None] * query).astype(np.float32)
    exact = keys.astype(np.float64) @ query.astype(np.float64)
    norm = np.linalg.norm(query.astype(np.float64))
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", codec=name)
    config.set("rank", "mean")
    config.set("k", len(keys))
    config.set("candidates", "1")
    scores = scores_of(machine, config, Codec.plain(machine, config), keys, query)
    assert (np.sign(scores) == np.sign(FACTORS)).all()
    assert (abs(scores - exact) <= 0.01 * abs(exact)).all()
    sample = np.stack([query, -2 * query])[None]
    codec = Codec.fit(machine, config, keys[None], sample)
    center = codec.numbers()["center"][0].astype(np.float64)
    assert abs(center).max() > 1
    far = np.linalg.norm(keys - center, axis=1)
    scores = scores_of(machine, config, codec, keys, query)
    assert (abs(scores - exact) <= 0.01 * norm * far).all()


@pytest.mark.parametrize("name", CODECS)
def test_close_scores_are_ordered_as_in_double(machine, name):
    """Exact products 0.001 apart around 100: the order is that of the codes, summed in double."""
    dim, n, k = 128, 2000, 100
    query = normal(2, dim)
    noise = normal(3, n, dim).astype(np.float64)
    unit = query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
    wanted = 100 + 0.001 * (np.random.default_rng(4).permutation(n) - n / 2)
    noise -= np.outer(noise @ unit, unit)
    keys = (noise + np.outer(wanted / np.linalg.norm(query), unit)).astype(np.float32)
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", codec=name)
    config.set("rank", "mean")
    config.set("k", k)
    config.set("candidates", "1")
    codec = Codec.fit(machine, config, keys[None])
    index = Index(machine, codec, 1, n)
    index.append(0, keys[None])
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query[None, None])
    summed, sizes = estimates(
        machine, index.geometry, codec.numbers(), index.records(), query[None]
    )
    # docs/numerics.md, 3, polar4: (d + S + 4) u of the sum of |terms|. Scalar codecs round the
    # query to steps of M / 32512 as well (6.1), half a step of each |level * factor| at most.
    bound = (dim + dim // 8 + 4) * 2.0**-24 * sizes[0].max()
    if name != "polar4":
        bound += rounding_of_the_query(machine, index, codec, query)
    assert bound < 0.05 < 0.5  # a step of bf16 at 100
    found = step.found()
    assert (abs(step.scores[0, 0] - summed[0, found]) <= bound).all()
    kth = np.sort(summed[0])[-k]
    assert set(np.flatnonzero(summed[0] > kth + 2 * bound)) <= set(found.tolist())
    assert (summed[0, found] >= kth - 2 * bound).all()
    ordered = summed[0, found]
    assert (np.maximum.accumulate(ordered[::-1])[::-1][1:] <= ordered[:-1] + 2 * bound).all()


def rounding_of_the_query(machine, index, codec, query):
    rows, signs = decoded(machine, index.geometry, index.records())
    rotated, _ = rotate(query / codec.numbers()["balance"][0].astype(np.float64), *signs)
    return 0.51 * np.abs(rows).sum(axis=1).max() * np.abs(rotated).max() / 32512


def test_every_row_equals_its_run_alone(machine):
    dim, batch, heads, n, k = 128, 2, 8, 4096, 64
    keys, values = normal(5, batch, heads, n, dim), normal(6, batch, heads, n, dim)
    query = normal(7, batch, 2 * heads, dim)
    config = Config(machine, head_dim=dim, k=k)
    codec = Codec.fit(machine, config, keys[0], query[0, :, None], values[0])
    index = Index(machine, codec, batch, n)
    for sequence in range(batch):
        index.append(sequence, keys[sequence], values[sequence])
    step = Step(Plan(machine, index, config, batch, 2 * heads)).retrieve(query)
    step.fetch(keys, values).attend(query)
    numbers = codec.numbers()
    for row in range(batch * heads):
        b, h = divmod(row, heads)
        one = slice(h, h + 1)
        solo = Codec.stored(machine, config, *(numbers[name][one] for name in
                            ("center", "balance", "value_center")))  # fmt: skip
        alone = Index(machine, solo, 1, n)
        alone.append(0, keys[b, one], values[b, one])
        pair = query[b : b + 1, 2 * h : 2 * h + 2]
        other = Step(Plan(machine, alone, config, 1, 2)).retrieve(pair)
        other.fetch(keys[b : b + 1, one], values[b : b + 1, one]).attend(pair)
        assert step.counts[b, h] == k
        for name in ("positions", "scores", "candidates"):
            assert getattr(step, name)[b, h].tobytes() == getattr(other, name)[0, 0].tobytes()
        for name in ("estimates", "rest_lse", "output", "lse"):
            got = getattr(step, name)[b, 2 * h : 2 * h + 2]
            assert got.tobytes() == getattr(other, name)[0].tobytes(), (name, row)


def test_opposite_heads_both_find_their_best_key(machine):
    dim, n, k = 128, 2048, 32
    query = normal(8, dim)
    keys = normal(9, 1, n, dim)
    keys[0, 500], keys[0, 1500] = query, -query
    both = np.stack([query, -query])[None]
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", k=k)
    codec = Codec.plain(machine, config)
    index = Index(machine, codec, 1, n)
    index.append(0, keys)
    config.set("vote_group", "heads")
    found = Step(Plan(machine, index, config, 1, 2)).retrieve(both).found()
    assert {500, 1500} == set(found[:2].tolist())
    # The sum of the heads is zero: all votes are equal, the first positions stay (4.1, 5).
    config.set("vote_group", "sum")
    step = Step(Plan(machine, index, config, 1, 2)).retrieve(both)
    assert step.chosen().tolist() == list(range(step.candidate_counts[0, 0]))
    assert np.isfinite(step.scores).all() and step.counts[0, 0] == k


@pytest.mark.parametrize("rank", ["mean", "group"])
@pytest.mark.parametrize("name", CODECS)
def test_products_beyond_f16_rank_first(machine, name, rank):
    """|q| = |k| = 400: product and squared norms are 160,000."""
    dim, n = 128, 1001
    query = normal(10, dim)
    query = (query * 400 / np.linalg.norm(query)).astype(np.float16)
    keys = normal(11, 1, n, dim).astype(np.float16)
    keys[0, 321] = query
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", codec=name, rank=rank)
    index = Index(machine, Codec.fit(machine, config, keys), 1, n)
    index.append(0, keys)
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query[None, None], F16)
    assert step.found()[0] == 321
    assert np.isfinite(step.scores).all()
    if rank == "mean":
        assert abs(step.scores[0, 0, 0] - 1.6e5) < 0.01 * 1.6e5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("profile", ["default", "paper"])
def test_a_bad_query_empties_its_row_alone(machine, profile, bad):
    dim, n = 64, 600
    keys, values, query = normal(12, 3, 1, n, dim), normal(13, 3, 1, n, dim), normal(14, 3, 2, dim)
    config = Config(machine, profile, head_dim=dim, tail="drop", k=20)
    index = Index(machine, Codec.plain(machine, config), 3, n)
    for sequence in range(3):
        index.append(sequence, keys[sequence], values[sequence])
    plan = Plan(machine, index, config, 3, 2)
    good = Step(plan).retrieve(query).fetch(keys, values).attend(query)
    query[1, 1, 7] = bad
    step = Step(plan).retrieve(query).fetch(keys, values).attend(query)
    assert step.counts[:, 0].tolist() == [20, 0, 20]
    assert (step.positions[1] == -1).all() and (step.scores[1] == -np.inf).all()
    assert (step.output[1] == 0).all() and (step.lse[1] == -np.inf).all()
    for row in (0, 2):
        for name in ("positions", "scores", "output", "lse"):
            assert getattr(step, name)[row].tobytes() == getattr(good, name)[row].tobytes()
        found = step.found(row)
        check_attention(
            query[row, 0],
            keys[row, 0, found],
            values[row, 0, found],
            dim**-0.5,
            step.output[row, 0],
            step.lse[row, 0],
        )
