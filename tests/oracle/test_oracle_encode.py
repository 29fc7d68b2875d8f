"""Fit and encode of the library against the oracle; docs/algorithm.md, sections 2 and 3."""

import compare
import numpy as np
import structs
from binding import pointer, tensor
from oracle import encode, fit, model, rerank

EPS = 2.0**-53


def stage_fit(run):
    """(arrays of the fit stage, FitArgs that hold them)."""
    g, heads = run.g, run.g.kv_heads
    pivot = np.stack([run.pivot(head) for head in range(heads)])
    out = {
        "pivot": pivot,
        "key_counts": np.full(heads, -1, np.int64),
        "key_weights": np.full(heads, -1, np.int64),
        "key_sums": np.full((heads, g.head_dim), np.nan),
        "key_squares": np.full((heads, g.head_dim), np.nan),
        "query_counts": np.full(heads, -1, np.int64),
        "query_squares": np.full((heads, g.head_dim), np.nan),
        "value_sums": None,
    }
    values = tensor(None)
    if run.case.encode_values:
        out["value_sums"] = np.full((heads, g.value_dim), np.nan)
        values = run.key_tensor(run.value_view[0])
    fields = {
        "geometry": run.codec.geometry,
        "keys": run.key_tensor(run.key_view[0]),
        "queries": tensor(run.sample),
        "values": values,
        "queries_as": run.case.queries_as,
        "weights": pointer(run.weights),
    }
    run.library.stage("fit", **fields, **out)
    addresses = {name: pointer(array) for name, array in out.items()}
    return out, structs.FitArgs(**fields, **addresses)


def test_fit_sums(run):
    """float64 sums of m terms in any order: m 2^-53 sum |terms|, and the rounding of the terms."""
    out, _ = stage_fit(run)
    for head in range(run.g.kv_heads):
        want = run.fit_sums(head)
        assert out["key_counts"][head] == want.count
        assert out["key_weights"][head] == want.weight
        assert out["query_counts"][head] == want.query_count
        noise = (want.count + 4) * EPS
        compare.assert_close(out["key_sums"][head], want.sums, noise * want.sums_size, "sums")
        compare.assert_close(
            out["key_squares"][head], want.squares, 2 * noise * want.squares, "squares"
        )
        query_noise = 2 * (want.query_count + 4) * EPS * want.query_squares
        compare.assert_close(
            out["query_squares"][head], want.query_squares, query_noise, "query squares"
        )
        if want.value_sums is not None:
            value_noise = noise * want.value_size
            compare.assert_close(
                out["value_sums"][head], want.value_sums, value_noise, "value sums"
            )


def test_fit_params(run):
    """From the library's own sums: float64 noise, then one rounding to fp32."""
    g = run.g
    out, arguments = stage_fit(run)
    for center_on in (0, 1):
        for balance_on in (0, 1):
            value_dim = g.value_dim if run.case.encode_values else 0
            got = run.library.fit_params(
                arguments, center_on, balance_on, g.kv_heads, g.head_dim, value_dim
            )
            for head in range(g.kv_heads):
                check_params(out, got, head, center_on, balance_on)


def check_params(out, got, head, center_on, balance_on):
    values = out["value_sums"]
    sums = fit.Sums(
        pivot=out["pivot"][head],
        count=int(out["key_counts"][head]),
        weight=int(out["key_weights"][head]),
        sums=out["key_sums"][head],
        squares=out["key_squares"][head],
        query_count=int(out["query_counts"][head]),
        query_squares=out["query_squares"][head],
        value_sums=None if values is None else values[head],
        sums_size=None,
        value_size=None,
    )
    mu, s, value_center = fit.fit_params(sums, center_on, balance_on)
    weight = max(sums.weight, 1)
    shift = np.abs(sums.sums / weight)
    pivot = np.abs(sums.pivot.astype(np.float64))
    center, balance, inverse, got_value_center = (a if a is None else a[head] for a in got)
    tolerance = 2.0**-23 * np.abs(mu) + 4 * EPS * (pivot + shift) + 2.0**-149
    compare.assert_close(center, mu, tolerance, "center")
    # The variance loses what its two terms cancel; the geomean spreads the worst of it.
    spread, terms = fit.key_spread(sums, center_on)
    lost = np.where(spread > 0, terms / np.where(spread > 0, spread, 1), 1)
    tolerance = (2.0**-23 + 64 * EPS * lost.max()) * s
    compare.assert_close(balance, s, tolerance, "balance")
    compare.assert_bits(inverse, np.float32(1) / balance, "reciprocal of balance")
    if got_value_center is not None:
        tolerance = 2.0**-23 * np.abs(value_center) + 2.0**-149
        compare.assert_close(got_value_center, value_center, tolerance, "value center")


