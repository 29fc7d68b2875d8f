"""pariskv retrieve: hits of an index, and stages that fit together."""

import numpy as np
import pytest
from cli_files import safetensors_bytes

RNG = np.random.default_rng(11)
N, D, H, G, M = 700, 32, 2, 3, 4
KEYS = RNG.normal(size=(H, N, D)).astype(np.float32)
QUERIES = RNG.normal(size=(M, H * G, D)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieve")
    np.save(folder / "k.npy", KEYS)
    np.save(folder / "q.npy", QUERIES)
    cli("encode", folder / "k.npy", "--output", folder / "k.pkv").succeeds()
    cli(
        "encode", folder / "k.npy", "--output", folder / "paper.pkv", "--profile", "paper"
    ).succeeds()
    return folder


@pytest.fixture
def retrieve(cli, folder):
    def run(*options, index="k.pkv", queries="q.npy"):
        return cli("retrieve", folder / index, folder / queries, "--json", *options).succeeds().json

    return run


def exact_best(query, head, k):
    scores = QUERIES[query, head * G : (head + 1) * G].astype(np.float64).sum(0) @ KEYS[head].T
    return np.argsort(-scores, kind="stable")[:k]


def test_the_result_has_an_entry_per_query_and_head(retrieve, folder):
    whole = retrieve("--k", "20", "--candidates", "0.1")
    results = whole.pop("results")
    assert whole == {
        "index": str(folder / "k.pkv"),
        "queries": str(folder / "q.npy"),
        "n": N,
        "kv_heads": H,
        "query_heads": H * G,
        "k": 20,
        "candidates": 70,
    }
    assert [(e["query"], e["kv_head"]) for e in results] == [
        (q, h) for q in range(M) for h in range(H)
    ]
    for entry in results:
        assert entry["count"] == len(entry["positions"]) == len(entry["scores"]) == 20
        assert len(set(entry["positions"])) == 20
        assert sorted(entry["scores"], reverse=True) == entry["scores"]


def test_hits_are_mostly_the_exact_best(retrieve):
    results = retrieve("--k", "20", "--candidates", "0.3", "--rank", "mean")["results"]
    found = [
        len(set(e["positions"]) & set(exact_best(e["query"], e["kv_head"], 20))) / 20
        for e in results
    ]
    assert np.mean(found) > 0.7  # a random choice finds 20 of 700


def test_all_keys_are_found_where_all_are_wanted(retrieve):
    for entry in retrieve("--k", "5000", "--candidates", "1")["results"]:
        assert sorted(entry["positions"]) == list(range(N))
    assert all(e["count"] == 0 for e in retrieve("--k", "0")["results"])


@pytest.mark.parametrize("index, options", [
    ("k.pkv", ()),
    ("k.pkv", ("--vote-group", "heads")),
    ("paper.pkv", ("--profile", "paper")),
    ("paper.pkv", ("--profile", "paper", "--rho-of", "centroids")),
])  # fmt: skip
def test_select_takes_the_best_votes_and_ties_by_position(retrieve, index, options):
    options = (*options, "--k", "7", "--candidates", "0.05")
    votes = retrieve("--stage", "vote", *options, index=index)
    selected = retrieve("--stage", "select", *options, index=index)
    assert votes["stage"] == "vote"
    for vote, select in zip(votes["results"], selected["results"]):
        assert len(vote["votes"]) == N
        order = np.argsort(-np.array(vote["votes"]), kind="stable")
        assert select["candidates"] == sorted(order[:35].tolist())
        assert "positions" not in select


def test_rerank_orders_the_candidates_by_their_estimates(retrieve):
    options = ("--k", "9", "--candidates", "0.05", "--rank", "mean")
    for entry in retrieve("--stage", "rerank", *options)["results"]:
        estimates = np.array(entry["estimates"], np.float32)
        assert estimates.shape == (G, 35)
        mean = ((estimates[0] + estimates[1]) + estimates[2]) / np.float32(G)
        order = np.argsort(-mean, kind="stable")[:9]
        assert entry["positions"] == [entry["candidates"][i] for i in order]
        assert np.array_equal(np.array(entry["scores"], np.float32), mean[order])


def test_the_stages_give_the_hits_of_the_whole(retrieve):
    whole = retrieve("--k", "9")["results"]
    staged = retrieve("--k", "9", "--stage", "rerank")["results"]
    assert [e["positions"] for e in whole] == [e["positions"] for e in staged]


def test_share_stops_early(retrieve):
    counts = [e["count"] for e in retrieve("--share", "0.5", "--scale", "2")["results"]]
    assert all(1 <= count < 100 for count in counts)
    counts = [e["count"] for e in retrieve("--share", "1e-9", "--k-min", "5")["results"]]
    assert set(counts) == {5}


def test_queries_of_two_axes_are_one_head(cli, tmp_path):
    np.save(tmp_path / "k.npy", KEYS[0])
    (tmp_path / "q.safetensors").write_bytes(
        safetensors_bytes({"q": KEYS[0, :5], "p": KEYS[0, :1]})
    )
    index = tmp_path / "k.pkv"
    cli("encode", tmp_path / "k.npy", "--output", index).succeeds()
    results = cli("retrieve", index, tmp_path / "q.safetensors", "--json", "--k", "1").json[
        "results"
    ]
    assert [e["positions"] for e in results] == [[0], [1], [2], [3], [4]]
    named = cli("retrieve", index, f"{tmp_path}/q.safetensors:p", "--json", "--k", "1").json
    assert [e["positions"] for e in named["results"]] == [[0]]


def test_the_table_has_a_line_per_hit(cli, folder, retrieve):
    text = cli("retrieve", folder / "k.pkv", folder / "q.npy", "--k", "2").succeeds().out
    lines = text.splitlines()
    assert lines[0].split() == ["query", "KV", "head", "rank", "position", "score"]
    assert len(lines) == 1 + M * H * 2
    first = retrieve("--k", "2")["results"][0]
    assert lines[1].split()[:4] == ["0", "0", "0", str(first["positions"][0])]
    votes = cli("retrieve", folder / "k.pkv", folder / "q.npy", "--stage", "vote").succeeds().out
    assert len(votes.splitlines()) == 1 + M * H * N


def test_an_option_the_records_do_not_have_is_refused(cli, folder):
    run = cli("retrieve", folder / "k.pkv", folder / "q.npy", "--rho-of", "centroids")
    run.refuses(2, "rho_of")
    cli("retrieve", folder / "k.pkv", folder / "q.npy", "--stage", "fold").refuses(
        2, "vote, select"
    )
