"""MagicPIG's estimator, and the rules that quantise: KIVI, PQCache, RaBitQ; HNSW."""

import pytest
from rules_data import Layer, geometry, np

from bench.rules import base, graph, kivi, magicpig, pqcache, rabitq

FIT = 20


@pytest.fixture(scope="module")
def faiss():
    return pytest.importorskip("faiss", reason="FAISS is not installed (bench/requirements.txt)")


# ---- MagicPIG --------------------------------------------------------------------------


def test_chances_are_those_of_random_hyperplanes():
    """The share of 20,000 hyperplanes, and of tables made of them, within five standard errors."""
    random = np.random.default_rng(1)
    query, keys = random.standard_normal((1, 16)), random.standard_normal((30, 16)) + 0.5
    planes = random.standard_normal((16, 20000))
    same = (query @ planes > 0) == (keys @ planes > 0)
    chance = magicpig.collision_chance(query, keys)[0]
    error = np.sqrt(chance * (1 - chance) / 20000)
    assert np.all(np.abs(same.mean(axis=1) - chance) < 5 * error)
    hits = same.reshape(30, 500, 10, 4).all(axis=3).sum(axis=2)  # 500 draws of 10 tables, 4 bits
    wanted = magicpig.sampling_chance(chance, 4, 10)
    error = np.sqrt(wanted * (1 - wanted) / 500)
    assert np.all(np.abs((hits >= 2).mean(axis=1) - wanted) < 5 * error)


def test_numerator_and_denominator_are_unbiased_over_1000_draws():
    """Each sampled key counts exp(logit) / chance. Over 1,000 draws of hyperplanes the means of the
    denominator and of each coordinate of the numerator lie within 5 standard errors of the exact
    sums: 17 figures, each beyond by chance with probability 6e-7."""
    layer = Layer(n=90, first=60)
    zone = slice(4, 60)
    query = layer.queries[:1, 0]
    keys, values = layer.keys[zone], layer.values[zone].astype(np.float64)
    weights = np.exp(0.25 * (query @ keys.T).astype(np.float64))[0]
    sums = []
    for seed in range(1000):
        rule = magicpig.MagicPIG(geometry(group=1, seed=seed, local=30), bits=4, tables=20)
        rule.build(layer.keys, layer.values, None, None)
        sampled = rule.sample(query)[0, : len(keys)] >= 2
        counted = np.where(sampled, weights / np.exp(rule.log_chance(query, keys)[0]), 0)
        sums.append(np.append(counted @ values, counted.sum()))
    sums = np.array(sums)
    exact = np.append(weights @ values, weights.sum())
    error = sums.std(axis=0, ddof=1) / np.sqrt(len(sums))
    assert np.all(error < 0.1 * weights.sum())  # the test has the power to see a bias
    assert np.all(np.abs(sums.mean(axis=0) - exact) < 5 * error)


def test_magicpig_hashes_sign_by_sign_and_counts_tables():
    layer = Layer()
    rule = layer.build(magicpig.MagicPIG(geometry(), bits=3, tables=7), FIT)
    answer, regions, query = layer.ask(rule, FIT + 4)
    zone = layer.keys[regions.sink_end : regions.zone_end] - rule.mean
    rows = []
    for head in query:
        for i, key in enumerate(zone):
            same = (head @ rule.planes > 0) == (key @ rule.planes > 0)
            if same.reshape(7, 3).all(axis=1).sum() >= 2:
                rows.append(regions.sink_end + i)
    assert answer.rows.tolist() == sorted(set(rows))
    inside = [rows.tolist() for rows in answer.head_rows]
    weighed = [np.flatnonzero(head > 0) for head in answer.weights]
    dense = np.flatnonzero(base.dense_mask(regions))
    assert [np.setdiff1d(found, dense).tolist() for found in weighed] == inside
    for head, found, weights in zip(query, weighed, answer.weights):
        chance = np.ones(regions.tokens)
        angle = magicpig.collision_chance(head[None], layer.keys[: regions.tokens] - rule.mean)[0]
        part = slice(regions.sink_end, regions.zone_end)
        chance[part] = magicpig.sampling_chance(angle, 3, 7)[part]
        wanted = np.exp(0.25 * layer.keys[found] @ head) / chance[found]
        np.testing.assert_allclose(weights[found], wanted / wanted.sum(), rtol=1e-4)


