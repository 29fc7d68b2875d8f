"""Rules that need numpy alone, against brute-force statements of what their papers say."""

import math

import pytest
from rules_data import Layer, geometry, np

from bench.rules import base, dense, eviction, harness, kivi, magicpig, quest, shadowkv

FIT = 20
NUMPY_RULES = (
    dense.Full,
    dense.Exact,
    dense.Streaming,
    quest.Quest,
    eviction.SnapKV,
    eviction.H2O,
    magicpig.MagicPIG,
    shadowkv.ShadowKV,
    kivi.Kivi,
)


def small(rule, **changes):
    """With parameters for a layer of 16 coordinates and 200 tokens."""
    params = {
        magicpig.MagicPIG: {"bits": 4, "tables": 20},
        shadowkv.ShadowKV: {"rank": 8, "chunk": 4, "outliers": 3},
        kivi.Kivi: {"bits": 4, "group": 8},
    }
    return rule(geometry(**changes), **params.get(rule, {}))


def truth(rule, layer, i):
    regions = layer.regions(rule, i)
    keys, values = layer.keys.astype(np.float64), layer.values.astype(np.float64)
    query, t = layer.queries[i].astype(np.float64), regions.tokens
    return harness.Truth(query, keys[:t], values[:t], regions, rule.geometry)


def mean_error(rule, layer):
    layer.build(rule, FIT)
    errors = [
        np.mean(harness.judge(truth(rule, layer, i), layer.ask(rule, i)[0])["error"])
        for i in range(FIT, len(layer.positions))
    ]
    return float(np.mean(errors))


# ---- All of them -----------------------------------------------------------------------


