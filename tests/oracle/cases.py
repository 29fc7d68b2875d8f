"""Generated cases: shapes, options and kinds of numbers for the comparison with the library."""

from dataclasses import dataclass, replace

import numpy as np
from oracle import model

DIMS = (8, 24, 40, 64, 72, 80, 96, 112, 128, 192, 264, 296, 384, 576, 16, 32, 48, 256, 512)
LENGTHS = (0, 1, 7, 8, 9, 31, 32, 33, 255, 256, 257, 600, 1000, 4097)
GROUPS = (1, 2, 3, 6, 7, 8, 128)
DTYPES = ("f32", "f16", "bf16")
KEY_KINDS = (
    "normal",
    "channels",
    "clusters",
    "duplicates",
    "integers",
    "equal",
    "zeros",
    "mixed_zeros",
    "denormal",
    "huge",
    "overflow",
    "nonfinite",
    "all_bad",
)
QUERY_KINDS = (
    "normal",
    "channels",
    "near",
    "opposite",
    "cancelling",
    "integers",
    "shared",
    "zeros",
    "denormal",
    "huge",
    "overflow",
    "nonfinite",
)
SAMPLE_KINDS = ("normal", "bad_rows", "opposite", "cancelling")
STRIDES = (1, 16, 2, 3, 17, 64, 65_536)
COUNT = 400
COST_LIMIT = 300_000  # elements of keys


