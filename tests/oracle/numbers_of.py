"""Arrays of every kind for the cases, and their views in library dtypes."""

import numpy as np
from oracle.f32 import bf16, from_bf16

LIBRARY_TYPES = {"f32": 1, "f16": 3, "bf16": 4}
FAR = 1e21
LARGEST = {"f32": 3.0e38, "f16": 6.0e4, "bf16": 3.0e38}


def to_dtype(values, dtype):
    """Raw array of a library dtype, row-major; bf16 as uint16."""
    values = np.ascontiguousarray(values)
    with np.errstate(all="ignore"):
        if dtype == "f32":
            return values.astype(np.float32)
        if dtype == "f16":
            return values.astype(np.float16)
        return bf16(values.astype(np.float32))


def to_f32(raw):
    return from_bf16(raw) if raw.dtype == np.uint16 else raw.astype(np.float32)


def gap_value(raw):
    return 0x7FC0 if raw.dtype == np.uint16 else np.nan


def lay_out(raw, layout):
    """A view equal to raw [.., t, d] in memory of another shape, NaN in the gaps."""
    if layout == "dense" or raw.ndim < 3 or raw.size == 0:
        return raw.copy()
    *outer, tokens, dim = raw.shape
    gap = gap_value(raw)
    if layout == "token_major":  # [b, t, h, d + 8]
        order = (*range(raw.ndim - 3), raw.ndim - 2, raw.ndim - 3, raw.ndim - 1)
        base = np.full([raw.shape[axis] for axis in order[:-1]] + [dim + 8], gap, raw.dtype)
        view = base[..., :dim].transpose(order)
    elif layout == "padded":
        base = np.full([*outer, tokens + 3, dim + 5], gap, raw.dtype)
        view = base[..., 2 : tokens + 2, 3 : dim + 3]
    else:  # tokens in reverse order in memory
        base = np.full([*outer, tokens, dim + 1], gap, raw.dtype)
        view = base[..., ::-1, :dim]
    view[...] = raw
    return view


def far_center(dim):
    return FAR * np.where(np.arange(dim) % 2, 1.0, -1.0)


