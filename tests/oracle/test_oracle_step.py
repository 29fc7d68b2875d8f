"""Vote, select, rerank, fetch and attend against the oracle; docs/algorithm.md, 4 to 8."""

import compare
import numpy as np
import pytest
from numbers_of import to_f32
from oracle import vote
from run import PATTERN_F32, PATTERN_I32


def test_votes(run):
    for entry, head, index, n in run.each():
        compare.votes(run, entry, head, index, n)
        assert compare.bits(run.votes[index, n:]).tolist() == [
            int(compare.bits(PATTERN_F32[None])[0])
        ] * (run.votes.shape[1] - n), "votes behind the row were written"


def test_candidates(run):
    positions, counts = run.selected
    for _, _, index, n in run.each():
        want = vote.select(run.votes[index, :n], run.count(n))
        assert counts[index] == len(want)
        compare.assert_bits(positions[index, : len(want)], want.astype(np.int32), "candidates")
        assert (positions[index, len(want) :] == -1).all(), "unused candidates"


def test_candidate_count(run):
    for n in {int(length) for length in run.lengths} | {2, 999, 4999, 10**6, 2**31 - 1}:
        assert run.library.candidate_count(run.rule, n) == run.count(n)


def test_estimates(run):
    if run.reranked["estimates"] is None:
        pytest.skip("this case does not ask for estimates")
    for entry, head, index, _ in run.each():
        compare.estimates(run, entry, head, index)
        left = run.reranked["estimates"][entry, :, len(run.candidates(index)) :]
        if run.g.kv_heads == 1:
            assert (left.view(np.int32) == PATTERN_I32).all(), "estimates behind the count"


def test_hits(run):
    for entry, head, index, _ in run.each():
        compare.hits(run, entry, head, index)


def test_samples(run):
    if run.reranked["sample_estimates"] is None:
        pytest.skip("this case does not ask for samples")
    for entry, head, index, n in run.each():
        compare.samples(run, entry, head, index, n)


def test_rest(run):
    if run.reranked["rest_lse"] is None:
        pytest.skip("this case does not ask for the rest")
    for entry, head, index, n in run.each():
        compare.rest(run, entry, head, index, n)


def test_fetched_rows(run):
    if not run.case.k:
        pytest.skip("k = 0: nothing to fetch")
    keys, values = run.fetched
    for entry, head, index, _ in run.each():
        sequence = run.sequences[entry]
        for slot, position in enumerate(run.reranked["positions"][index]):
            for got, source in ((keys, run.source_keys), (values, run.source_values)):
                if got is None:
                    continue
                row = got[entry, head, slot]
                want = source[sequence, head, position] if position >= 0 else np.zeros_like(row)
                compare.assert_bits(row, want, f"slot {slot} of row {index}")


def test_attention(run):
    if not run.g.value_dim:
        pytest.skip("no values")
    for entry, head, index, _ in run.each():
        compare.attention(run, entry, head, index)


def test_output_is_finite(run):
    """No NaN comes from good rows, whatever the size of the products."""
    if not run.g.value_dim or run.case.value_kind == "nonfinite":
        pytest.skip("no values, or values that overflow")
    output, lse = run.attended
    assert not np.isnan(to_f32(output)).any()
    assert not np.isnan(lse).any()
