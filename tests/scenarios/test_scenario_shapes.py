"""Numbers of heads, widths and k in any combination; heads whose tokens are spread over ranks."""

import numpy as np
import pytest
from capi import Codec, Config, Index
from decoding import Plan, Step
from reference import attention, estimates, normal


def part(machine, config, codec, keys, values, query):
    """(output, lse) of one query head over one rank's tokens [n, d], through all stages."""
    index = Index(machine, codec, 1, max(1, len(keys)))
    index.append(0, keys[None], values[None])
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query[None, None])
    assert step.counts[0, 0] == len(keys)
    source = (keys, values) if len(keys) else (np.zeros_like(query[None]),) * 2
    step.fetch(source[0][None, None], source[1][None, None]).attend(query[None, None])
    return step.output[0, 0].astype(np.float64), np.float64(step.lse[0, 0])


@pytest.mark.parametrize("tail", ["drop", "mean", "sampled"])
def test_parts_of_a_sequence_merge_to_the_whole(machine, tail):
    """4 heads of 1,000 tokens over 8 ranks: two ranks a head; then one of them without tokens."""
    dim, n, heads = 64, 1000, 4
    keys, values = normal(1, heads, n, dim), normal(2, heads, n, dim)
    config = Config(machine, head_dim=dim, tail=tail, k=n + 1)
    codec = Codec.plain(machine, config)
    for head in range(heads):
        query = normal(3 + head, dim)
        expected, expected_lse = attention(query, keys[head], values[head], dim**-0.5)
        for cut in (500, 1, n, 0):
            ranks = [
                part(machine, config, codec, keys[head, span], values[head, span], query)
                for span in (slice(0, cut), slice(cut, n))
            ]
            outputs, lses = (np.array(numbers) for numbers in zip(*ranks))
            weights = np.exp(lses - lses.max())
            merged = weights @ outputs / weights.sum()
            lse = lses.max() + np.log(weights.sum())
            if cut in (0, n):
                empty = 0 if cut == 0 else 1
                assert lses[empty] == -np.inf and (outputs[empty] == 0).all()
                assert (merged == outputs[1 - empty]).all() and lse == lses[1 - empty]
            # Bounds of two parts, as numerics.md, 3, has them for one; logits here are below 30.
            sizes = np.abs(keys[head].astype(np.float64)) @ np.abs(query.astype(np.float64))
            eps = (dim + 2) * 2.0**-24 * dim**-0.5 * sizes.max() + (n + 8) * 2.0**-24
            assert abs(lse - expected_lse) <= 2 * (eps + abs(expected_lse) * 2.0**-24)
            bound = 4 * eps * np.abs(values[head]).max() + 2.0**-23 * abs(expected)
            assert (abs(merged - expected) <= bound).all()


@pytest.mark.parametrize("heads", [1, 3, 16])
@pytest.mark.parametrize("dim", [64, 128])
def test_every_combination_of_heads_width_and_k(machine, heads, dim):
    n = 2100
    keys, query = normal(7, heads, n, dim), normal(8, 1, heads, dim)
    options = {"head_dim": dim, "v_source": "none", "tail": "drop", "rank": "mean"}
    config = Config(machine, **options, candidates="1")
    codec = Codec.fit(machine, config, keys)
    index = Index(machine, codec, 1, n)
    index.append(0, keys)
    wanted, numbers = [], codec.numbers()
    for head in range(heads):
        records = index.records(0, head)
        wanted.append(
            estimates(machine, index.geometry, numbers, records, query[0, head][None], head)
        )
    for k in (100, 192, 256, 2051):
        config.set("k", k)
        step = Step(Plan(machine, index, config, 1, heads)).retrieve(query)
        for head in range(heads):
            (scores,), (sizes,) = wanted[head]
            found, got = step.found(0, head), step.scores[0, head]
            assert len(set(found.tolist())) == k and 0 <= found.min() <= found.max() < n
            # The query's integers: half a step of M / 32512 for each level, 1e-3 of a product of
            # the typical size at most; fp32 besides.
            bound = 2e-4 * sizes.max()
            assert (abs(got - scores[found]) <= bound).all()
            kth = np.sort(scores)[-k]
            assert set(np.flatnonzero(scores > kth + 2 * bound)) <= set(found.tolist())
            assert (scores[found] >= kth - 2 * bound).all()
            order = sorted(range(k), key=lambda i: (-got[i], found[i]))
            assert order == list(range(k))
