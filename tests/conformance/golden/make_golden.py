#!/usr/bin/env python3
"""make_golden.py [--check]: writes the golden vectors beside it, or says whether they are as they
should be.

Expected results of every stage, computed by tests/oracle/oracle, which was written from
docs/algorithm.md alone and shares nothing with the library. Inputs are not stored: they come from
the hash below, which golden_cases.cpp repeats.
"""

import functools
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "oracle"))

from oracle import attend, encode, model, rerank, signs, vote  # noqa: E402
from oracle.f32 import bf16, from_bf16  # noqa: E402

F32 = np.float32
KEYS, QUERIES, VALUES, CENTER, BALANCE, VALUE_CENTER, PART_KEYS, PART_VALUES = range(1, 9)
DIMS = (8, 24, 64, 80, 96, 128, 192, 256, 264, 576)
TOKENS, PART = 16, 5
SEED = 0x9E3779B97F4A7C15


def numbers(stream, shape, dtype="f32"):
    """Element i is a hash of stream and i: a multiple of 2^-21 in [-4, 4), for f16 and bf16 of
    2^-5, so that every dtype holds it exactly."""
    h = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)
    h = (h * 0x9E3779B9 + stream * 0x85EBCA6B) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        h = ((h ^ (h >> np.uint64(shift))) * factor) & 0xFFFFFFFF
    if dtype == "f32":
        values = ((h >> np.uint64(8)).astype(np.int64) - 2**23) * 2.0**-21
    else:
        values = ((h >> np.uint64(24)).astype(np.int64) - 128) * 2.0**-5
    return values.astype(F32).reshape(shape)


@dataclass(frozen=True)
class Entry:
    name: str
    geometry: model.Geometry
    group: int = 3
    dtype: str = "f32"
    plain: bool = False  # centre 0, balance 1
    vote_group: int = model.GROUP_SUM
    rho_of: int = model.RHO_KEYS
    rank: int = model.RANK_GROUP
    ppm: int = 400_000
    k: int = 4
    tail: int = model.MEAN
    tail_samples: int = 512


def geometry_of(dim, **fields):
    return model.Geometry(kv_heads=1, head_dim=dim, value_dim=16, seed=SEED, **fields)


def entries():
    out = []
    for codec, name in (
        (model.POLAR4, "polar4"),
        (model.SCALAR4, "scalar4"),
        (model.SCALAR5, "scalar5"),
    ):
        for i, dim in enumerate(DIMS):
            kind = model.TIER if codec == model.POLAR4 and i % 2 else model.GRADED
            out.append(
                Entry(
                    f"{name}/d{dim}",
                    geometry_of(dim, codec=codec, vote=kind),
                    plain=i % 3 == 2,
                    rank=model.RANK_MEAN if i % 2 else model.RANK_GROUP,
                    tail_samples=4 if i % 4 == 1 else 512,
                )
            )
        out.append(Entry(f"{name}/d64_rounds2", geometry_of(64, codec=codec, rounds=2)))
    for dtype in ("f16", "bf16"):
        out.append(Entry(f"dtypes/d128_{dtype}", geometry_of(128), dtype=dtype))
    for dim in (8, 24, 80, 128):
        heads = Entry(f"votes/d{dim}_heads", geometry_of(dim), vote_group=model.GROUP_HEADS)
        tier = replace(geometry_of(dim, vote=model.TIER), codec=model.SCALAR4)
        out += [
            heads,
            Entry(f"votes/d{dim}_tier", tier),
            Entry(f"votes/d{dim}_centroids", tier, rho_of=model.RHO_CENTROIDS),
        ]
    for bits in (2, 4):
        for value_dim in (8, 24, 64, 96):
            sketch = replace(geometry_of(64, sketch_bits=bits, value_norm=1), value_dim=value_dim)
            out.append(Entry(f"sketch/dv{value_dim}_bits{bits}", sketch, tail=model.SKETCH))
            few = 5 + value_dim % 16  # fewer samples than keys: their value is not trusted fully
            name = f"sketch/dv{value_dim}_bits{bits}_samples{few}"
            out.append(Entry(name, sketch, tail=model.SKETCH, tail_samples=few))
        for stride in (1, 3, 5, 16):
            sampled = geometry_of(64, sketch_bits=bits, sketch_stride=stride)
            out.append(Entry(f"sampled/bits{bits}_stride{stride}", sampled, tail=model.SAMPLED))
            few = replace(sampled, value_dim=24, codec=model.POLAR4, vote=model.TIER, value_norm=1)
            name = f"sampled/polar4_dv24_bits{bits}_stride{stride}_samples4"
            out.append(Entry(name, few, tail=model.SAMPLED, tail_samples=4, k=2))
    out.append(Entry("tails/drop", geometry_of(64), tail=model.DROP))
    out.append(Entry("tails/no_candidates", geometry_of(64), k=0, ppm=0))
    out.append(Entry("tails/all_candidates", geometry_of(64), ppm=1_000_000, k=20))
    strided = geometry_of(64, sketch_bits=4, sketch_stride=3)
    for name, options in (
        ("no_candidates", {"k": 0, "ppm": 0}),
        ("none_fetched", {"k": 0}),
        ("all_candidates", {"ppm": 1_000_000, "k": 3}),
        ("all_fetched", {"ppm": 1_000_000, "k": 20}),
    ):
        out.append(Entry(f"tails/sampled_{name}", strided, tail=model.SAMPLED, **options))
    return out


