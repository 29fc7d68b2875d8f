"""fit = picked through the C API against the oracle; docs/algorithm.md, 2.2.

The first pass is bounded. Given its parameters the picks are exact, so the oracle takes those of
the library (a codec with fit = keys) and makes everything behind them itself."""

from dataclasses import dataclass, replace

import compare
import numpy as np
import pytest
from binding import tensor
from cases import DTYPES, pick
from numbers_of import (
    LIBRARY_TYPES,
    key_numbers,
    lay_out,
    sample_numbers,
    to_dtype,
    to_f32,
    value_numbers,
)
from oracle import fit, model

EPS = 2.0**-53
DIMS = (8, 16, 24, 40, 64, 72, 128)
LENGTHS = (0, 1, 9, 10, 11, 31, 257, 600, 1500)
KEY_KINDS = ("normal", "channels", "clusters", "duplicates", "integers", "equal", "zeros")
KEY_KINDS += ("mixed_zeros", "denormal", "huge", "overflow", "nonfinite", "all_bad")
SAMPLE_KINDS = ("normal", "bad_rows", "opposite", "near", "zeros", "none", "empty", "cancelling")
COUNT = 200


@dataclass(frozen=True)
class FitCase:
    index: int
    geometry: model.Geometry
    group: int
    length: int
    dtype: str
    layout: str
    key_kind: str
    sample_kind: str
    value_kind: str
    center: int
    balance: int

    @property
    def name(self):
        return f"{self.index}-d{self.geometry.head_dim}-n{self.length}-{self.key_kind}-" + (
            f"{self.sample_kind}-center{self.center}-balance{self.balance}"
        )


def make_case(index):
    rng = np.random.default_rng(31 * index + 5)
    plain = index % 2 == 0
    dim = pick(rng, DIMS)
    has_sketch = rng.random() < 0.5
    geometry = model.Geometry(
        kv_heads=pick(rng, (1, 2)),
        head_dim=dim,
        value_dim=pick(rng, (8, 24, 64)),
        codec=pick(rng, (model.POLAR4, model.SCALAR4, model.SCALAR5)),
        vote=pick(rng, (model.TIER, model.GRADED)),
        rounds=pick(rng, (1, 2)) if dim & (dim - 1) == 0 else 1,
        sketch_bits=4 if has_sketch else 0,
        sketch_stride=16,
        seed=int(rng.integers(0, 2**62)),
    )
    center, balance = pick(rng, ((1, 1), (1, 0), (0, 1), (0, 0)), (5, 1, 2, 1))
    key_kind = pick(rng, ("normal", "channels", "clusters") if plain else KEY_KINDS)
    sample_kinds = ("normal", "near") if plain else SAMPLE_KINDS
    return FitCase(
        index,
        geometry,
        group=pick(rng, (1, 2, 3, 7)),
        length=LENGTHS[index % len(LENGTHS)],
        dtype=pick(rng, DTYPES),
        layout=pick(rng, ("dense", "token_major", "padded", "reversed")),
        key_kind=key_kind,
        sample_kind=pick(rng, sample_kinds),
        value_kind=pick(rng, ("normal", "zeros", "nonfinite", "absent"), (4, 1, 2, 2)),
        center=center,
        balance=balance,
    )


