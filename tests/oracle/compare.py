"""Comparisons of library and oracle, shared by the generated cases and the traces."""

import numpy as np
from numbers_of import to_f32
from oracle import attend, encode, model, rerank, vote

OUTPUT_HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}


def bits(array):
    """Integers of the same size, so that -0 and NaN are compared too."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_bits(got, want, what):
    assert got.shape == want.shape, what
    assert got.dtype == want.dtype, what
    different = np.argwhere(bits(got) != bits(want))
    if len(different):
        first = tuple(different[0])
        raise AssertionError(
            f"{what}: {len(different)} of {got.size} differ, first at {first}:"
            f" library {got[first]!r}, oracle {want[first]!r}"
        )


def assert_close(got, want, tolerance, what):
    """|got - want| <= tolerance, infinities equal."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    tolerance = np.broadcast_to(tolerance, want.shape)
    with np.errstate(invalid="ignore"):
        ok = (got == want) | (np.abs(got - want) <= tolerance)
    if not ok.all():
        first = tuple(np.argwhere(~ok)[0])
        raise AssertionError(
            f"{what}: {np.sum(~ok)} of {ok.size} too far, first at {first}: library"
            f" {got[first]!r}, oracle {want[first]!r}, tolerance {tolerance[first]:.3g}"
        )


def records(run, entry, head, n):
    planes = run.export(run.encoded["store"], run.row(entry, head), 0, n)
    want = run.records[entry, head].planes()
    assert set(want) == set(planes)
    for name, plane in planes.items():
        assert_bits(plane, want[name], f"{name} of entry {entry}, head {head}")


def votes(run, entry, head, index, n):
    case = run.case
    arguments = (run.g, run.params[head], run.records[entry, head], run.group_of(entry, head))
    if run.g.vote == model.GRADED:
        want = vote.graded_votes(*arguments, case.vote_group)
    else:
        counts = encode.occupancy(run.g, run.records[entry, head])
        want = vote.tier_votes(*arguments, counts, case.rho_of)
    got = run.votes[index, :n].copy()
    assert (np.isnan(got) == np.isnan(want)).all(), f"NaN votes of row {index}"
    got[np.isnan(got)] = want[np.isnan(want)] = 0
    assert_bits(got, want, f"votes of row {index}")


def estimate_tolerance(run, want, size):
    """0 for scalar codecs, which are exact. polar4: float64 sums rounded once, so half an ulp and
    the noise of the float64 sum: 2^-23 |e| + d 2^-50 sum |terms|."""
    if run.g.codec != model.POLAR4:
        return np.zeros(want.shape)
    return 2.0**-23 * np.abs(want) + run.g.head_dim * 2.0**-50 * size + 2.0**-149


def assert_estimates(run, got, want, size, what):
    if run.g.codec != model.POLAR4:
        assert_bits(got, want, what)
    else:
        assert_close(got, want, estimate_tolerance(run, want, size), what)


def estimates(run, entry, head, index):
    group = run.case.group
    chosen = run.candidates(index)
    got = run.reranked["estimates"][entry, head * group : (head + 1) * group, : len(chosen)]
    taken = rerank.take(run.records[entry, head], chosen)
    want, size = rerank.estimates(run.g, run.params[head], taken, run.group_of(entry, head))
    assert_estimates(run, got, want, size, f"estimates of row {index}")


def samples(run, entry, head, index, n):
    """NaN exactly at bad keys and behind the samples; the rest as estimates."""
    group = run.case.group
    positions = run.samples(n)
    got = run.reranked["sample_estimates"][entry, head * group : (head + 1) * group]
    arguments = (run.g, run.params[head], run.records[entry, head], run.group_of(entry, head))
    want, size = rerank.sample_estimates(*arguments, positions)
    assert np.isnan(got[:, len(positions) :]).all(), f"unused samples of row {index}"
    got = got[:, : len(positions)]
    bad = np.isnan(want)
    assert (np.isnan(got) == bad).all(), f"NaN samples of row {index}"
    assert_estimates(run, got[~bad], want[~bad], size[~bad], f"samples of row {index}")