def keys_of(entry):
    """Keys with a zero one, a bad one, two equal ones and one whose squares underflow."""
    keys = numbers(KEYS, (TOKENS, entry.geometry.head_dim), entry.dtype)
    keys[3] = 0
    keys[5, 1] = np.nan
    keys[7] = keys[2]
    if entry.dtype == "f32":
        keys[9] *= F32(2.0**-80)
    return keys


def params_of(entry):
    g = entry.geometry
    center, balance = np.zeros(g.head_dim, F32), np.ones(g.head_dim, F32)
    value_center = np.zeros(g.value_dim, F32)
    if not entry.plain:
        center = numbers(CENTER, g.head_dim) * F32(0.125)
        balance = F32(0.5) + np.abs(numbers(BALANCE, g.head_dim)) * F32(0.25)
        value_center = numbers(VALUE_CENTER, g.value_dim) * F32(0.125)
    return model.make_params(g, center, balance, value_center)


def hexed(array):
    return np.ascontiguousarray(array).tobytes().hex()


def shortened(array):
    """Ten digits; None for -inf, which JSON lacks."""
    flat = np.asarray(array, np.float64).ravel()
    return [None if x == -np.inf else float(f"{x:.10g}") for x in flat]


def make(entry):
    g, params = entry.geometry, params_of(entry)
    keys = keys_of(entry)
    values = numbers(VALUES, (TOKENS, g.value_dim), entry.dtype)
    queries = numbers(QUERIES, (entry.group, g.head_dim), entry.dtype)
    records = encode.encode(g, params, keys, values)
    if g.vote == model.GRADED:
        votes = vote.graded_votes(g, params, records, queries, entry.vote_group)
    else:
        counts = encode.occupancy(g, records)
        votes = vote.tier_votes(g, params, records, queries, counts, entry.rho_of)
    count = vote.candidate_count(TOKENS, entry.k, [(2**63 - 1, entry.ppm)])
    candidates = vote.select(votes, count)
    scale = F32(2.0 ** -np.ceil(np.log2(g.head_dim) / 2 + 2))
    taken = rerank.take(records, candidates)
    est, _ = rerank.estimates(g, params, taken, queries)
    norms = taken.value_norms if g.value_norm else None
    logit = functools.partial(model.logit, scale=scale)
    scores = rerank.scores(est, entry.rank, logit, norms)
    samples = rerank.sample_positions(TOKENS, g.stride, entry.tail_samples)
    sample_est, _ = rerank.sample_estimates(g, params, records, queries, samples)
    rest, rest_size = rerank.rest_lse(sample_est, samples, TOKENS, candidates, logit)
    hits = candidates[rerank.top(scores, entry.k)]
    sums = encode.value_sums(np.zeros(g.value_dim), values, records.good)
    zone = attend.Zone(
        TOKENS,
        candidates,
        est,
        rest.astype(F32),
        hits,
        sums,
        int(records.good.sum()),
        records,
        samples,
        sample_est,
    )
    part_keys = numbers(PART_KEYS, (PART, g.head_dim), entry.dtype)
    part_values = numbers(PART_VALUES, (PART, g.value_dim), entry.dtype)
    output, lse, _ = attend.attend(
        g,
        params,
        queries,
        np.concatenate([part_keys, keys[hits]]),
        np.concatenate([part_values, values[hits]]),
        logit,
        entry.tail,
        zone,
    )
    fields = {
        name: getattr(g, name)
        for name in (
            "head_dim",
            "value_dim",
            "codec",
            "vote",
            "rounds",
            "sketch_bits",
            "value_norm",
        )
    }
    fields["sketch_stride"] = g.stride
    options = {
        name: getattr(entry, name)
        for name in (
            "group",
            "dtype",
            "plain",
            "vote_group",
            "rho_of",
            "rank",
            "ppm",
            "k",
            "tail",
            "tail_samples",
        )
    }
    return {
        "name": entry.name,
        "geometry": fields,
        "options": options | {"scale": float(scale)},
        "records": {name: hexed(plane) for name, plane in records.planes().items()},
        "good_count": int(records.good.sum()),
        "value_sums": hexed(sums),
        "votes": hexed(votes),
        "candidates": candidates.tolist(),
        "estimates": hexed(est),
        "scores": shortened(scores),
        "hits": hits.tolist(),
        "sample_estimates": hexed(sample_est),
        "rest_lse": shortened(rest),
        "rest_size": rest_size,
        "output": shortened(output),
        "lse": shortened(lse),
    }


