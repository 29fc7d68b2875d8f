"""Select: scores given to the stage against a stable sort, and ties through whole steps."""

import threading

import numpy as np
import pytest
import structs
from binding import pointer
from capi import Codec, Config, Handle, Index
from decoding import Plan, Step, patterned
from reference import check_attention, normal


def select(machine, rows, k, ppm=0):
    """[(candidates, filler)] of rows of votes in one call; C = max(k, ppm)."""
    lengths = np.array([len(row) for row in rows], np.int64)
    stride = int(lengths.max())
    votes = np.full((len(rows), stride + 1), np.nan, np.float32)
    for row, line in zip(rows, votes):
        line[: len(row)] = row
    most = max(min(n, max(k, -(-int(n) * ppm // 10**6))) for n in lengths)
    candidates = patterned((len(rows), most + 3), np.int32)
    counts = patterned(len(rows), np.int32)
    rule = structs.CandidateRule(k=k, steps=1)
    rule.below[0], rule.ppm[0] = 2**63 - 1, ppm
    sequences = np.arange(len(rows), dtype=np.int32)
    machine.stage(
        "select",
        kv_heads=1,
        batch=structs.Batch(
            batch=len(rows),
            sequences=pointer(sequences),
            lengths=pointer(lengths),
            max_length=stride,
        ),
        rule=rule,
        votes=votes,
        votes_stride=stride + 1,
        candidates=candidates,
        candidates_stride=most + 3,
        candidate_counts=counts,
    )
    for line, count in zip(candidates, counts):
        assert (line[count:] == -1).all()
    return [line[:count].tolist() for line, count in zip(candidates, counts)]


def best(votes, k):
    """By vote descending, then position: ascending positions of the first k."""
    votes = np.asarray(votes, np.float64)
    return sorted(np.argsort(-votes, kind="stable")[:k].tolist())


def test_few_winners_among_more_ties_than_fit(machine):
    dim, n, k = 128, 8320, 2048
    query, weak = normal(1, dim), normal(2, dim) * np.float32(0.5)
    winners = np.random.default_rng(3).choice(n, 100, replace=False)
    keys = np.tile(weak, (1, n, 1))
    keys[0, winners] = query
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, n)
    index.append(0, keys)
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query[None, None])
    others = np.setdiff1d(np.arange(n), winners)[: k - 100]
    assert step.found().tolist() == [*np.sort(winners), *others]
    assert len(set(step.found().tolist())) == k

    votes = np.where(np.isin(np.arange(n), winners), 2.0, 1.0).astype(np.float32)
    assert select(machine, [votes], k) == [best(votes, k)]
    votes[5000] = np.inf
    assert select(machine, [votes], k) == [best(votes, k)]


def test_scores_that_differ_in_their_last_bits(machine):
    order = np.random.default_rng(4).permutation(16_384)
    scores = np.float32(1) + order.astype(np.float32) * np.float32(2**-22)
    assert len(set(scores.tolist())) == 16_384
    assert select(machine, [scores], 2048) == [best(scores, 2048)]


def test_ties_fall_the_same_way_on_every_call_and_thread(machine):
    dim, copies, k = 64, 16, 100
    n = 4096 * copies
    unique = normal(5, 4096, dim)
    owner = np.random.default_rng(6).permutation(n) % 4096
    keys, query = unique[owner][None], normal(7, 1, 1, dim)
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, n)
    index.append(0, keys)
    plan = Plan(machine, index, config, 1, 1)
    first = Step(plan).retrieve(query)
    wanted = (first.positions.tobytes(), first.scores.tobytes(), first.candidates.tobytes())
    found = first.found()
    for group in np.split(found, np.flatnonzero(np.diff(owner[found])) + 1)[:-1]:
        assert group.tolist() == np.flatnonzero(owner == owner[group[0]]).tolist()
    results = []

    def work(calls):
        step = Step(plan, own_stream(machine))
        for _ in range(calls):
            step.retrieve(query)
            results.append(
                (step.positions.tobytes(), step.scores.tobytes(), step.candidates.tobytes())
            )

    work(100)
    threads = [threading.Thread(target=work, args=(5,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 180
    assert set(results) == {wanted}


def own_stream(machine):
    stream = Handle(machine, "pkv_stream_destroy")
    machine.call("pkv_stream_create", machine.device, stream.out)
    return stream


def test_of_a_pair_that_is_cut_the_first_copy_stays(machine):
    dim, k = 296, 101
    rng = np.random.default_rng(8)
    owner = rng.permutation(np.repeat(np.arange(2048), 2))
    keys = rng.integers(-1000, 1001, (2048, dim)).astype(np.float32)[owner][None]
    query = rng.integers(-1000, 1001, (1, 1, dim)).astype(np.float32)
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, 4096)
    index.append(0, keys)
    found = Step(Plan(machine, index, config, 1, 1)).retrieve(query).found()
    assert len(found) == k
    for i in range(0, 100, 2):
        assert found[i : i + 2].tolist() == np.flatnonzero(owner == owner[found[i]]).tolist()
    assert found[100] == np.flatnonzero(owner == owner[found[100]])[0]


def test_infinite_votes_come_before_any_padding(machine):
    votes = np.full(51, -np.inf, np.float32)
    votes[[7, 30, 50]] = 3, 1, 2
    # The 3 finite ones, then -inf by position, 13 of them: 0 .. 13 without 7.
    assert select(machine, [votes], 16) == [[*range(14), 30, 50]]


def test_scores_below_the_range_of_f16(machine):
    rows = -np.random.default_rng(9).uniform(7e4, 2e5, (200, 1027)).astype(np.float32)
    assert select(machine, rows, 512) == [best(row, 512) for row in rows]


def test_ties_in_one_row_do_not_reach_another(machine):
    rng = np.random.default_rng(10)
    rows = [np.full(20_000, 7, np.float32), rng.permutation(20_000).astype(np.float32)]
    rows += [rng.integers(0, 3, 20_000).astype(np.float32) for _ in range(62)]
    together = select(machine, rows, 1000)
    assert together[0] == list(range(1000))
    assert together[1] == select(machine, rows[1:2], 1000)[0] == best(rows[1], 1000)
    assert together[2:] == [best(row, 1000) for row in rows[2:]]


@pytest.mark.parametrize("profile", ["default", "paper"])
def test_a_row_does_not_depend_on_the_lengths_beside_it(machine, profile):
    dim, n = 16, 5000
    config = Config(machine, profile, head_dim=dim, v_source="none", tail="drop")
    codec = Codec.plain(machine, config)
    keys, query = normal(11, 1, n, dim), normal(12, 1, 1, dim)
    results = []
    for others in ([], [50] * 63, [1_000_000]):
        index = Index(machine, codec, 1 + len(others), max([n, *others]))
        index.append(len(others), keys)
        for sequence, length in enumerate(others):
            index.append(sequence, normal(13 + sequence, 1, length, dim))
        plan = Plan(machine, index, config, 1 + len(others), 1)
        queries = np.concatenate([normal(99, len(others), 1, dim), query])
        step = Step(plan).retrieve(queries)
        assert step.counts[-1, 0] == 100
        results.append((step.found(-1).tolist(), step.scores[-1, 0].tobytes()))
        results[-1] += (step.chosen(-1).tolist(),)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("n", [1, 100, 1024])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("tail", ["drop", "mean", "sampled"])
def test_with_k_of_n_or_more_attention_is_dense(machine, n, extra, tail):
    dim = 64
    keys, values, query = normal(14, 1, n, dim), normal(15, 1, n, dim), normal(16, 1, 2, dim)
    config = Config(machine, head_dim=dim, tail=tail, k=n + extra)
    index = Index(machine, Codec.fit(machine, config, keys, None, values), 1, n)
    index.append(0, keys, values)
    step = Step(Plan(machine, index, config, 1, 2)).retrieve(query)
    assert sorted(step.found().tolist()) == list(range(n))
    step.fetch(keys[None], values[None]).attend(query)
    for head in (0, 1):
        check_attention(
            query[0, head], keys[0], values[0], dim**-0.5, step.output[0, head], step.lse[0, head]
        )