def row_estimates(run, entry, head, index):
    """The library's estimates [G, m], or the oracle's where the library was not asked for them."""
    chosen = run.candidates(index)
    group = run.case.group
    if run.reranked["estimates"] is not None:
        return run.reranked["estimates"][entry, head * group : (head + 1) * group, : len(chosen)]
    taken = rerank.take(run.records[entry, head], chosen)
    return rerank.estimates(run.g, run.params[head], taken, run.group_of(entry, head))[0]


def score_tolerance(run, est, score):
    """One fp32 rounding of the score, float64 noise of logits and logarithms; polar4 may use the
    estimates before or after their rounding to fp32."""
    exact_codec = run.g.codec != model.POLAR4
    if run.case.rank == model.RANK_MEAN:
        size = np.abs(est.astype(np.float64)).max(axis=0, initial=0)
        noise = 0 * size if exact_codec else (len(est) + 1) * 2.0**-23 * size
        if run.g.value_norm:
            noise = noise + 2.0**-23 * size + 1e-15
        return noise + (2.0**-23 * np.abs(score) if run.g.value_norm else 0)
    largest = np.abs(run.case.logit(est)).max(initial=0)
    noise = largest * (2.0**-50 if exact_codec else 2.0**-22) + 1e-12
    return noise + 2.0**-23 * np.abs(score)


def hits(run, entry, head, index):
    case, out = run.case, run.reranked
    chosen = run.candidates(index)
    est = row_estimates(run, entry, head, index)
    norms = run.records[entry, head].value_norms
    norms = norms[chosen] if run.g.value_norm else None
    score = rerank.scores(est, case.rank, case.logit, norms)
    tolerance = score_tolerance(run, est, score)

    count = int(out["counts"][index])
    high = low = min(case.k, len(chosen))
    if case.share and len(chosen):
        heavy = score >= score.max() - 40
        noise = 4 * tolerance[heavy].max() + 1e-12
        low_c, high_c = rerank.adaptive_counts(score, case.share, noise)
        floor = min(min(case.k_min, case.k), len(chosen))
        low, high = (min(max(c, floor), high) for c in (low_c, high_c))
    assert low <= count <= high, f"count {count} of row {index}, oracle {low}..{high}"
    positions, got = out["positions"][index], out["scores"][index]
    assert (positions[count:] == -1).all(), "unused positions"
    assert (got[count:] == -np.inf).all(), "unused scores"
    positions, got = positions[:count], got[:count]
    ahead = (got[:-1] > got[1:]) | ((got[:-1] == got[1:]) & (positions[:-1] < positions[1:]))
    assert ahead.all(), "hits are not in order (score descending, position ascending)"
    where = np.searchsorted(chosen, positions)
    assert (chosen[np.minimum(where, max(len(chosen) - 1, 0))] == positions).all(), "no candidates"
    assert_close(got, score[where], tolerance[where], f"scores of row {index}")
    if not tolerance.any():  # exact: the very same hits
        assert_bits(positions, chosen[rerank.top(score, count)].astype(np.int32), "hits")
    left = np.delete(np.arange(len(chosen)), where)
    if count and len(left):
        best = (score[left] - tolerance[left]).max()
        assert got.min() >= best, f"a better candidate was left out in row {index}"


def row_samples(run, entry, head, n):
    """The library's sample estimates [G, c], or the oracle's where the library was not asked."""
    positions, group = run.samples(n), run.case.group
    got = run.reranked["sample_estimates"]
    if got is not None:
        return got[entry, head * group : (head + 1) * group, : len(positions)]
    arguments = (run.g, run.params[head], run.records[entry, head], run.group_of(entry, head))
    return rerank.sample_estimates(*arguments, positions)[0]


