"""The oracle's fit, samples and tails against themselves: identities that they must satisfy."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from oracle import attend, encode, fit, model, rerank
from test_oracle_self import GEOMETRY, random_params


def scaled(scale, soft_cap=0.0):
    return partial(model.logit, scale=scale, soft_cap=soft_cap)


def test_a_soft_cap_limits_and_a_sink_takes_its_share():
    """8.1, by what follows from it: the capped softmax, and the sink's part of the mass."""
    rng = np.random.default_rng(12)
    keys, values = 3 * rng.standard_normal((2, 50, 128)).astype(np.float32)
    queries = rng.standard_normal((3, 128)).astype(np.float32)
    params = random_params(GEOMETRY, rng)
    rows = (GEOMETRY, params, queries, keys, values)
    products = queries.astype(np.float64) @ keys.T.astype(np.float64)
    logits = 2 * np.tanh(products / 8 / 2)
    want = np.exp(logits) @ values / np.exp(logits).sum(axis=1, keepdims=True)
    output, lse, _ = attend.attend(*rows, scaled(1 / 8, 2.0))
    assert np.abs(output - want).max() < 1e-12
    assert np.abs(lse - np.log(np.exp(logits).sum(axis=1))).max() < 1e-12
    sinks = np.array([3.5, -np.inf, -1.0], np.float32)
    with_sinks, sunk_lse, _ = attend.attend(*rows, scaled(1 / 8, 2.0), sinks=sinks)
    assert np.abs(sunk_lse - np.logaddexp(lse, sinks)).max() < 1e-12
    assert np.abs(with_sinks - output * np.exp(lse - sunk_lse)[:, None]).max() < 1e-12
    nothing = attend.attend(GEOMETRY, params, queries, NOTHING, NOTHING, scaled(1), sinks=sinks)
    assert (nothing[0] == 0).all()
    assert (nothing[1] == sinks).all()


def test_attention_over_all_keys_is_the_exact_softmax():
    rng = np.random.default_rng(9)
    keys, values = rng.standard_normal((2, 300, 128)).astype(np.float32)
    queries = rng.standard_normal((4, 128)).astype(np.float32)
    records = encode.encode(GEOMETRY, random_params(GEOMETRY, rng), keys, values)
    logits = queries.astype(np.float64) @ keys.T.astype(np.float64) / 8
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    want = weights @ values / weights.sum(axis=1, keepdims=True)
    everything = np.arange(300)
    params = random_params(GEOMETRY, rng)
    est, _ = rerank.estimates(GEOMETRY, params, records, queries)
    rest, _ = rerank.rest_lse(est, everything, 300, everything, scaled(1 / 8))
    assert (rest == -np.inf).all()
    zone = attend.Zone(300, everything, est, rest, everything, values.sum(axis=0), 300)
    for tail in (model.DROP, model.MEAN):
        output, lse, _ = attend.attend(
            GEOMETRY, params, queries, keys, values, scaled(1 / 8), tail, zone
        )
        assert np.abs(output - want).max() < 1e-12
        assert np.abs(lse - np.log(np.exp(logits).sum(axis=1))).max() < 1e-12


def tail_of(rng, stride, samples, fetched, n=700):
    """(geometry, params, queries, zone, values) of a row with estimates for every 7th key."""
    geometry = replace(GEOMETRY, sketch_bits=4, sketch_stride=stride)
    keys, values = rng.standard_normal((2, n, 128)).astype(np.float32)
    queries = rng.standard_normal((3, 128)).astype(np.float32)
    params = random_params(geometry, rng, queries, keys)
    records = encode.encode(geometry, params, keys, values)
    est, _ = rerank.estimates(geometry, params, records, queries)
    candidates = np.arange(0, n, 7)
    positions = rerank.sample_positions(n, stride, samples)
    sampled, _ = rerank.sample_estimates(geometry, params, records, queries, positions)
    assert (sampled == est[:, positions]).all()
    rest, _ = rerank.rest_lse(sampled, positions, n, candidates, scaled(1 / 16))
    zone = attend.Zone(
        n,
        candidates,
        est[:, candidates],
        rest,
        candidates[:fetched],
        values.sum(axis=0),
        n,
        records,
        positions,
        sampled,
    )
    return geometry, params, queries, zone, est.astype(np.float64) / 16


NOTHING = np.zeros((0, 128), np.float32)


@pytest.mark.parametrize(("samples", "stride", "bound"), [(700, 1, 1e-12), (200, 1, 0.2)])
def test_tail_masses_add_up(samples, stride, bound):
    """With estimates for every key the tail's total mass is that of the estimates."""
    geometry, params, queries, zone, logits = tail_of(
        np.random.default_rng(10), stride, samples, fetched=0
    )
    whole = rerank.log_sum_exp(logits)
    for tail in (model.MEAN, model.SKETCH, model.SAMPLED):
        args = (geometry, params, queries, NOTHING, NOTHING, scaled(1 / 16), tail, zone)
        assert np.abs(attend.attend(*args)[1] - whole).max() < bound


