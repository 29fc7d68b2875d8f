"""What the scenarios compare with: exact search and attention in double precision, and estimates
from exported records in double, written from docs/algorithm.md."""

import numpy as np
from oracle import levels
from oracle.f32 import from_bf16

POLAR4, SCALAR4, SCALAR5 = 1, 2, 3
LEVELS = {
    POLAR4: levels.P_LEVELS,
    SCALAR4: levels.N4_INTEGERS,
    SCALAR5: levels.N5_INTEGERS,
}
UNIT = 2.0**-24  # roundoff of binary32


def fixed_numbers(stream, shape):
    """A hash of stream and index: multiples of 2^-20 in [-4, 4), the same everywhere."""
    x = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(stream << 40)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x = x ^ (x >> np.uint64(31))
    steps = (x >> np.uint64(41)).astype(np.int64) - 2**22
    return (steps * 2.0**-20).astype(np.float32).reshape(shape)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def hadamard(x):
    """The unscaled transform of section 2.3 over the last axis, a power of two."""
    size, step = x.shape[-1], 1
    while step < size:
        pairs = x.reshape(*x.shape[:-1], size // (2 * step), 2, step)
        sums = pairs[..., 0, :] + pairs[..., 1, :]
        differences = pairs[..., 0, :] - pairs[..., 1, :]
        x = np.stack([sums, differences], axis=-2).reshape(x.shape)
        step *= 2
    return x


def rotate(x, signs_1, signs_2):
    """(rotated rows, gain) in double, one round (2.3)."""
    x = np.asarray(x, np.float64) * signs_1
    dim = x.shape[-1]
    size = 1 << (dim.bit_length() - 1)
    if size == dim:
        return hadamard(x), dim
    scale = size**-0.5
    x = np.concatenate([hadamard(x[..., :size]) * scale, x[..., size:]], axis=-1) * signs_2
    x = np.concatenate([x[..., : dim - size], hadamard(x[..., dim - size :]) * scale], axis=-1)
    return x, 1


def unpack(planes):
    """uint8 [n, p, S] to the numbers [n, 8 S] whose bit planes they are."""
    bits = np.unpackbits(planes, axis=-1, bitorder="little").astype(np.int64)
    return sum(bits[:, p] << p for p in range(planes.shape[1]))


def decoded(machine, geometry, records):
    """(rows [n, d] = sign * level * factor / gain in the rotated space, the two sign vectors)."""
    d, n = geometry.head_dim, len(records["signs"])
    signs = [machine.sign_vector(geometry.seed, stream, d) for stream in (1, 2)]
    plus = unpack(records["signs"][:, None, :])
    codes = unpack(records["codes"].reshape(n, -1, d // 8))
    factors = from_bf16(records["factors"]).astype(np.float64)
    if geometry.codec == POLAR4:
        factors = np.repeat(factors, 8, axis=1)
    gain = d if d & (d - 1) == 0 else 1
    rows = (2 * plus - 1) * LEVELS[geometry.codec].astype(np.float64)[codes] * factors / gain
    return rows, signs


def estimates(machine, geometry, numbers, records, queries, head=0):
    """(estimates [q, n] of section 6.1 in double, sums of |terms| of the same shape)."""
    rows, signs = decoded(machine, geometry, records)
    queries = np.asarray(queries, np.float64)
    rotated, _ = rotate(queries / numbers["balance"][head], *signs)
    center = numbers["center"][head].astype(np.float64)
    bias = queries @ center
    sizes = np.abs(rotated) @ np.abs(rows).T + (np.abs(queries) @ np.abs(center))[:, None]
    return rotated @ rows.T + bias[:, None], sizes


def exact_best(keys, query, k):
    """The k positions with the largest products, best first, ties by position."""
    scores = np.asarray(keys, np.float64) @ np.asarray(query, np.float64)
    return np.argsort(-scores, kind="stable")[:k]


def recall(found, best):
    return len(set(found) & set(best)) / len(best)


def attention(query, keys, values, scale):
    """(output, lse) of one query over keys [m, d], in double; nothing to attend to: 0, -inf."""
    if len(keys) == 0:
        return np.zeros(values.shape[-1]), -np.inf
    logits = scale * (np.asarray(keys, np.float64) @ np.asarray(query, np.float64))
    weights = np.exp(logits - logits.max())
    output = weights @ np.asarray(values, np.float64) / weights.sum()
    return output, logits.max() + np.log(weights.sum())


def check_attention(query, keys, values, scale, output, lse):
    """docs/numerics.md, section 3, Attention: fp32 output."""
    expected, expected_lse = attention(query, keys, values, scale)
    m = len(keys)
    sizes = np.abs(np.asarray(keys, np.float64)) @ np.abs(np.asarray(query, np.float64))
    eps = (len(query) + 2) * UNIT * scale * sizes.max(initial=0)
    sums = eps + (min(m, 1024) + 8) * UNIT
    if m == 0:
        assert (output == 0).all() and lse == -np.inf
        return
    assert abs(lse - expected_lse) <= sums + abs(expected_lse) * UNIT
    bound = 2 * sums * np.abs(np.asarray(values, np.float64)).max(axis=0) + UNIT * abs(expected)
    assert (abs(output - expected) <= bound).all()