def rest(run, entry, head, index, n):
    """One fp32 rounding, float64 noise; polar4 as in score_tolerance."""
    case = run.case
    est = row_samples(run, entry, head, n)
    chosen = run.candidates(index)
    want, largest = rerank.rest_lse(est, run.samples(n), n, chosen, case.logit)
    got = run.reranked["rest_lse"][entry, head * case.group : (head + 1) * case.group]
    noise = largest * (2.0**-50 if run.g.codec != model.POLAR4 else 2.0**-22) + 1e-11
    finite = np.where(np.isfinite(want), np.abs(want), 0)
    assert_close(got, want, noise + 2.0**-23 * finite, f"rest_lse of row {index}")


def zone(run, entry, head, index, fetched):
    if run.case.tail == model.DROP:
        return None
    heads = slice(head * run.case.group, (head + 1) * run.case.group)
    chosen = run.candidates(index)
    row, n = run.row(entry, head), int(run.lengths[entry])
    return attend.Zone(
        length=n,
        candidates=chosen,
        estimates=run.reranked["estimates"][entry, heads, : len(chosen)],
        rest_lse=run.reranked["rest_lse"][entry, heads],
        fetched=fetched,
        value_sums=run.encoded["value_sums"][row],
        good_count=int(run.encoded["good_counts"][row]),
        records=run.records[entry, head],
        samples=run.samples(n),
        sample_estimates=row_samples(run, entry, head, n),
    )


def attention(run, entry, head, index, meaningful=1e-4):
    """Both sides compute in float64 and round once (f16, bf16: through fp32). A weight is off by
    its logit's noise `spread`; where products are so large that this is no longer small, nothing
    can be compared. Of the samples' value, v_hat is off by 2 spread times the largest value, and
    their number N by 4 spread relative, which moves l by at most spread. Returns the number of
    heads compared."""
    case = run.case
    heads = slice(head * case.group, (head + 1) * case.group)
    raw, lse = run.attended
    got = to_f32(raw[entry, heads]).astype(np.float64)
    lse = lse[entry, heads]
    queries = run.group_of(entry, head)
    if vote.rotated_queries(run.g, run.params[head], queries)[2]:
        assert (got == 0).all() and (lse == -np.inf).all(), "output for a bad query"
        return 0
    keys, values, fetched = run.attention_rows(entry, head, index)
    tail = zone(run, entry, head, index, fetched)
    want, want_lse, spread = attend.attend(
        run.g,
        run.params[head],
        queries,
        keys,
        values,
        case.logit,
        case.tail,
        tail,
        None if run.sinks is None else run.sinks[heads],
    )
    largest = np.abs(values).max(initial=0)
    if tail is not None:
        largest = max(largest, attend.largest_value(run.g, run.params[head], case.tail, tail))
    ok = spread < meaningful
    assert not np.isnan(lse).any(), "lse is NaN"
    half = OUTPUT_HALF_ULP[case.output_dtype]
    want = limited_to(want, case.output_dtype)
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(want), np.abs(want), 0)
    tolerance = 1.001 * (half + 2.0**-24) * finite + SMALLEST[case.output_dtype]
    samples = run.case.tail_samples if tail is not None else 0
    terms = len(keys) + min(samples, int(run.lengths[entry])) + run.g.value_dim + 64
    noise = 8 * spread + terms * 2.0**-51
    tolerance = tolerance + noise[:, None] * largest
    assert_close(got[ok], want[ok], tolerance[ok], f"output of row {index}")
    finite = np.where(np.isfinite(want_lse), np.abs(want_lse), 0)
    assert_close(lse[ok], want_lse[ok], (2.0**-23 * finite + noise)[ok], f"lse of row {index}")
    return int(ok.sum())


def limited_to(values, dtype):
    """float64 with what the output dtype cannot hold made infinite."""
    if dtype != "f16":
        return values
    return np.where(np.abs(values) >= 65520, np.copysign(np.inf, values), values)