@pytest.mark.parametrize("rule", NUMPY_RULES)
def test_rows_lie_in_the_zone_once_and_ascending_or_best_first(rule):
    layer = Layer()
    one = layer.build(small(rule), FIT)
    for i in range(FIT, len(layer.positions)):
        answer, regions, _ = layer.ask(one, i)
        assert len(np.unique(answer.rows)) == len(answer.rows)
        assert np.all((answer.rows >= regions.sink_end) & (answer.rows < regions.zone_end))
        assert answer.device_bytes >= 0 and answer.host_bytes >= 0
        if answer.weights is not None:
            assert answer.weights.shape == (2, regions.tokens)
            np.testing.assert_allclose(answer.weights.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("rule", NUMPY_RULES)
def test_what_comes_later_changes_nothing(rule):
    """A rule that looked ahead would answer otherwise with other tokens behind the query."""
    layer, other = Layer(), Layer()
    ask = FIT + 5
    tokens = int(layer.positions[ask]) + 1
    other.keys = layer.keys.copy()
    other.keys[tokens:] += 5
    rows = []
    for one in (layer, other):
        state = one.build(small(rule), FIT)
        rows.append([one.ask(state, i)[0].rows.tolist() for i in range(FIT, ask + 1)])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("rule", NUMPY_RULES)
def test_a_sequence_without_a_zone_is_full_attention(rule):
    layer = Layer(n=60, first=20)
    one = layer.build(small(rule, sink=16, local=64), 10)
    found = harness.judge(truth(one, layer, 30), layer.ask(one, 30)[0])
    assert max(found["error"]) < 1e-9
    assert found["recall"] is None


@pytest.mark.parametrize("rule", NUMPY_RULES)
def test_full_attention_errs_least(rule):
    layer = Layer()
    full = mean_error(small(dense.Full), layer)
    assert full < 1e-12
    assert full <= mean_error(small(rule), layer)


def test_the_exact_best_rows_hold_more_of_the_mean_score_than_any_others():
    layer = Layer()
    for rule in (quest.Quest, eviction.SnapKV, eviction.H2O, dense.Streaming):
        exact, other = small(dense.Exact), layer.build(small(rule), FIT)
        for i in range(FIT, len(layer.positions)):
            found = truth(exact, layer, i)
            scores = found.logits.mean(axis=0)
            k = exact.geometry.k
            best = np.sort(scores[layer.ask(exact, i)[0].rows])[::-1]
            others = np.sort(scores[layer.ask(other, i)[0].rows])[::-1][:k]
            assert len(best) == k and np.all(best[: len(others)] >= others)
            judged = harness.judge(found, layer.ask(exact, i)[0])
            assert judged["recall"] == judged["candidate_recall"] == 1


# ---- Figures ---------------------------------------------------------------------------


def test_divergence_of_a_subset_is_the_mass_it_lacks():
    """KL(p restricted to S || p) = -ln p(S)."""
    layer, one = Layer(), small(dense.Streaming)
    judged = harness.judge(truth(one, layer, 30), layer.ask(one, 30)[0])
    np.testing.assert_allclose(judged["kl"], [-math.log(mass) for mass in judged["mass"]])


def test_bytes_are_those_of_the_layouts():
    layer, d = Layer(), 16
    i = FIT
    zone = layer.regions(small(dense.Full), i).zone
    row = 4 * d
    expected = {
        dense.Full: zone * row,
        dense.Exact: zone * 2 * d + 10 * 2 * d,
        dense.Streaming: 0,
        eviction.SnapKV: 10 * row,
        eviction.H2O: 10 * row,
    }
    for rule, count in expected.items():
        answer, _, _ = layer.ask(layer.build(small(rule), FIT), i)
        assert (answer.device_bytes, answer.host_bytes) == (count, 0), rule.NAME


# ---- Quest -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 3, 16, 1000])
def test_quest_bounds_every_score_in_its_page(page):
    layer = Layer()
    one = layer.build(quest.Quest(geometry(), page=page), FIT)
    for i in range(FIT, len(layer.positions)):
        _, regions, query = layer.ask(one, i)
        bounds = quest.page_bounds(query, one.least, one.most)
        zone = layer.keys[regions.sink_end : regions.zone_end]
        scores = query @ zone.T
        owner = np.arange(regions.zone) // page
        # float32 sums of 16 terms, at most about 10 each
        assert np.all(bounds[:, owner] >= scores - 1e-4)
        assert np.all(bounds.mean(axis=0)[owner] >= scores.mean(axis=0) - 1e-4)
    if page == 1:
        np.testing.assert_allclose(bounds, scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("page", [1, 3, 16])
def test_quest_takes_whole_pages_with_the_largest_bounds(page):
    layer = Layer()
    one = layer.build(quest.Quest(geometry(), page=page), FIT)
    answer, regions, query = layer.ask(one, FIT + 7)
    zone = layer.keys[regions.sink_end : regions.zone_end].astype(np.float64)
    pages = [zone[i : i + page] for i in range(0, len(zone), page)]
    bounds = []
    for part in pages:
        least, most = part.min(axis=0), part.max(axis=0)
        heads = [sum(max(q * a, q * b) for q, a, b in zip(head, least, most)) for head in query]
        bounds.append(sum(heads) / len(heads))
    wanted = sorted(range(len(pages)), key=lambda p: -bounds[p])[: math.ceil(10 / page)]
    rows = [regions.sink_end + p * page + i for p in sorted(wanted) for i in range(len(pages[p]))]
    assert answer.rows.tolist() == rows


def test_a_budget_of_quest_is_kept():
    for budget in (1, 7, 16, 64):
        params = quest.Quest.for_budget(budget, geometry(d=128))
        assert 2 * 2 * 128 / params["page"] <= budget


# ---- SnapKV, H2O -----------------------------------------------------------------------


def group_weights(query, keys, chosen, scale):
    """{token: weight summed over heads}, softmax over `chosen`, by loops."""
    total = dict.fromkeys(chosen, 0.0)
    for head in query.astype(np.float64):
        logits = {t: scale * float(head @ keys[t].astype(np.float64)) for t in chosen}
        most = max(logits.values())
        size = sum(math.exp(x - most) for x in logits.values())
        for t, x in logits.items():
            total[t] += math.exp(x - most) / size
    return total


@pytest.mark.parametrize(("window", "kernel"), [(1, 1), (8, 7), (99, 3)])
def test_snapkv_keeps_the_pooled_votes_of_its_window(window, kernel):
    layer = Layer()
    one = layer.build(eviction.SnapKV(geometry(), window=window, kernel=kernel), FIT)
    tokens = int(layer.positions[FIT - 1]) + 1
    votes = [0.0] * tokens
    for i in list(range(FIT))[-window:]:
        seen = range(int(layer.positions[i]) + 1)
        for t, weight in group_weights(layer.queries[i], layer.keys, seen, 0.25).items():
            votes[t] += weight
    half = kernel // 2
    pooled = {t: max(votes[max(0, t - half) : t + half + 1]) for t in range(4, tokens - 8)}
    wanted = sorted(pooled, key=lambda t: (-pooled[t], t))[:10]
    for i in (FIT, FIT + 20):
        assert layer.ask(one, i)[0].rows.tolist() == sorted(wanted)


def test_snapkv_may_keep_what_comes_later():
    layer = Layer()
    one = layer.build(eviction.SnapKV(geometry(), grow=1), FIT)
    answer, regions, _ = layer.ask(one, FIT + 9)
    assert answer.rows[-10:].tolist() == list(range(regions.zone_end - 10, regions.zone_end))
    assert len(answer.rows) == 20


def test_h2o_evicts_the_least_accumulated_one_by_one_and_for_good():
    layer = Layer()
    one = layer.build(eviction.H2O(geometry()), FIT)
    sums = [0.0] * len(layer.keys)
    for i in range(FIT):
        seen = range(int(layer.positions[i]) + 1)
        for t, weight in group_weights(layer.queries[i], layer.keys, seen, 0.25).items():
            sums[t] += weight
    kept = list(range(4, int(layer.positions[FIT - 1]) + 1 - 8))
    for i in range(FIT, len(layer.positions)):
        answer, regions, query = layer.ask(one, i)
        kept += [t for t in range(max(kept) + 1, regions.zone_end) if t >= seen_end(layer, i)]
        while len(kept) > 10:
            kept.remove(min(reversed(kept), key=lambda t: sums[t]))
        assert answer.rows.tolist() == kept
        chosen = [*range(4), *kept, *range(regions.zone_end, regions.tokens)]
        for t, weight in group_weights(query, layer.keys, chosen, 0.25).items():
            sums[t] += weight


def seen_end(layer, i):
    """Where the zone of the query before ended."""
    return int(layer.positions[i - 1]) + 1 - 8


# ---- ShadowKV --------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.0, 1e4])
def test_shadowkv_of_full_rank_rebuilds_its_keys(theta):
    layer = Layer()
    params = {"rank": 16, "chunk": 4, "outliers": 2, "theta": theta}
    one = layer.build(shadowkv.ShadowKV(geometry(), **params), FIT)
    for i in range(FIT, len(layer.positions)):
        answer, regions, query = layer.ask(one, i)
        np.testing.assert_allclose(
            one.rebuilt(answer.rows, regions.sink_end), layer.keys[answer.rows], atol=1e-5
        )
        wanted = base.subset_weights(
            query, layer.keys[: regions.tokens], regions, answer.rows, 0.25
        )
        np.testing.assert_allclose(answer.weights, wanted, atol=1e-6)


def test_shadowkv_is_the_best_approximation_of_its_rank():
    """Squared error of the keys of the fit: the sum of the squared singular values left out."""
    layer = Layer()
    one = layer.build(shadowkv.ShadowKV(geometry(), rank=5, chunk=4, outliers=2), FIT)
    rows = np.arange(4, int(layer.positions[FIT - 1]) + 1 - 8)
    zone = layer.keys[rows].astype(np.float64)
    lost = ((one.rebuilt(rows, 4) - zone) ** 2).sum()
    singular = np.linalg.svd(zone, compute_uv=False)
    np.testing.assert_allclose(lost, (singular[5:] ** 2).sum(), rtol=1e-6)


def test_shadowkv_takes_the_chunks_of_the_best_landmarks_beside_its_outliers():
    layer = Layer()
    one = layer.build(shadowkv.ShadowKV(geometry(), rank=16, chunk=4, outliers=2), FIT)
    answer, regions, query = layer.ask(one, FIT + 10)
    zone = layer.keys[regions.sink_end : regions.zone_end].astype(np.float64)
    chunks = [zone[i : i + 4] for i in range(0, len(zone), 4)]
    shares = base.softmax(0.25 * query @ np.stack([part.mean(axis=0) for part in chunks]).T)
    order = [c for c in np.argsort(-shares.max(axis=0)) if c not in one.outliers]
    wanted = {c for c in [*order[:3], *one.outliers]}  # 3 chunks of 4 hold 10 rows
    assert set((answer.rows - regions.sink_end) // 4) == wanted
    cosines = []
    for part in chunks[: (int(layer.positions[FIT - 1]) + 1 - 8 - 4) // 4]:
        mark = part.mean(axis=0)
        sizes = np.linalg.norm(part, axis=1) * np.linalg.norm(mark)
        cosines.append((part @ mark / sizes).min())
    assert one.outliers.tolist() == sorted(np.argsort(cosines)[:2])