def key_numbers(rng, kind, shape, dtype):
    """float64 keys [.., t, d] of one kind."""
    x = rng.standard_normal(shape)
    tokens, dim = shape[-2:]
    largest = LARGEST[dtype]
    if kind == "channels":
        x = x * np.exp(1.5 * rng.standard_normal(dim)) + 3 * rng.standard_normal(dim)
    elif kind == "clusters":
        centres = 2 * rng.standard_normal((5, dim))
        x = 0.3 * x + centres[rng.integers(0, 5, shape[:-1])]
    elif kind == "far":
        x = far_center(dim) + 3e17 * x
    elif kind == "duplicates" and tokens:
        x = x[..., rng.integers(0, max(tokens // 6, 1), tokens), :]
    elif kind == "integers":
        x = rng.integers(-1, 2, shape).astype(np.float64)
    elif kind == "equal" and tokens:
        x = np.broadcast_to(x[..., :1, :], shape)
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    elif kind == "mixed_zeros":
        choice = rng.integers(0, 5, (*shape[:-1], 1))
        tiny = x * 2e-23  # squares near the smallest denormal
        x = np.select([choice == 0, choice == 1, choice == 2, choice == 3], [x, 0 * x, tiny, -0.0])
    elif kind == "denormal":
        x = x * 10.0 ** rng.uniform(-46, -36, (*shape[:-1], 1))
        if dtype == "f16":
            x = x * 1e33
    elif kind == "huge":
        x = x * largest**0.4
    elif kind == "overflow":
        x = x * 10.0 ** rng.uniform(10, 38.3, (*shape[:-1], 1))
        x = np.clip(x, -largest, largest)
    elif kind in ("nonfinite", "all_bad"):
        rate = 1.0 if kind == "all_bad" else 0.1
        rows = rng.random(shape[:-1]) < rate
        column = rng.integers(0, dim, shape[:-1])
        bad = rng.choice([np.nan, np.inf, -np.inf], shape[:-1])
        index = np.nonzero(rows)
        x[(*index, column[index])] = bad[index]
    return x


def query_numbers(rng, kind, shape, keys, dtype):
    """float64 queries [b, hq, d]; keys [b, h, t, d] serve the kind "near"."""
    x = rng.standard_normal(shape)
    batch, heads, dim = shape
    if kind == "channels":
        x = x * np.exp(1.5 * rng.standard_normal(dim))
    elif kind == "near" and keys.shape[2]:
        group = heads // keys.shape[1]
        chosen = np.repeat(keys[:, :, keys.shape[2] // 2], group, axis=1).astype(np.float64)
        x = 0.1 * x + np.clip(np.where(np.isfinite(chosen), chosen, 0.0), -100, 100)
    elif kind == "opposite":
        x[:, 1::2] = -x[:, : 2 * (heads // 2) : 2]
    elif kind == "far":
        x = 3e17 * x
        x[:, 1::3] = np.abs(x[:, 1::3]) * np.sign(far_center(dim))  # <q, mu> = +inf
        x[:, 2::3] = -np.abs(x[:, 2::3]) * np.sign(far_center(dim))  # -inf
    elif kind == "cancelling":  # the order of the sum over heads decides
        x[:, ::3] *= 2.0**11 if dtype == "f16" else 2.0**24
        last = x[:, 2::3].shape[1]
        x[:, 2::3] = -x[:, ::3][:, :last]
    elif kind == "integers":  # sums that tie but for their rounding
        x = rng.integers(-3, 4, shape).astype(np.float64)
    elif kind == "shared":
        x = np.broadcast_to(x[:, :1], shape)
    elif kind == "zeros":
        x = np.zeros(shape)
        x[:, ::2] = -0.0
    elif kind == "denormal":
        low, high = (-8, -5) if dtype == "f16" else (-45, -33)
        x = x * 10.0 ** rng.uniform(low, high, (batch, heads, 1))
    elif kind == "huge":
        x = x * LARGEST[dtype] ** 0.35
    elif kind == "overflow":
        x = x * 10.0 ** rng.uniform(10, 39, (batch, heads, 1))
        x = np.clip(x, -LARGEST[dtype], LARGEST[dtype])
    elif kind == "nonfinite":
        x[rng.integers(0, batch), rng.integers(0, heads), rng.integers(0, dim)] = rng.choice(
            [np.nan, np.inf, -np.inf]
        )
    return x


def sample_numbers(rng, kind, sample):
    """The fit's sample [hq, m, d] with rows that do not count, alone or as a sum of heads."""
    sample = sample.copy()
    heads, positions, dim = sample.shape
    if kind == "bad_rows":  # one head at one position, all heads at another
        sample[rng.integers(0, heads), 1, rng.integers(0, dim)] = rng.choice([np.nan, np.inf])
        sample[:, 3] = 1e20
        sample[rng.integers(0, heads), 4] = 3e38  # finite, its square is not
    elif kind == "opposite":  # heads that cancel in the sum
        sample[1::2] = -sample[: 2 * (heads // 2) : 2]
    elif kind == "cancelling":  # in groups of three: heads too large to count, their sum is not
        sample[0::3, 1::2], sample[1::3, 1::2] = 1e20, -1e20
    return sample


def value_numbers(rng, kind, shape, dtype):
    x = rng.standard_normal(shape) + 0.5
    if kind == "zeros":
        x = np.where(rng.random((*shape[:-1], 1)) < 0.5, 0.0, x)
    elif kind == "huge":
        x = x * LARGEST[dtype] ** 0.4
    elif kind == "brink":  # squares near the largest float32, before and after the rotation
        x = np.clip(
            x * 10.0 ** rng.uniform(16, 19, (*shape[:-1], 1)), -LARGEST[dtype], LARGEST[dtype]
        )
    elif kind == "nonfinite":
        rows = np.nonzero(rng.random(shape[:-1]) < 0.1)
        column = rng.integers(0, max(shape[-1], 1), shape[:-1])
        large = LARGEST[dtype]
        x[(*rows, column[rows])] = rng.choice([np.nan, np.inf, large, -large], len(rows[0]))
    return x
