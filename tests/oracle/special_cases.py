"""Cases at edges that the generated ones seldom meet, and the list of all cases."""

from dataclasses import replace

import numpy as np
from cases import COUNT, STRIDES, make_case
from oracle import model

STRIDE_LENGTHS = (0, 1, 15, 16, 17, 31, 32, 33, 257, 4097)
CODECS = (model.POLAR4, model.SCALAR4, model.SCALAR5)
AUTO = ((16_384, 100_000), (32_768, 50_000), (131_072, 20_000), (2**63 - 1, 10_000))
PAPER = ((131_072, 100_000), (2**63 - 1, 50_000))


def with_geometry(case, **fields):
    return replace(case, geometry=replace(case.geometry, **fields))


def make_sweep(index, dim):
    """Every dimension, with few keys."""
    power_of_two = dim & (dim - 1) == 0
    case = replace(
        make_case(index), length=19, batch=1, group=2, key_kind="channels", query_kind="normal"
    )
    return with_geometry(
        case,
        head_dim=dim,
        value_dim=0 if case.geometry.v_source == model.NONE else dim,
        rounds=2 if power_of_two and index % 2 else 1,
    )


def make_long(index, length, vote, kind, dim=8, schedule=AUTO, rho_of=1):
    """Around the numbers of keys at which the tier vote and the schedules change."""
    case = replace(
        make_case(index),
        length=length,
        batch=1,
        group=2,
        key_kind=kind,
        query_kind="normal",
        value_kind="normal",
        schedule=schedule,
        rho_of=rho_of,
        vote_group=1,
        pieces=2,
    )
    return with_geometry(
        case,
        kv_heads=1,
        head_dim=dim,
        value_dim=8,
        v_source=model.OWN,
        vote=vote,
        rounds=1,
    )


LONG = (
    (4999, model.TIER, "normal"),
    (5000, model.TIER, "normal"),
    (5000, model.TIER, "nonfinite"),  # fewer than 5,000 good keys
    (9999, model.TIER, "clusters", 16),
    (10_000, model.TIER, "normal", 8, PAPER, model.RHO_CENTROIDS),
    (10_500, model.TIER, "nonfinite", 16, PAPER, model.RHO_CENTROIDS),
    (29_999, model.TIER, "duplicates"),
    (30_000, model.TIER, "channels", 16, PAPER),
    (32_767, model.GRADED, "duplicates"),
    (32_768, model.GRADED, "integers"),
    (131_071, model.GRADED, "normal"),
    (131_072, model.GRADED, "integers"),
)


def make_tied(index, dim, group):
    """Tier points that hang on the order of fold, and sums of heads on theirs."""
    kind = "integers" if index % 2 else "cancelling"
    case = replace(
        make_case(index),
        length=1000,
        batch=1,
        group=group,
        key_kind="normal",
        query_kind=kind,
        query_dtype="f32",
        params="off",
        vote_group=1,
    )
    return with_geometry(
        case, kv_heads=1, head_dim=dim, value_dim=8, v_source=model.OWN, vote=model.TIER, rounds=1
    )


def make_far(index, dim):
    """A centre so far out that <q, mu> is infinite or NaN; the estimates must not be."""
    case = replace(
        make_case(index),
        length=33,
        batch=1,
        key_kind="far",
        query_kind="far",
        value_kind="normal",
        key_dtype="f32",
        query_dtype="f32",
        params="far",
    )
    return with_geometry(case, kv_heads=1, head_dim=dim, value_dim=8, v_source=model.OWN, rounds=1)


def make_strided(index, stride, length):
    """Sketches of some positions only: lengths around the stride, appended in pieces."""
    case = make_case(index)
    bits = 4 if index % 3 else 2
    case = replace(
        case,
        length=length,
        batch=1 if length > 1000 else 3,
        group=2,
        encode_values=True,
        tail=model.SKETCH if stride == 1 and index % 2 else model.SAMPLED,
        tail_samples=(512, 16, 5000, 17)[index % 4],
        k=(5, 0, 33)[index % 3],
        scale=float(np.float32(1 / 4)),
        pieces=3,
    )
    return with_geometry(
        case,
        kv_heads=2,
        head_dim=16,
        value_dim=(16, 24)[index % 2],
        v_source=model.OWN,
        rounds=1,
        sketch_bits=bits,
        sketch_stride=stride,
    )


def make_sampled(index, codec, stride, samples):
    """The default tail with ordinary numbers, where nothing hides in a tolerance."""
    case = replace(
        make_case(index),
        length=2049,
        batch=1,
        group=3,
        key_kind="channels",
        query_kind="normal",
        value_kind="normal",
        params="picked",
        encode_values=True,
        tail=model.SAMPLED,
        tail_samples=samples,
        k=(100, 0)[index % 2],
        schedule=AUTO,
        scale=float(np.float32(1 / np.sqrt(64))),
        share=0.0,
        output_dtype="f32",
    )
    return with_geometry(
        case,
        kv_heads=1,
        head_dim=64,
        value_dim=64,
        v_source=model.OWN,
        codec=codec,
        rounds=1,
        sketch_bits=4 if stride > 1 else 2,
        sketch_stride=stride,
    )


CASES = [make_case(index) for index in range(COUNT)]
CASES += [make_sweep(COUNT + i, 8 * i + 8) for i in range(72)]
CASES += [make_sweep(COUNT + 73 + 2 * i, 8 << i) for i in range(7)]
CASES += [make_tied(COUNT + 88 + i, (24, 40, 48, 72)[i % 4], (1, 3, 7)[i % 3]) for i in range(12)]
CASES += [make_far(COUNT + 120 + i, (8, 16, 24)[i % 3]) for i in range(12)]
CASES += [make_long(COUNT + 100 + i, *options) for i, options in enumerate(LONG)]
CASES += [
    make_strided(COUNT + 300 + i, stride, length)
    for i, (stride, length) in enumerate((s, n) for s in STRIDES for n in STRIDE_LENGTHS)
]
CASES += [
    make_sampled(COUNT + 400 + i, codec, stride, samples)
    for i, (codec, stride, samples) in enumerate(
        (c, p, t) for c in CODECS for p in (1, 16) for t in (1, 33, 512, 5000)
    )
]