def test_magicpig_with_every_key_certain_is_full_attention():
    layer = Layer()
    rule = layer.build(magicpig.MagicPIG(geometry(), bits=1, tables=400), FIT)
    answer, regions, query = layer.ask(rule, FIT)
    keys = layer.keys[: regions.tokens].astype(np.float64)
    wanted = base.softmax(0.25 * query.astype(np.float64) @ keys.T)
    np.testing.assert_allclose(answer.weights, wanted, rtol=1e-4)


# ---- KIVI ------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 300.0])
def test_kivi_errs_by_half_a_step(bits, spread):
    """Step and least value are rounded to 16 bits (2^-11 of themselves, or 2^-25 when tiny), so the
    largest code may reach short of the largest value by that much of each."""
    random = np.random.default_rng(bits)
    groups = (spread * random.standard_normal((50, 32)) + 1).astype(np.float32)
    codes, step, least = kivi.quantise(groups, bits)
    assert codes.max() <= (1 << bits) - 1
    exact_step = (groups.max(axis=1, keepdims=True) - least) / ((1 << bits) - 1)
    slack = (2.0**-11 * exact_step + 2.0**-25) * ((1 << bits) - 1)
    slack += 2.0**-11 * np.abs(groups.min(axis=1, keepdims=True)) + 1e-6 * np.abs(groups).max()
    assert np.all(np.abs(kivi.rounded(groups, bits) - groups) <= step / 2 + slack)


def test_kivi_groups_keys_by_channel_and_values_by_token():
    layer = Layer()
    rule = layer.build(kivi.Kivi(geometry(), bits=2, group=8), FIT)
    layer.ask(rule, FIT + 20)
    end = len(rule.keys)
    assert end % 8 == 0 and 0 <= layer.regions(rule, FIT + 20).zone - end < 8
    for begin in range(0, end, 8):
        for channel in range(16):
            column = layer.keys[4 + begin : 12 + begin, channel]
            np.testing.assert_array_equal(
                rule.keys[begin : begin + 8, channel], kivi.rounded(column, 2)
            )
    for token in range(end):
        for half in (slice(0, 8), slice(8, 16)):
            row = layer.values[4 + token, half]
            np.testing.assert_array_equal(rule.values[token, half], kivi.rounded(row, 2))


def test_kivi_errs_less_with_more_bits():
    layer, errors = Layer(), []
    for bits in (2, 4, 8):
        rule = layer.build(kivi.Kivi(geometry(), bits=bits, group=8), FIT)
        answer, regions, query = layer.ask(rule, FIT)
        keys = layer.keys[: regions.tokens].astype(np.float64)
        exact = base.softmax(0.25 * query @ keys.T) @ layer.values[: regions.tokens]
        errors.append(np.linalg.norm(answer.output - exact))
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("rule", [kivi.Kivi, pqcache.PQCache])
def test_a_setting_that_does_not_divide_is_refused(rule):
    with pytest.raises(base.SettingError, match="does not divide"):
        rule(geometry(), **({"group": 32} if rule is kivi.Kivi else {"m": 3}))


# ---- FAISS -----------------------------------------------------------------------------


