"""Encode (docs/algorithm.md, section 3): the records of the keys of one KV head."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle import levels, model
from oracle.f32 import BF16_NAN, F32, bf16, fold, inverse_sqrt, quiet
from oracle.rotation import rotate


@dataclass
class Records:
    """Canonical planes, token-major; planes that the geometry lacks are None."""

    signs: np.ndarray  # uint8 [n, d/8]
    vote_factors: Optional[np.ndarray]  # uint16 [n]
    codes: np.ndarray  # uint8 [n, planes, d/8]
    factors: np.ndarray  # uint16 [n, d/8 or 1]
    value_signs: Optional[np.ndarray]
    value_codes: Optional[np.ndarray]
    value_factors: Optional[np.ndarray]
    value_norms: Optional[np.ndarray]
    good: np.ndarray  # bool [n]

    def planes(self):
        return {k: v for k, v in vars(self).items() if k != "good" and v is not None}


def pack_bits(bits):
    """[.., 8 S] booleans to [.., S] bytes, coordinate 8b+j in bit j of byte b."""
    return np.packbits(bits, axis=-1, bitorder="little")


def unpack_bits(packed):
    return np.unpackbits(packed, axis=-1, bitorder="little")


def pack_codes(codes, planes):
    return np.stack([pack_bits((codes >> p) & 1) for p in range(planes)], axis=-2)


def unpack_codes(planes):
    """uint8 [n, planes, S] to int64 [n, 8 S]."""
    bits = unpack_bits(planes).astype(np.int64)
    return sum(bits[:, p] << p for p in range(planes.shape[1]))


def count_thresholds(thresholds, unit, magnitude):
    """#{ i : T_i * u < |y_j| }; unit broadcasts against magnitude."""
    codes = np.zeros(magnitude.shape, np.int64)
    for threshold in thresholds:
        codes += threshold * unit < magnitude
    return codes


def key_tables(codec):
    """(thresholds, levels) of a codec."""
    if codec == model.POLAR4:
        return levels.P_THRESHOLDS, levels.P_LEVELS
    if codec == model.SCALAR4:
        return levels.N4_THRESHOLDS, levels.N4_INTEGERS
    return levels.N5_THRESHOLDS, levels.N5_INTEGERS


def value_tables(bits):
    if bits == 2:
        return levels.N2_THRESHOLDS, levels.N2_LEVELS
    return levels.N4_THRESHOLDS, levels.N4_INTEGERS


def scalar_codes(magnitude, n2, thresholds, table):
    """Codes and the float32 quotient behind the factor, for vectors [n, D] with squares n2."""
    unit = np.sqrt(n2) * inverse_sqrt(magnitude.shape[-1])
    codes = count_thresholds(thresholds, unit[:, None], magnitude)
    codes[n2 == 0] = 0
    quotient = n2 / fold(table[codes] * magnitude)
    return codes, np.where(n2 == 0, F32(0), quotient)


def polar_codes(magnitude, n2, thresholds, table):
    blocks = magnitude.reshape(len(magnitude), magnitude.shape[1] // 8, 8)
    rho = np.sqrt(fold(blocks * blocks))
    codes = count_thresholds(thresholds, rho[..., None], blocks)
    zero = (rho == 0) | (n2 == 0)[:, None]
    codes[zero] = 0
    alpha = fold(table[codes] * blocks) / rho
    quotient = np.where(zero, F32(0), rho / alpha)
    return codes.reshape(magnitude.shape), quotient


@quiet
def rotated_keys(params, keys, rounds):
    x = params.balance * (keys - params.center)
    return rotate(x, params.signs_1, params.signs_2, rounds)


@quiet
def encode(geometry, params, keys, values=None, start=0):
    """keys [n, d], values [n, dv] or None; float32. Key i goes to position start + i.

    Value planes have an entry per position that is a multiple of the sketch's stride (3.5).
    """
    y = rotated_keys(params, keys, geometry.rounds)
    magnitude = np.abs(y)
    n2 = fold(y * y)
    good = np.isfinite(n2)
    value_planes = [None, None, None]
    if values is not None:
        value_n2 = fold(values * values)
        good &= np.isfinite(value_n2)
    if geometry.sketch_bits:
        has_sketch = (start + np.arange(len(keys))) % geometry.stride == 0
        centred = values[has_sketch] - params.value_center
        z = rotate(centred, params.value_signs_1, params.value_signs_2)
        z_n2 = fold(z * z)
        good[has_sketch] &= np.isfinite(z_n2)
        sketched = good[has_sketch]
        codes, quotient = scalar_codes(np.abs(z), z_n2, *value_tables(geometry.sketch_bits))
        codes[~sketched] = 0
        value_planes = [
            pack_bits((z >= 0) & sketched[:, None]),
            pack_codes(codes, geometry.sketch_bits - 1),
            isolate(bf16(quotient), sketched),
        ]
    norms = None
    if geometry.value_norm:
        norms = isolate(bf16(np.sqrt(value_n2)), good)

    encoder = polar_codes if geometry.codec == model.POLAR4 else scalar_codes
    codes, quotient = encoder(magnitude, n2, *key_tables(geometry.codec))
    codes[~good] = 0
    vote_factors = None
    if geometry.vote == model.GRADED:
        f = np.where(n2 == 0, F32(0), n2 / fold(magnitude))
        vote_factors = isolate(bf16(f), good)
    return Records(
        pack_bits((y >= 0) & good[:, None]),
        vote_factors,
        pack_codes(codes, geometry.code_planes),
        isolate(bf16(quotient.reshape(len(keys), geometry.factors)), good),
        *value_planes,
        norms,
        good,
    )


def isolate(factors, good):
    """Every factor and norm of a bad key is the bf16 NaN (3.6)."""
    factors[~good] = BF16_NAN
    return factors


def occupancy(geometry, records):
    """Good keys per subspace and pattern, int32 [S, 256] (3.7)."""
    patterns = records.signs[records.good]
    counts = [np.bincount(patterns[:, b], minlength=256) for b in range(geometry.subspaces)]
    return np.array(counts, np.int32)


@quiet
def value_sums(start, values, good):
    """The running value sum: float64, added to `start` in ascending position."""
    rows = np.concatenate([start[None], values[good].astype(np.float64)])
    return np.add.accumulate(rows, axis=0)[-1]