def test_tail_of_all_samples_is_the_softmax_of_the_sketches():
    """sketch: every key that was not fetched, with its sketched value, whatever is a candidate."""
    geometry, params, queries, zone, logits = tail_of(np.random.default_rng(11), 1, 700, fetched=9)
    left = ~np.isin(np.arange(700), zone.fetched)
    weights = np.exp(logits[:, left])
    sketched = attend.sketch_values(geometry, params, zone.records, np.flatnonzero(left))
    want = weights @ sketched / weights.sum(axis=1, keepdims=True)
    args = (geometry, params, queries, NOTHING, NOTHING, scaled(1 / 16), model.SKETCH, zone)
    assert np.abs(attend.attend(*args)[0] - want).max() < 1e-12


@pytest.mark.parametrize("stride", [1, 16])
def test_sampled_tail_lies_between_its_samples_and_the_mean(stride):
    geometry, params, queries, zone, logits = tail_of(
        np.random.default_rng(12), stride, 30, fetched=9
    )
    args = (geometry, params, queries, NOTHING, NOTHING, scaled(1 / 16), model.SAMPLED, zone)
    output, lse, _ = attend.attend(*args)
    good = zone.samples[~np.isin(zone.samples, zone.fetched)]
    assert 25 < len(good) <= 30
    sketched = attend.sketch_values(geometry, params, zone.records, good)
    mean = zone.value_sums / 700
    for head in range(3):
        o = np.exp(logits[head, good])
        number = 1 / np.sum((o / o.sum()) ** 2)
        assert 1 < number < 30
        want = number / (number + 32) * (o / o.sum() @ sketched) + 32 / (number + 32) * mean
        assert np.abs(output[head] - want).max() < 1e-12


def test_samples_are_spread_over_the_sketches():
    for n, stride, samples, want in (
        (0, 16, 512, []),
        (5, 1, 512, [0, 1, 2, 3, 4]),
        (5, 0, 512, [0, 1, 2, 3, 4]),
        (16, 16, 512, [0]),
        (17, 16, 512, [0, 16]),
        (33, 16, 2, [0, 16]),
        (10, 1, 4, [0, 2, 5, 7]),
        (100, 3, 3, [0, 33, 66]),
    ):
        assert rerank.sample_positions(n, stride, samples).tolist() == want


def test_weights_of_the_fit_repeat_keys():
    rng = np.random.default_rng(13)
    keys, sample = rng.standard_normal((20, 8)), rng.standard_normal((3, 5, 8))
    keys, sample = keys.astype(np.float32), sample.astype(np.float32)
    weights = rng.integers(0, 4, 20)
    rows = fit.query_rows(sample, as_sum=True)
    assert rows.shape == (5, 8) and (rows == (sample[0] + sample[1]) + sample[2]).all()
    weighted = fit.fit_sums(keys[0], keys, rows, weights=weights)
    repeated = fit.fit_sums(keys[0], np.repeat(keys, weights, axis=0), rows)
    assert weighted.count == 20 and weighted.weight == repeated.count == weights.sum()
    for one, other in zip(fit.fit_params(weighted)[:2], fit.fit_params(repeated)[:2]):
        assert np.abs(one - other).max() < 1e-12
    unweighted = fit.fit_sums(keys[0], keys, rows, weights=0 * weights)
    mu, s, _ = fit.fit_params(unweighted)
    assert (mu == 0).all() and (s == 1).all()


def test_picks_are_the_tenth_that_the_queries_want():
    """Two clouds of keys, queries towards one: the second fit is that of this cloud alone."""
    rng = np.random.default_rng(14)
    geometry = replace(GEOMETRY, head_dim=64)
    away = np.where(np.arange(64) < 32, 3, 0)
    keys = (0.1 * rng.standard_normal((400, 64)) - away).astype(np.float32)
    keys[60:100] += 2 * away
    sample = (0.1 * rng.standard_normal((2, 9, 64)) + away).astype(np.float32)
    first = fit.fit_params(fit.fit_sums(keys[0], keys, fit.query_rows(sample, as_sum=False)))
    center, balance = (x.astype(np.float32) for x in first[:2])
    weights = fit.pick_weights(geometry, center, balance, keys, sample)
    assert (weights[60:100] == 9).all() and weights.sum() == 9 * 40
    mu, _, _ = fit.fit_picked(geometry, keys, sample)
    assert np.abs(mu - keys[60:100].mean(axis=0, dtype=np.float64)).max() < 1e-12
    few = fit.fit_picked(geometry, keys[50:360], sample[:, :1])  # of which 31 are picked
    rows = fit.query_rows(sample[:, :1], as_sum=False)
    assert (few[0] == fit.fit_params(fit.fit_sums(keys[50], keys[50:360], rows))[0]).all()
    assert (
        fit.fit_picked(geometry, keys, None)[0] == fit.fit_params(fit.fit_sums(keys[0], keys))[0]
    ).all()
