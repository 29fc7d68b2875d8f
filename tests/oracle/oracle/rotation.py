"""The random rotation and its inverse (docs/algorithm.md, 2.3)."""

import numpy as np

from oracle.f32 import F32, quiet


def log2_floor(size):
    return int(size).bit_length() - 1


@quiet
def fwht(x):
    """Fast Walsh-Hadamard transform over the last axis, in the dtype of x."""
    size = x.shape[-1]
    half = 1
    while half < size:
        pairs = x.reshape(x.shape[:-1] + (size // (2 * half), 2, half))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
        half *= 2
    return x


def gain(size, rounds):
    return size if size == 1 << log2_floor(size) and rounds == 1 else 1


@quiet
def rotate(x, signs_1, signs_2, rounds=1, dtype=F32):
    """rotate(x) over the last axis. float64 serves tests of the oracle itself."""
    x = np.asarray(x)
    assert x.dtype == dtype, x.dtype
    size = x.shape[-1]
    power = log2_floor(size)
    block = 1 << power
    z = signs_1.astype(dtype) * x
    if size == block:
        y = fwht(z)
        if rounds == 2:
            y = fwht(signs_2.astype(dtype) * y)
            y = y * dtype(2.0**-power)
        return y
    factor = dtype(F32(2.0 ** (-power / 2)))
    z = np.concatenate([fwht(z[..., :block]) * factor, z[..., block:]], axis=-1)
    z = signs_2.astype(dtype) * z
    rest = size - block
    return np.concatenate([z[..., :rest], fwht(z[..., rest:]) * factor], axis=-1)


def unrotate(y, signs_1, signs_2, rounds=1):
    """The inverse, transpose / g, in float64."""
    y = np.asarray(y, np.float64)
    signs_1, signs_2 = signs_1.astype(np.float64), signs_2.astype(np.float64)
    size = y.shape[-1]
    power = log2_floor(size)
    block = 1 << power
    if size == block:
        if rounds == 2:
            return signs_1 * fwht(signs_2 * fwht(y)) / size
        return signs_1 * fwht(y) / size
    factor = float(F32(2.0 ** (-power / 2)))
    rest = size - block
    z = np.concatenate([y[..., :rest], fwht(y[..., rest:]) * factor], axis=-1)
    z = signs_2 * z
    z = np.concatenate([fwht(z[..., :block]) * factor, z[..., block:]], axis=-1)
    return signs_1 * z