def sign_vectors():
    out = []
    for seed in (0, 42, SEED, 2**64 - 1):
        for stream in (1, 2, 3, 4):
            bits = signs.sign_vector(seed, stream, 600) < 0
            packed = np.packbits(bits, bitorder="little")
            out.append({"seed": str(seed), "stream": stream, "count": 600, "minus": hexed(packed)})
    return out


def candidate_counts():
    schedule = ((32_768, 50_000), (131_072, 20_000), (2**63 - 1, 10_000))
    out = []
    for rule in (schedule, ((2**63 - 1, 1),), ((2**63 - 1, 1_000_000),), ((2**63 - 1, 0),)):
        for k in (0, 100, 65_536):
            lengths = (0, 1, 99, 100, 101, 32_767, 32_768, 131_071, 131_072, 2**31 - 1)
            counts = [vote.candidate_count(n, k, rule) for n in lengths]
            out.append(
                {
                    "below": [str(below) for below, _ in rule],
                    "ppm": [p for _, p in rule],
                    "k": k,
                    "lengths": lengths,
                    "counts": counts,
                }
            )
    return out


def files():
    """{file name: text}"""
    groups = {}
    for entry in entries():
        groups.setdefault(entry.name.partition("/")[0], []).append(make(entry))
    content = {name: {"stages": made} for name, made in groups.items()}
    content["library"] = {"sign_vectors": sign_vectors(), "candidate_counts": candidate_counts()}
    return {
        f"{name}.json": json.dumps(text, separators=(",", ":"), allow_nan=False).replace(
            '{"name"', '\n{"name"'
        )
        + "\n"
        for name, text in content.items()
    }


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    wrong = 0
    for name, text in files().items():
        path = HERE / name
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{name} is not what make_golden.py writes")
            wrong += 1
    assert (from_bf16(bf16(numbers(KEYS, 64, "bf16"))) == numbers(KEYS, 64, "bf16")).all()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
