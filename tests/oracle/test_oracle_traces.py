"""Keys, values and queries of real models (data/traces): the whole way from fit to attention."""

import json
from dataclasses import replace
from pathlib import Path

import compare
import numpy as np
import pytest
from cases import make_case
from numbers_of import to_f32
from oracle import attend, model, vote
from special_cases import AUTO, PAPER
from steps import Steps
from test_oracle_encode import stage_fit
from test_oracle_picked import Fitted
from test_oracle_picked import make_case as make_fit_case

FOLDER = Path(__file__).resolve().parents[2] / "data" / "traces"
TRACES = sorted(FOLDER.glob("*.safetensors"))
SINK, WINDOW, QUERIES = 128, 512, 3
OPTIONS = {
    "default": (
        {"codec": model.SCALAR4, "vote": model.GRADED, "sketch_bits": 4, "sketch_stride": 16},
        {
            "rank": model.RANK_GROUP,
            "tail": model.SAMPLED,
            "schedule": AUTO,
            "params": "picked",
        },
    ),
    "mean": (
        {"codec": model.SCALAR4, "vote": model.GRADED},
        {"rank": model.RANK_GROUP, "tail": model.MEAN, "schedule": AUTO, "params": "fit"},
    ),
    "paper": (
        {"codec": model.POLAR4, "vote": model.TIER},
        {"rank": model.RANK_MEAN, "tail": model.DROP, "schedule": PAPER, "params": "off"},
    ),
    "sketch": (
        {"codec": model.SCALAR5, "vote": model.GRADED, "sketch_bits": 4, "value_norm": 1},
        {
            "rank": model.RANK_GROUP,
            "tail": model.SKETCH,
            "schedule": AUTO,
            "vote_group": 2,
            "params": "picked",
        },
    ),
}


def read_safetensors(path):
    """{name: array} of a safetensors file, float16 and int64."""
    raw = Path(path).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    types = {"F16": "<f2", "I64": "<i8", "F32": "<f4"}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + size + begin : 8 + size + end], types[entry["dtype"]])
        tensors[name] = data.reshape(entry["shape"])
    return tensors, header["__metadata__"]


def test_traces_are_there():
    assert TRACES, f"no traces in {FOLDER}"


def make_case_of(trace, options):
    """A case of one KV head, entries of the batch being different queries over the same zone."""
    geometry_options, step_options = OPTIONS[options]
    heads, total, dim = trace["k"].shape
    geometry = model.Geometry(heads, dim, dim, seed=42, **geometry_options)
    fields = {
        "geometry": geometry,
        "group": trace["q"].shape[1] // heads,
        "batch": QUERIES,
        "length": total - SINK - WINDOW,
        "key_dtype": "f16",
        "query_dtype": "f16",
        "output_dtype": "f32",
        "key_kind": "trace",
        "query_kind": "trace",
        "queries_as": model.QUERIES_HEADS,
        "fit_weights": "none",
        "encode_values": True,
        "vote_group": 1,
        "rho_of": 1,
        "tail_samples": 512,
        "k": 100,
        "scale": float(np.float32(1 / np.sqrt(dim))),
        "share": 0.0,
        "k_min": 0,
        "soft_cap": 0.0,  # the models of the traces have neither
        "has_sinks": False,
        "pieces": 2,
        "parts": 2,
        "layout": "token_major",
    }
    return replace(make_case(1), **{**fields, **step_options})


class TraceRun(Steps):
    """All sequences hold the same zone; sink and window are the dense parts."""

    def __init__(self, trace, case, library):
        self.trace = trace
        zone = slice(SINK, SINK + case.length)
        repeat = (case.batch + 1, 1, 1, 1)
        sample = trace["q"][:32].transpose(1, 0, 2).astype(np.float32)
        data = {
            "keys": np.tile(trace["k"][None, :, zone], repeat),
            "values": np.tile(trace["v"][None, :, zone], repeat),
            "queries": trace["q"][-case.batch :],
            "sample": sample,
        }
        super().__init__(case, library, data)
        self.lengths[:] = case.length
        repeat = (case.batch, 1, 1, 1)
        self.parts = []
        for tokens in (slice(0, SINK), slice(SINK + case.length, None)):
            keys, values = (np.tile(trace[name][None, :, tokens], repeat) for name in "kv")
            self.parts.append((keys, values, None))


