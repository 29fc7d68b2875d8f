"""Fetch: counts and candidates, bytes of every dtype, widths that fill no vector, far rows."""

import numpy as np
import pytest
import structs
from binding import BF16, F16, F32, pointer, tensor
from capi import INVALID, OUT_OF_RANGE, Codec, Config, Index, refused
from decoding import Plan, Step, patterned
from oracle import encode, model
from reference import check_attention, normal

U8 = 5


def fetch(machine, keys, positions, dtype):
    """Rows at `positions` of keys [n, d] by the stage, into memory that held something else."""
    sequences, lengths = np.zeros(1, np.int32), np.array([len(keys)], np.int64)
    rows = patterned((1, 1, len(positions), keys.shape[1]), keys.dtype)
    positions = np.asarray(positions, np.int32)
    machine.stage(
        "fetch",
        kv_heads=1,
        batch=structs.Batch(
            batch=1,
            sequences=pointer(sequences),
            lengths=pointer(lengths),
            max_length=len(keys),
        ),
        source_keys=tensor(keys[None, None], dtype),
        positions=positions,
        k=len(positions),
        keys=tensor(rows, dtype),
    )
    return rows[0, 0]


def test_positions_outside_are_refused_by_slot_and_value(machine):
    keys = normal(1, 1000, 32)
    for wrong in (-2, 1000, 1005, 2**31 - 1, -(2**31)):
        with refused(OUT_OF_RANGE, "slot 2", f"={wrong}", "0..999"):
            fetch(machine, keys, [5, -1, wrong, 7], F32)
    rows = fetch(machine, keys, [5, -1, 999], F32)
    assert rows.tobytes() == np.stack([keys[5], np.zeros_like(keys[0]), keys[999]]).tobytes()


@pytest.mark.parametrize("n", [1500, 5000])
def test_rows_that_are_not_counted_take_no_part(machine, n):
    """k = 2,048 with a share of 25 %: the candidates are raised to min(k, n)."""
    dim, k = 64, 2048
    keys, values, query = normal(2, 1, n, dim), normal(3, 1, n, dim), normal(4, 1, 2, dim)
    config = Config(machine, head_dim=dim, tail="drop", candidates="0.25", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, n)
    index.append(0, keys, values)
    step = Step(Plan(machine, index, config, 1, 2)).retrieve(query)
    count = min(k, n)
    assert step.counts[0, 0] == step.candidate_counts[0, 0] == count
    step.fetch(keys[None], values[None])
    assert step.row_keys[0, 0, :count].tobytes() == keys[0, step.found()].tobytes()
    step.row_keys[0, 0, count:], step.row_values[0, 0, count:] = np.nan, np.nan
    step.attend(query)
    assert np.isfinite(step.output).all()
    for head in (0, 1):
        check_attention(
            query[0, head],
            keys[0, step.found()],
            values[0, step.found()],
            dim**-0.5,
            step.output[0, head],
            step.lse[0, head],
        )


@pytest.mark.parametrize("dim", [128, 72])
@pytest.mark.parametrize("dtype, bits", [(F32, np.uint32), (F16, np.uint16), (BF16, np.uint16)])
def test_ten_thousand_rows_keep_every_bit(machine, dim, dtype, bits):
    n = 10_000
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 2 ** (8 * np.dtype(bits).itemsize), (n, dim), dtype=bits)
    special = {F32: (0x80000000, 0x7FA00001, 0xFFC12345, 1, 0x807FFFFF),
               F16: (0x8000, 0x7D01, 0xFE23, 1, 0x83FF),
               BF16: (0x8000, 0x7F81, 0xFFC3, 1, 0x807F)}[dtype]  # fmt: skip
    raw[::7, :5] = special  # -0, NaN payloads, subnormals
    keys = raw.view({F32: np.float32, F16: np.float16, BF16: np.uint16}[dtype])
    order = rng.permutation(n)
    assert fetch(machine, keys, order, dtype).tobytes() == raw[order].tobytes()


@pytest.mark.parametrize("dim", [72, 264])
def test_rows_and_codes_of_no_whole_vector(machine, dim):
    """Signs and codes of 36 and 132 bytes a key."""
    n = 100
    keys, values = normal(6, 1, n, dim), normal(7, 1, n, dim)
    config = Config(machine, head_dim=dim, tail="drop", k=n)
    index = Index(machine, Codec.plain(machine, config), 1, n)
    index.append(0, keys, values)
    geometry = model.Geometry(1, dim, dim)
    zeros = np.zeros(dim, np.float32)
    expected = encode.encode(geometry, model.make_params(geometry, zeros, zeros + 1), keys[0])
    records = index.records()
    assert records["signs"].shape[1] + records["codes"].shape[1] == dim // 2
    for name, plane in expected.planes().items():
        assert records[name].tobytes() == plane.tobytes()
        ones = [index.records(0, 0, i, 1)[name].tobytes() for i in range(n)]
        assert b"".join(ones) == plane.tobytes()
    order = np.random.default_rng(8).permutation(n)
    rows = np.concatenate([records["signs"], records["codes"]], axis=1)  # 36 and 132 bytes each
    assert fetch(machine, rows, order, U8).tobytes() == rows[order].tobytes()
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(normal(8, 1, 1, dim))
    step.fetch(keys[None], values[None])
    assert sorted(step.found()) == list(range(n))
    assert step.row_keys[0, 0].tobytes() == keys[0, step.found()].tobytes()
    assert step.row_values[0, 0].tobytes() == values[0, step.found()].tobytes()


@pytest.mark.parametrize("n", [2**25 - 1, 2**25, 2**25 + 1])
def test_rows_on_both_sides_of_two_to_the_31_bytes(machine, n):
    """Rows of 64 bytes; the pages in between are never touched."""
    keys = np.zeros((n, 32), np.float16)
    ends = [0, 1, 2**24, n - 3, n - 2, n - 1]
    for number, position in enumerate(ends):
        keys[position] = normal(9 + number, 32).astype(np.float16)
    rows = fetch(machine, keys, ends[::-1], F16)
    assert rows.tobytes() == keys[ends[::-1]].tobytes()
    with refused(OUT_OF_RANGE, f"={n}"):
        fetch(machine, keys, [n], F16)


def test_keys_and_values_of_different_widths(machine):
    n, k = 300, 50
    keys, values, query = normal(10, 1, n, 192), normal(11, 1, n, 128), normal(12, 1, 1, 192)
    config = Config(machine, head_dim=192, value_dim=128, tail="drop", k=k)
    index = Index(machine, Codec.plain(machine, config), 1, n)
    index.append(0, keys, values)
    step = Step(Plan(machine, index, config, 1, 1)).retrieve(query)
    step.fetch(keys[None], values[None])
    assert step.row_keys[0, 0].tobytes() == keys[0, step.found()].tobytes()
    assert step.row_values[0, 0].tobytes() == values[0, step.found()].tobytes()
    with refused(INVALID, "values", "192", "128"):
        step.fetch(keys[None], keys[None])