def test_pqcache_ranks_by_the_decoded_keys_as_index_pq_does(faiss):
    layer = Layer(n=400, first=350)
    rule = layer.build(pqcache.PQCache(geometry(k=25), m=4, bits=4), FIT)
    centroids = faiss.vector_to_array(rule.index.pq.centroids).reshape(4, 16, 4)
    for i in range(FIT, len(layer.positions)):
        answer, regions, query = layer.ask(rule, i)
        zone = layer.keys[regions.sink_end : regions.zone_end].reshape(-1, 4, 4)
        nearest = ((zone[:, :, None] - centroids) ** 2).sum(axis=3).argmin(axis=2)
        decoded = centroids[np.arange(4), nearest].reshape(len(zone), -1)
        scores = decoded @ query.mean(axis=0)
        # the same codes give the same score: the order is compared by scores
        wanted = np.sort(scores)[::-1][:25]
        np.testing.assert_allclose(scores[answer.rows - regions.sink_end], wanted, rtol=1e-4)
        again = faiss.IndexPQ(16, 4, 4, faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(centroids.ravel(), again.pq.centroids)
        again.is_trained = True
        again.add(np.ascontiguousarray(layer.keys[regions.sink_end : regions.zone_end]))
        _, found = again.search(query.mean(axis=0, keepdims=True), 25)
        assert (regions.sink_end + found[0]).tolist() == answer.rows.tolist()


def test_pqcache_is_trained_on_the_prefill_alone(faiss):
    layer, other = Layer(n=400, first=350), Layer(n=400, first=350)
    other.keys[int(layer.positions[FIT - 1]) + 1 - 8 :] += 9  # what enters the zone later
    rules = [one.build(pqcache.PQCache(geometry(), m=4, bits=4), FIT) for one in (layer, other)]
    found = [faiss.vector_to_array(rule.index.pq.centroids) for rule in rules]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("query_bits", "tolerance"), [(0, 1e-4), (8, 0.02)])
def test_rabitq_estimates_as_its_paper_says(faiss, query_bits, tolerance):
    """<q, r> of a rotated centred key r is estimated by |r| <x, q> / <x, r / |r|>, x its signs."""
    layer = Layer(n=600, first=550, d=32)
    rule = rabitq.RaBitQ(geometry(d=32), query_bits=query_bits)
    layer.build(rule, FIT)
    _, regions, query = layer.ask(rule, FIT)
    mean = query.mean(axis=0, keepdims=True)
    scores, found = rule.index.search(rule.rotate(mean), regions.zone)
    zone = layer.keys[regions.sink_end : regions.zone_end]
    turned, asked = rule.rotate(zone - rule.mean), rule.rotate(mean)[0]
    signs = np.where(turned > 0, 1, -1) / np.sqrt(32)
    size = np.linalg.norm(turned, axis=1)
    wanted = size * (signs @ asked) / ((signs * turned).sum(axis=1) / size)
    np.testing.assert_allclose(
        scores[0], wanted[found[0]], atol=tolerance * np.abs(wanted).max(), rtol=0
    )
    exact = (zone - rule.mean) @ mean[0]
    assert np.corrcoef(wanted, exact)[0, 1] > 0.7


def test_rabitq_reranks_its_candidates_exactly(faiss):
    layer = Layer(n=600, first=550)
    rule = layer.build(rabitq.RaBitQ(geometry(), candidates=0.2), FIT)
    answer, regions, query = layer.ask(rule, FIT)
    assert len(answer.candidates) == int(np.ceil(0.2 * regions.zone))
    scores = layer.keys[answer.candidates].astype(np.float64) @ query.mean(axis=0)
    wanted = answer.candidates[np.argsort(-scores, kind="stable")[:10]]
    assert answer.rows.tolist() == wanted.tolist()


@pytest.mark.parametrize("center", [0, 1])
def test_a_graph_walked_whole_finds_the_best(faiss, center):
    layer = Layer(n=400, first=350)
    rule = layer.build(graph.Graph(geometry(), ef=5000, center=center), FIT)
    hits = []
    for i in range(FIT, len(layer.positions)):
        answer, regions, query = layer.ask(rule, i)
        scores = layer.keys[regions.sink_end : regions.zone_end] @ query.mean(axis=0)
        hits.append(np.isin(np.argsort(-scores)[:10], answer.rows - regions.sink_end).mean())
        assert answer.host_bytes >= 32 * 10 * 2
    assert np.mean(hits) > 0.97