@pytest.fixture(scope="module", params=TRACES, ids=lambda path: path.stem)
def trace(request):
    return read_safetensors(request.param)[0]


@pytest.fixture(scope="module", params=OPTIONS)
def traced(request, trace, library):
    return TraceRun(trace, make_case_of(trace, request.param), library)


def test_fit(traced):
    out, _ = stage_fit(traced)
    for head in range(traced.g.kv_heads):
        want = traced.fit_sums(head)
        assert out["key_counts"][head] == want.count == traced.case.length
        noise = 2 * (want.count + 4) * 2.0**-53
        compare.assert_close(out["key_sums"][head], want.sums, noise * want.sums_size, "sums")


@pytest.mark.parametrize("center,balance", [(1, 1), (1, 0), (0, 1)])
def test_picked(trace, library, center, balance):
    """The codec of fit = picked, every head with keys that were picked."""
    heads, total, dim = trace["k"].shape
    zone = slice(SINK, total - WINDOW)
    sample = np.ascontiguousarray(trace["q"][:32].transpose(1, 0, 2))
    case = replace(
        make_fit_case(0),
        geometry=model.Geometry(heads, dim, dim, sketch_bits=4, sketch_stride=16, seed=42),
        group=len(sample) // heads,
        dtype="f16",
        center=center,
        balance=balance,
    )
    fitted = Fitted(case, library, (trace["k"][:, zone], sample, trace["v"][:, zone]))
    first, second = fitted.codec("keys"), fitted.codec("picked")
    for head in range(heads):
        sums = fitted.first_sums(head)
        fitted.check(head, first, sums)
        sums = fitted.second_sums(head, first, sums)
        assert fitted.check(head, second, sums), "the balance could not be compared"
        count = -(-sums.count // 10)  # a tenth of the zone for each query position
        assert sums.weight == count * sample.shape[1]


def test_stages(traced):
    for entry, head, index, n in traced.each():
        compare.records(traced, entry, head, n)
        compare.votes(traced, entry, head, index, n)
        want = vote.select(traced.votes[index, :n], traced.count(n))
        compare.assert_bits(traced.candidates(index), want.astype(np.int32), "candidates")
        compare.estimates(traced, entry, head, index)
        compare.hits(traced, entry, head, index)
        if traced.reranked["sample_estimates"] is not None:
            compare.samples(traced, entry, head, index, n)
        compare.rest(traced, entry, head, index, n)
        assert compare.attention(traced, entry, head, index) == traced.case.group


def test_attention_is_near_the_exact_one(traced):
    """The bounds are loose (nearly parallel keys of long norm give single queries with more error
    than the dense parts alone); wrong results do not come near them."""
    errors, dense_errors = [], []
    output = to_f32(traced.attended[0]).astype(np.float64)
    for entry, head, _, n in traced.each():
        heads = slice(head * traced.case.group, (head + 1) * traced.case.group)
        queries = traced.group_of(entry, head)
        keys, values = (traced.trace[name][head].astype(np.float32) for name in "kv")
        params, logit = traced.params[head], traced.case.logit
        exact, _, _ = attend.attend(traced.g, params, queries, keys, values, logit)
        dense = np.r_[0:SINK, SINK + n : len(keys)]
        without, _, _ = attend.attend(traced.g, params, queries, keys[dense], values[dense], logit)
        size = np.linalg.norm(exact)
        errors.append(np.linalg.norm(output[entry, heads] - exact) / size)
        dense_errors.append(np.linalg.norm(without - exact) / size)
    assert max(errors) < 0.25
    assert np.mean(errors) < 1.2 * np.mean(dense_errors)