@dataclass(frozen=True)
class Case:
    index: int
    geometry: model.Geometry
    group: int
    batch: int
    length: int
    key_dtype: str
    query_dtype: str
    output_dtype: str
    layout: str
    key_kind: str
    query_kind: str
    value_kind: str
    params: str  # "off", "fit", "picked", "random", "far"
    queries_as: int  # of the fit
    fit_weights: str  # "none", "few", "many", "zero"
    sample_kind: str
    encode_values: bool
    vote_group: int
    rho_of: int
    rank: int
    tail: int
    tail_samples: int
    k: int
    schedule: tuple
    scale: float
    share: float
    k_min: int
    pieces: int
    parts: int
    soft_cap: float = 0.0
    has_sinks: bool = False

    def logit(self, products):
        return model.logit(products, self.scale, self.soft_cap)

    @property
    def query_heads(self):
        return self.geometry.kv_heads * self.group

    @property
    def name(self):
        g = self.geometry
        codec = {1: "polar4", 2: "scalar4", 3: "scalar5"}[g.codec]
        vote = {1: "tier", 2: "graded"}[g.vote]
        return (
            f"{self.index}-d{g.head_dim}-n{self.length}-G{self.group}-{codec}-{vote}"
            f"-{self.key_dtype}-{self.key_kind}-{self.query_kind}"
        )

    def lengths(self):
        """Per entry of the batch."""
        other = (self.length, self.length // 2, max(self.length - 1, 0))
        return np.array([other[i % 3] for i in range(self.batch)], np.int64)


def pick(rng, choices, weights=None):
    if weights is not None:
        weights = np.array(weights, float) / sum(weights)
    return choices[int(rng.choice(len(choices), p=weights))]


def make_geometry(rng, index):
    dim = DIMS[index % len(DIMS)] if index % 3 else int(8 * rng.integers(1, 73))
    source = pick(rng, (model.OWN, model.K_PREFIX, model.NONE), (8, 2, 1))
    value_dim = {
        model.OWN: pick(rng, (dim, 8, 64, 128, int(8 * rng.integers(1, 73)))),
        model.K_PREFIX: int(8 * rng.integers(1, dim // 8 + 1)),
        model.NONE: 0,
    }[source]
    power_of_two = dim & (dim - 1) == 0
    return model.Geometry(
        kv_heads=pick(rng, (1, 2)),
        head_dim=dim,
        value_dim=value_dim,
        v_source=source,
        codec=1 + (index // 2) % 3,
        vote=pick(rng, (model.TIER, model.GRADED), (2, 3)),
        rounds=pick(rng, (1, 2)) if power_of_two else 1,
        sketch_bits=pick(rng, (0, 2, 4)) if source != model.NONE else 0,
        sketch_stride=pick(rng, STRIDES, (6, 4, 1, 1, 1, 1, 1)),
        value_norm=pick(rng, (0, 1), (3, 1)) if source != model.NONE else 0,
        seed=int(rng.integers(0, 2**63)) * 2 + int(rng.integers(0, 2)),
    )


def make_case(index):
    rng = np.random.default_rng(7919 * index + 1)
    geometry = make_geometry(rng, index)
    group = pick(rng, GROUPS, (4, 3, 2, 2, 2, 4, 1))
    batch = pick(rng, (1, 3))
    lengths = [n for n in LENGTHS if n * geometry.head_dim * batch <= COST_LIMIT]
    length = lengths[(index * 5) % len(lengths)]
    if geometry.head_dim * geometry.kv_heads * batch * length > COST_LIMIT:
        geometry = replace(geometry, kv_heads=1)
    tails = [model.DROP]
    encode_values = geometry.value_dim > 0 and (
        geometry.sketch_bits > 0 or geometry.value_norm > 0 or rng.random() < 0.8
    )
    if encode_values:
        tails.append(model.MEAN)
    if geometry.sketch_bits:
        tails += [model.SAMPLED, model.SAMPLED]
        if geometry.stride == 1:
            tails += [model.SKETCH, model.SKETCH]
    rank = pick(rng, (model.RANK_MEAN, model.RANK_GROUP))
    plain = index % 2 == 0
    scales = (1 / np.sqrt(geometry.head_dim), 1.0, 0.01, 1e6, 1e-30)
    shares = (0.0, 0.0, 1e-9, 0.3, 0.9, 1.0) if rank == model.RANK_GROUP else (0.0,)
    first_ppm = pick(rng, (0, 1, 20_000, 100_000, 250_000, 1_000_000))
    schedule = ((2**63 - 1, first_ppm),)
    if rng.random() < 0.5:
        schedule = ((max(length, 1), 900_000), (length + 2, first_ppm), (2**63 - 1, 1_000_000))
    vote_groups = (1, 2) if geometry.vote == model.GRADED else (1,)
    return Case(
        index=index,
        geometry=geometry,
        group=group,
        batch=batch,
        length=length,
        key_dtype=pick(rng, DTYPES),
        query_dtype=pick(rng, DTYPES),
        output_dtype=pick(rng, DTYPES, (2, 1, 1)),
        layout=pick(rng, ("dense", "token_major", "padded", "reversed")),
        key_kind="normal" if plain and index % 4 else KEY_KINDS[(index // 2) % len(KEY_KINDS)],
        query_kind="normal" if plain and index % 8 else pick(rng, QUERY_KINDS),
        value_kind=pick(rng, ("normal", "zeros", "nonfinite", "huge", "brink"), (6, 1, 2, 1, 1)),
        params=pick(rng, ("off", "fit", "random"), (1, 4, 2)),
        queries_as=pick(rng, (model.QUERIES_HEADS, model.QUERIES_SUM)),
        fit_weights=pick(rng, ("none", "few", "many", "zero"), (5, 4, 2, 1)),
        sample_kind=pick(rng, SAMPLE_KINDS, (4, 1, 1, 1)),
        encode_values=bool(encode_values),
        vote_group=pick(rng, vote_groups),
        rho_of=pick(rng, (1, 2)) if geometry.vote == model.TIER else 1,
        rank=rank,
        tail=pick(rng, tails),
        tail_samples=pick(rng, (1, 7, 64, 512, 5000)),
        k=pick(rng, (0, 1, 5, 33, 100, 700)),
        schedule=schedule,
        scale=float(np.float32(pick(rng, scales, (4, 2, 1, 1, 1)))),
        share=pick(rng, shares),
        k_min=pick(rng, (0, 1, 4)),
        pieces=pick(rng, (1, 2, 3)),
        parts=pick(rng, (0, 1, 2, 4)),
        soft_cap=float(np.float32(pick(rng, (0.0, 0.3, 5.0, 50.0, 1e6), (5, 1, 2, 2, 1)))),
        has_sinks=bool(rng.random() < 0.3),
    )