def test_records(run):
    for entry, head, _, n in run.each():
        compare.records(run, entry, head, n)


def test_counts_and_sums(run):
    out, g = run.encoded, run.g
    for entry, head, _, n in run.each():
        row, records = run.row(entry, head), run.records[entry, head]
        assert out["good_counts"][row] == records.good.sum()
        if out["occupancy"] is not None:
            want = encode.occupancy(g, records)
            compare.assert_bits(out["occupancy"][row], want, "occupancy")
        if out["value_sums"] is not None:
            values = run.values[entry, head, :n]
            want = encode.value_sums(np.zeros(g.value_dim), values, records.good)
            compare.assert_bits(out["value_sums"][row], want, "value sums")
        for first_bad, (starts, counts) in zip(out["first_bad"], out["pieces"]):
            begin, end = starts[entry], starts[entry] + counts[entry]
            bad = np.flatnonzero(~records.good[begin:end])
            want = begin + bad[0] if len(bad) else -1
            assert first_bad[entry, head] == want, "first bad position"


def test_other_rows_untouched(run):
    """The sequence that is in no batch keeps its bytes."""
    out = run.encoded
    left = set(range(run.case.batch + 1)) - {int(i) for i in run.sequences}
    for sequence in left:
        begin = sequence * run.g.kv_heads
        rows = slice(begin, begin + run.g.kv_heads)
        size = out["store"].row_bytes
        assert (out["memory"][begin * size : rows.stop * size] == 0xA5).all()
        assert (out["good_counts"][rows] == 0).all()


def entries_of(run, name, begin, end):
    """Which entries of an exported plane belong to the positions [begin, end)."""
    if name not in rerank.SKETCH_PLANES:
        return slice(begin, end)
    return slice(run.sketches(0, begin), run.sketches(0, end))


def test_import_inverts_export(run):
    """Through a store of another capacity, at another place, in two parts."""
    entry, head, _, n = next(run.each())
    planes = run.export(run.encoded["store"], run.row(entry, head), 0, n)
    shift = 5 * max(run.g.stride, 1)
    if shift > 4096:  # another place would be a large store
        shift = 0
    store, memory = run.library.new_store(run.geometry, 1, n + shift + 72)
    memory[...] = 0x5A
    cut = n // 3
    for begin, end in ((cut, n), (0, cut)):
        part = {
            name: np.ascontiguousarray(plane[entries_of(run, name, begin, end)])
            for name, plane in planes.items()
        }
        at = begin + shift
        run.library.convert_store("import", run.geometry, store, 0, at, end - begin, part)
    middle = n // 2
    again = run.export(store, 0, shift + middle, n - middle)
    for name, plane in planes.items():
        compare.assert_bits(again[name], plane[entries_of(run, name, middle, n)], name)


def test_record_sizes(run):
    sizes = run.library.record_sizes(run.geometry)
    want = {
        name: int(np.prod(shape)) * np.dtype(dtype).itemsize
        for name, (shape, dtype) in run.plane_shapes.items()
    }
    for name in structs.PLANES:
        assert sizes[name] == want.get(name, 0), name
    assert sizes["sketch"] == sum(want.get(name, 0) for name in rerank.SKETCH_PLANES)
    assert sizes["sketch_stride"] == run.g.stride
    assert sizes["total"] + sizes["sketch"] == sum(want.values())
    if run.g.codec == model.SCALAR4 and run.g.vote == model.GRADED:
        assert sizes["codes"] + sizes["signs"] == run.g.head_dim // 2
