"""Encode: fixed codes, widths, scaling, zero and bad keys, short prompts."""

import json
import subprocess
import sys

import fixed_keys
import numpy as np
import pytest
from binding import BF16
from capi import INVALID, LIBRARY, Codec, Config, Index, refused
from decoding import Plan, Step
from oracle import encode, model
from oracle.f32 import bf16, from_bf16
from reference import check_attention, estimates, exact_best, hadamard, normal, recall

GOLDEN = json.loads((fixed_keys.HERE / "fixed_keys.json").read_text())
CODECS = ("polar4", "scalar4", "scalar5")


def plain_index(machine, keys, config, values=None):
    """An index with centre 0 and balance 1 over keys [h, n, d]."""
    index = Index(machine, Codec.plain(machine, config, len(keys)), 1, keys.shape[1])
    index.append(0, keys, values)
    return index


def test_a_thousand_fixed_keys_have_the_golden_codes(machine):
    assert fixed_keys.of_library(LIBRARY, machine.backend) == GOLDEN


def test_another_process_gives_the_same_codes(machine):
    command = [sys.executable, fixed_keys.__file__, LIBRARY, machine.backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == GOLDEN


def test_the_golden_codes_are_those_of_the_specification():
    assert fixed_keys.of_oracle() == GOLDEN
    assert len({entry["planes"]["codes"] for entry in GOLDEN.values()}) == 3


@pytest.mark.parametrize("dim", [80, 96, 112, 192, 576])
def test_a_width_that_create_takes_works_to_the_end(machine, dim):
    n = 200
    keys, values, query = normal(1, 1, n, dim), normal(2, 1, n, dim), normal(3, 1, 2, dim)
    keys[0, 77] = 3 * query[0, 0]
    config = Config(machine, head_dim=dim, k=n)
    index = Index(machine, Codec.fit(machine, config, keys, query[0, :, None], values), 1, n)
    index.append(0, keys, values)
    step = Step(Plan(machine, index, config, 1, 2)).retrieve(query)
    assert sorted(step.found()) == list(range(n))
    assert step.found()[0] == 77
    step.fetch(keys[None], values[None]).attend(query)
    for head in (0, 1):
        check_attention(
            query[0, head],
            keys[0],
            values[0],
            dim**-0.5,
            step.output[0, head],
            step.lse[0, head],
        )


@pytest.mark.parametrize("dim", [0, 7, 100, 1_000_000])
def test_any_other_width_is_refused_at_once(machine, dim):
    config = Config(machine)
    with refused(INVALID, f'head_dim="{dim}"', "8..576"):
        config.set("head_dim", dim)


OTHER_WIDTHS = [("codec", word) for word in ("scalar2", "scalar3", "scalar8", "polar5")]
OTHER_WIDTHS += [("tail", "sketch3"), ("tail", "sketch8")]


@pytest.mark.parametrize("name, value", OTHER_WIDTHS)
def test_a_number_of_bits_without_a_code_is_refused(machine, name, value):
    config = Config(machine, head_dim=64)
    before = config.get(name)
    with refused(INVALID, f'{name}="{value}"', before):
        config.set(name, value)
    assert config.get(name) == before


@pytest.mark.parametrize("dim, shared", [(64, 32), (128, 64)])
@pytest.mark.parametrize("codec", CODECS)
def test_no_dimension_is_left_out(machine, dim, shared, codec):
    """Two keys that differ in their upper part only, each beside the same third one."""
    keys, values, query = normal(4, 2, 2, dim), normal(5, 1, 2, dim), normal(6, 1, 1, dim)
    keys[1, :, :shared] = keys[0, :, :shared]
    keys[1, 1] = keys[0, 1]
    assert (keys[0, 0, shared:] != keys[1, 0, shared:]).all()
    config = Config(machine, head_dim=dim, codec=codec, rank="mean", tail="drop", k=2)
    signs, codes, scores, outputs = [], [], [], []
    geometry = model.Geometry(1, dim, dim, codec=CODECS.index(codec) + 1)
    zeros = np.zeros(dim, np.float32)
    params = model.make_params(geometry, zeros, zeros + 1)
    for pair in keys:
        index = plain_index(machine, pair[None], config, values)
        records = index.records()
        expected = encode.encode(geometry, params, pair).planes()
        for name in ("signs", "codes", "factors"):
            assert records[name].tobytes() == expected[name].tobytes()
        step = Step(Plan(machine, index, config, 1, 1)).retrieve(query)
        step.fetch(pair[None, None], values[None]).attend(query)
        check_attention(query[0, 0], pair, values[0], dim**-0.5, step.output[0, 0], step.lse[0, 0])
        numbers = {"center": zeros[None], "balance": zeros[None] + 1}
        wanted, sizes = estimates(machine, index.geometry, numbers, records, query[0])
        order = step.found()
        # polar4: (d + S + 4) u of the sum of |terms|; scalar: less.
        bound = (dim + dim // 8 + 4) * 2.0**-24 * sizes[0]
        assert (abs(step.scores[0, 0] - wanted[0, order]) <= bound[order]).all()
        signs.append(records["signs"][0].tobytes())
        codes.append(records["codes"][0].tobytes())
        scores.append(wanted[0, 0])
        outputs.append(step.output[0, 0])
    assert signs[0] != signs[1] and codes[0] != codes[1]
    assert abs(scores[0] - scores[1]) > 1e-3
    assert abs(outputs[0] - outputs[1]).max() > 1e-3


@pytest.mark.parametrize("dim", [64, 128, 96])
@pytest.mark.parametrize("codec", CODECS)
def test_scaled_keys_have_the_same_codes_and_scaled_factors(machine, dim, codec):
    keys = normal(7, 1, 50, dim)
    config = Config(machine, head_dim=dim, codec=codec, center="off", balance="off")
    config.set("v_source", "none")
    config.set("tail", "drop")
    one, four, small = (
        plain_index(machine, keys * np.float32(scale), config).records()
        for scale in (1, 4, 1 / 1024)
    )
    for scaled, scale in ((four, 4), (small, 1 / 1024)):
        assert scaled["signs"].tobytes() == one["signs"].tobytes()
        assert scaled["codes"].tobytes() == one["codes"].tobytes()
        for plane in ("factors", "vote_factors"):
            assert (from_bf16(scaled[plane]) == scale * from_bf16(one[plane])).all()
    assert (from_bf16(one["factors"]) > 0).all()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_key_and_a_zero_subspace_have_one_code(machine, codec, zero):
    """d = 64: one key of zeros, one whose rotated subspace 5 is zero."""
    dim = 64
    config = Config(machine, head_dim=dim, codec=codec, v_source="none", tail="drop")
    config.set("seed", 42)
    rotated = np.random.default_rng(8).integers(1, 5, dim).astype(np.float64)
    rotated[40:48] = 0
    # Small integers: the way back is exact, and rotating gives d * rotated.
    signs = machine.sign_vector(42, 1, dim)
    key = (signs * hadamard(rotated)).astype(np.float32)
    key[key == 0] = zero
    keys = np.stack([np.full(dim, zero, np.float32), key])[None]
    records = plain_index(machine, keys, config).records()
    # Both zeros are positive: all bits set (docs/numerics.md, 4).
    assert (records["signs"][0] == 0xFF).all()
    assert (records["codes"][0] == 0).all() and (records["factors"][0] == 0).all()
    assert records["vote_factors"][0] == 0
    assert (records["signs"][1] == 0xFF).all()
    codes = records["codes"][1].reshape(-1, dim // 8)
    assert (codes[:, 5] == 0).all() and codes.any()
    factors = from_bf16(records["factors"][1])
    assert np.isfinite(factors).all() and factors.max() > 0
    if codec == "polar4":
        assert factors[5] == 0 and (np.delete(factors, 5) > 0).all()


def nan_at_777():
    keys = bf16(normal(9, 1, 4096, 64))
    keys[0, 777, 13] = 0x7FC1
    return keys


def test_a_nan_key_is_refused_by_position_and_nothing_is_appended(machine):
    config = Config(machine, head_dim=64, v_source="none", tail="drop")
    index = Index(machine, Codec.plain(machine, config), 1, 5000)
    with refused(INVALID, "position 777", "sequence 0", "KV head 0", "nonfinite=isolate"):
        index.append(0, nan_at_777(), dtype=BF16)
    assert index.length(0) == 0
    index.append(0, nan_at_777()[:, 800:], dtype=BF16)  # still usable
    assert index.length(0) == 3296


@pytest.mark.parametrize("profile", ["default", "paper"])
def test_an_isolated_nan_key_changes_nothing_for_the_others(machine, profile):
    options = {"head_dim": 64, "v_source": "none", "tail": "drop", "nonfinite": "isolate"}
    # The paper's tier votes and shares depend on the number of keys: all are candidates there.
    options |= {"candidates": "1"} if profile == "paper" else {}
    config = Config(machine, profile, **options)
    codec = Codec.plain(machine, config)
    keys = nan_at_777()
    query = normal(10, 1, 2, 64)
    steps = []
    for given in (keys, np.delete(keys, 777, axis=1)):
        index = Index(machine, codec, 1, 4096)
        index.append(0, given, dtype=BF16)
        steps.append(Step(Plan(machine, index, config, 1, 2)).retrieve(query))
        steps[-1].bad = index.stats().bad_keys
    isolated, without = steps
    assert (isolated.bad, without.bad) == (1, 0)
    assert 777 not in isolated.chosen() and 777 not in isolated.found()
    moved = without.found() + (without.found() >= 777)
    assert moved.tolist() == isolated.found().tolist()
    assert isolated.scores.tobytes() == without.scores.tobytes()


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_a_codec_fitted_on_a_short_prompt_serves_what_is_decoded(machine, seen):
    """2,000 decoded keys with a mean; the fit saw 0, 1 or 3 keys of the prompt, no queries."""
    dim, n, k = 128, 2000, 100
    mean = normal(11, dim) * np.float32(0.25)
    prompt, decoded = normal(12, 1, n, dim) + mean, normal(13, 1, n, dim) + mean
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", candidates="0.2", k=k)
    recalls = []
    for fitted in (prompt[:, :seen], prompt):
        codec = Codec.fit(machine, config, fitted)
        numbers = codec.numbers()
        assert np.isfinite(numbers["center"]).all() and (numbers["balance"] == 1).all()
        if seen == 0 and fitted.shape[1] == 0:
            assert (numbers["center"] == 0).all()
        index = Index(machine, codec, 1, n)
        index.append(0, decoded)
        step = Step(Plan(machine, index, config, 1, 1))
        found = []
        for query in normal(14, 40, dim):
            step.retrieve(query[None, None])
            assert np.isfinite(step.scores).all()
            found.append(recall(step.found(), exact_best(decoded[0], query, k)))
        recalls.append(np.mean(found))
    # Any centre keeps the ranking exact and only moves the quantiser's error (2.2): a single key as
    # centre doubles the squared norm of what is quantised, so its error grows by sqrt(2).
    assert recalls[0] >= recalls[1] / 2**0.5
