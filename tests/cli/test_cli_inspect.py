"""pariskv inspect: figures of a trace per KV head, and what an index file holds."""

import numpy as np
import pytest
from cli_files import make_trace, safetensors_bytes

ARGUMENTS = ("--sink", 8, "--local", 40, "--k", 12, "--fit-queries", 4)
FIGURES = {
    "kv_head", "n", "candidate_recall", "recall", "tied_votes", "cosine", "norm_min", "norm_mean",
    "norm_max", "balance_min", "balance_max", "patterns_used", "largest_pattern",
}  # fmt: skip


@pytest.fixture
def inspect(cli, tmp_path):
    def run(*options, change=None, **kwargs):
        tensors, metadata = make_trace(**kwargs)
        if change is not None:
            change(tensors)
        path = tmp_path / "t.safetensors"
        path.write_bytes(safetensors_bytes(tensors, metadata))
        return tensors, cli("inspect", path, "--json", *ARGUMENTS, *options).succeeds().json[
            "heads"
        ]

    return run


def test_figures_of_the_keys_are_those_of_numpy(inspect):
    tensors, heads = inspect()
    end = int(tensors["q_pos"][-1]) + 1 - 40
    assert [head["kv_head"] for head in heads] == [3, 4]
    for i, head in enumerate(heads):
        assert set(head) == FIGURES
        assert head["n"] == end - 8
        keys = tensors["k"][i, 8:end].astype(np.float64)
        norms = np.linalg.norm(keys, axis=1)
        assert head["norm_min"] == pytest.approx(norms.min())
        assert head["norm_mean"] == pytest.approx(norms.mean())
        assert head["norm_max"] == pytest.approx(norms.max())
        units = keys / norms[:, None]
        pairs = units @ units.T
        n = len(keys)
        assert head["cosine"] == pytest.approx((pairs.sum() - n) / (n * (n - 1)))
        assert 0 < head["patterns_used"] <= 1
        assert 0 < head["largest_pattern"] <= 1
        assert 1 / 16 <= head["balance_min"] <= head["balance_max"] <= 16


def test_recalls_are_those_of_eval(cli, inspect, tmp_path):
    _, heads = inspect("--candidates", "0.1")
    path = tmp_path / "t.safetensors"
    run = cli("eval", path, "--json", *ARGUMENTS, "--candidates", "0.1", "--methods", "default")
    (result,) = run.succeeds().json["results"]
    for field in ("candidate_recall", "recall"):
        assert np.mean([head[field] for head in heads]) == pytest.approx(result[field])


def test_tied_votes_are_seen(inspect):
    def make_equal(tensors):
        tensors["k"][0] = tensors["k"][0, 0]  # head 0: one key, many times
        tensors["k"][1, 1::2] = tensors["k"][1, 0::2]  # head 1: pairs

    _, heads = inspect(change=make_equal)
    assert heads[0]["tied_votes"] == 1
    assert 0 < heads[1]["tied_votes"] < 0.2
    assert heads[0]["cosine"] == pytest.approx(1)
    assert heads[0]["largest_pattern"] == 1
    _, heads = inspect()
    assert heads[0]["tied_votes"] < 0.01
    # Tier votes are small integers.
    _, heads = inspect("--profile", "paper", "--candidates", "0.05")
    assert heads[0]["tied_votes"] > 0.02


def test_the_table_has_a_line_per_head(cli, inspect, tmp_path):
    inspect()
    text = cli("inspect", tmp_path / "t.safetensors", *ARGUMENTS).succeeds().out
    lines = text.splitlines()
    assert len(lines) == 3
    assert "tied votes" in lines[0]
    assert len({len(line) for line in lines}) == 1


def test_a_zone_without_tokens_has_no_figures(cli, inspect, tmp_path):
    inspect()
    run = cli("inspect", tmp_path / "t.safetensors", "--json", "--sink", 900, "--fit-queries", 4)
    for head in run.succeeds().json["heads"]:
        assert head["n"] == 0
        assert head["recall"] is None


def test_an_index_file_shows_header_sections_geometry_and_heads(cli, tmp_path):
    np.save(
        tmp_path / "k.npy", np.random.default_rng(1).normal(size=(2, 500, 64)).astype(np.float16)
    )
    path = tmp_path / "k.pkv"
    cli("encode", tmp_path / "k.npy", "--output", path, "--seed", "77").succeeds()
    index = cli("inspect", path, "--json").succeeds().json
    assert index["checksums"] == "ok"
    assert index["format_version"] == 1
    assert index["bytes"] == path.stat().st_size
    assert (index["tokens"], index["sequences"], index["bytes_per_key"]) == (500, 1, 36)
    assert index["geometry"]["seed"] == "77"
    assert index["geometry"]["head_dim"] == "64"
    sizes = {section["type"]: section["bytes"] for section in index["sections"]}
    assert sizes["GEOM"] == 88
    assert sizes["SIGN"] == 2 * 500 * 8
    assert [(head["kv_head"], head["n"]) for head in index["heads"]] == [(0, 500), (1, 500)]
    assert all(head["patterns_used"] > 0.5 for head in index["heads"])
    text = cli("inspect", path).succeeds().out
    assert "checksums ok" in text
    assert "SIGN" in text