def make_sample(rng, kind, shape, keys):
    """float64 [hq, m, d]."""
    sample = 2 * rng.standard_normal(shape)
    if kind == "near" and keys.shape[1]:
        chosen = keys[:, rng.integers(0, keys.shape[1], shape[1])].astype(np.float64)
        chosen = np.clip(np.where(np.isfinite(chosen), chosen, 0), -100, 100)
        sample = 0.3 * sample + np.repeat(chosen, shape[0] // len(keys), axis=0)
    elif kind == "twin" and keys.shape[1]:
        twin = keys[:, keys.shape[1] // 3, None].astype(np.float64)
        sample = 0.01 * sample + np.repeat(twin, shape[0] // len(keys), axis=0)
    elif kind == "zeros":
        sample = 0 * sample
    elif kind == "empty":
        sample = sample[:, :0]
    return sample_numbers(rng, kind, sample)


class Fitted:
    """Numbers of one case and the codecs that the library makes of them."""

    def __init__(self, case, library, numbers=None):
        self.case, self.library = case, library
        numbers = numbers or self.make_numbers()
        self.keys, self.sample, self.values = (
            None if raw is None else to_f32(raw) for raw in numbers
        )
        self.tensors = [
            None if raw is None else tensor(lay_out(raw, case.layout), LIBRARY_TYPES[case.dtype])
            for raw in numbers
        ]

    def make_numbers(self):
        case, g = self.case, self.case.geometry
        rng = np.random.default_rng(case.index + 77)
        keys = key_numbers(rng, case.key_kind, (g.kv_heads, case.length, g.head_dim), case.dtype)
        if case.key_kind == "twins" and case.length:  # those that are picked are all the same
            keys[:, case.length // 4 : case.length // 2] = 5 * keys[:, case.length // 3, None]
        keys = to_dtype(keys, case.dtype)
        sample = values = None
        if case.sample_kind != "none":
            shape = (g.kv_heads * case.group, pick(rng, (6, 33)), g.head_dim)
            sample = make_sample(rng, case.sample_kind, shape, to_f32(keys))
            sample = to_dtype(sample, case.dtype)
        if case.value_kind != "absent" or g.sketch_bits:
            kind = "normal" if case.value_kind == "absent" else case.value_kind
            values = value_numbers(rng, kind, (g.kv_heads, case.length, g.value_dim), case.dtype)
            values = to_dtype(values, case.dtype)
        return keys, sample, values

    def codec(self, fit_of):
        case, g = self.case, self.case.geometry
        options = {
            "head_dim": g.head_dim,
            "value_dim": g.value_dim,
            "codec": {1: "polar4", 2: "scalar4", 3: "scalar5"}[g.codec],
            "vote": {1: "tier", 2: "graded"}[g.vote],
            "rounds": g.rounds,
            "seed": g.seed,
            "tail": "sampled" if g.sketch_bits else "drop",
            "center": ("off", "on")[case.center],
            "balance": ("off", "on")[case.balance],
            "fit": fit_of,
        }
        return self.library.codec_fit(options, *self.tensors)

    def of_head(self, head):
        """(keys [n, d], sample [G, m, d] or None, values [n, dv] or None)."""
        group = slice(head * self.case.group, (head + 1) * self.case.group)
        sample = None if self.sample is None else self.sample[group]
        return self.keys[head], sample, None if self.values is None else self.values[head]

    def first_sums(self, head):
        keys, sample, values = self.of_head(head)
        rows = None if sample is None else fit.query_rows(sample, as_sum=False)
        return fit.fit_sums(fit.pivot(keys, values), keys, rows, values)

    def second_sums(self, head, first_pass, first):
        """Sums behind the library's parameters, given its first pass; `first` where that stands."""
        keys, sample, values = self.of_head(head)
        if sample is None or not (self.case.center or self.case.balance):
            return first
        center, balance = first_pass["center"][head], first_pass["balance"][head]
        return fit.picked_sums(first, self.case.geometry, center, balance, keys, sample, values)[0]

    def check(self, head, got, sums):
        """Bounded: sums of m terms in float64, then one rounding to fp32. Returns whether the
        balance could be compared: not where the noise of the sums decides if there is a spread."""
        center_on, balance_on = self.case.center, self.case.balance
        mu, s, value_center = fit.fit_params(sums, center_on, balance_on)
        weight = max(sums.weight, 1)
        terms = sums.count + sums.query_count + 8
        pivot = np.abs(sums.pivot.astype(np.float64))
        noise = 2 * terms * EPS * (sums.sums_size / weight + pivot)
        tolerance = 2.0**-23 * np.abs(mu) + noise + 2.0**-149
        compare.assert_close(got["center"][head], mu, tolerance, f"center of head {head}")
        if got["value_center"] is not None:
            size = sums.value_size / max(sums.count, 1)
            tolerance = 2.0**-23 * np.abs(value_center) + 2 * terms * EPS * size + 2.0**-149
            compare.assert_close(got["value_center"][head], value_center, tolerance, "mu_v")
        balance = got["balance"][head]
        assert np.isfinite(balance).all() and (balance >= 1 / 16).all() and (balance <= 16).all()
        spread, size = fit.key_spread(sums, center_on)
        noise = 4 * terms * EPS * size
        cut = fit.SMALLEST_SPREAD * fit.spread_terms(sums, center_on)
        certain = (np.abs(spread - cut) > noise) | (size == 0)
        if balance_on and sums.query_count and not certain.all():
            return False
        counts = spread > cut
        lost = np.where(counts, noise / np.where(counts, spread, 1), 0).max(initial=0)
        tolerance = (2.0**-23 + lost) * s
        compare.assert_close(balance, s, tolerance, f"balance of head {head}")
        return True


def make_twins(index):
    """All keys that are picked are equal, and not the first: their spread is noise or 0."""
    fields = {"key_kind": "twins", "sample_kind": "twin", "center": 1, "balance": 1}
    return replace(make_case(index), length=(31, 257, 600)[index % 3], **fields)


CASES = [make_case(index) for index in range(COUNT)]
CASES += [make_twins(COUNT + i) for i in range(6)]
COMPARED = []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fit_of_codec(case, library):
    fitted = Fitted(case, library)
    keys_fit, picked_fit = fitted.codec("keys"), fitted.codec("picked")
    for head in range(case.geometry.kv_heads):
        first = fitted.first_sums(head)
        fitted.check(head, keys_fit, first)
        sums = fitted.second_sums(head, keys_fit, first)
        certain = fitted.check(head, picked_fit, sums)
        if sums is not first:
            COMPARED.append(certain)
        else:
            for name, numbers in keys_fit.items():
                if numbers is not None:
                    compare.assert_bits(picked_fit[name][head], numbers[head], f"first {name}")


def test_most_second_passes_were_compared():
    if len(COMPARED) < 100:
        pytest.skip("the cases did not all run")
    assert np.mean(COMPARED) > 0.8
