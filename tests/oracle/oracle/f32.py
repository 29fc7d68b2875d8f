"""Exact float32 arithmetic: conversion of dtypes, bfloat16, fold (docs/algorithm.md, section 0)."""

import functools
from fractions import Fraction

import numpy as np

F32 = np.float32
BF16_NAN = 0x7FC0


def quiet(function):
    """Lets overflow, division by zero and NaN pass without a warning: IEEE results are wanted."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return wrapped


def fp32(value):
    """The real number `value` rounded once to float32."""
    return F32(value)


def inverse_sqrt(count):
    """fp32(1/sqrt(count)), of the real number: picks the neighbour by exact comparison."""
    guess = F32(1.0 / np.sqrt(float(count)))
    below = np.nextafter(guess, F32(0))
    above = np.nextafter(guess, F32(1))
    for low, high in ((below, guess), (guess, above)):
        middle = (Fraction(float(low)) + Fraction(float(high))) / 2
        # 1/sqrt(count) > middle  <=>  1 > middle^2 * count; the guess must be on its own side.
        is_above = middle * middle * count < 1
        if high is guess and not is_above:
            return low
        if low is guess and is_above:
            return high
    return guess


def bf16(x):
    """float32 to bfloat16 bits, nearest even; NaN becomes 0x7fc0."""
    x = np.asarray(x, F32)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), BF16_NAN, rounded).astype(np.uint16)


def from_bf16(bits):
    """bfloat16 bits to float32, exact."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(F32)


@quiet
def fold(x):
    """The sum of every exact rule, over the last axis."""
    x = np.asarray(x)
    assert x.dtype == F32, x.dtype
    count = x.shape[-1]
    size = 1
    while size < count:
        size *= 2
    if size != count:
        padding = np.zeros(x.shape[:-1] + (size - count,), F32)
        x = np.concatenate([x, padding], axis=-1)
    half = size // 2
    while half:
        x = x[..., :half] + x[..., half : 2 * half]
        half //= 2
    return x[..., 0]


@quiet
def sum_in_order(x):
    """((x_0 + x_1) + x_2) + .. over axis 0, float32."""
    assert x.dtype == F32
    total = x[0]
    for row in x[1:]:
        total = total + row
    return total
