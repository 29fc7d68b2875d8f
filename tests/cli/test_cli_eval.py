"""pariskv eval: the JSON's form, and its figures against numpy."""

import math
from pathlib import Path

import numpy as np
import pytest
from cli_files import make_trace, safetensors_bytes

FIELDS = [
    "trace", "method", "n", "k", "candidates", "candidate_recall", "recall", "mass", "error",
    "bytes_per_key", "microseconds",
]  # fmt: skip
METHODS = ["paper", "default", "exact", "full", "streaming"]
SINK, LOCAL, K, FIT = 8, 40, 12, 4
ARGUMENTS = ("--sink", SINK, "--local", LOCAL, "--k", K, "--fit-queries", FIT)
TRACES = sorted((Path(__file__).resolve().parents[2] / "data" / "traces").glob("*.safetensors"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace on disk, with its tensors in double."""
    path = tmp_path_factory.mktemp("eval") / "made.up.safetensors"
    tensors, metadata = make_trace(kv_heads=2, group=3, n=900, d=16, dv=24, queries=12)
    path.write_bytes(safetensors_bytes(tensors, metadata))
    return path, {name: array.astype(np.float64) for name, array in tensors.items()}


def evaluate(cli, path, *options):
    run = cli("eval", path, "--json", *ARGUMENTS, *options).succeeds()
    assert run.err == ""
    return {entry["method"]: entry for entry in run.json["results"]}


def softmax_of(tensors, query, head):
    """Weights and logits over the tokens that a query sees, for one query head."""
    position = int(tensors["q_pos"][query])
    keys = tensors["k"][head // 3, : position + 1]
    logits = keys @ tensors["q"][query, head] / math.sqrt(16)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum(), logits


def expected(tensors, method, queries):
    """mass and error of a method that needs no index."""
    masses, errors = [], []
    for query in queries:
        end = int(tensors["q_pos"][query]) + 1
        zone = np.arange(SINK, end - LOCAL)
        for head in range(6):
            kv = head // 3
            weights, _ = softmax_of(tensors, query, head)
            group = sum(softmax_of(tensors, query, 3 * kv + g)[1] for g in range(3))
            best = zone[np.argsort(-group[zone], kind="stable")[:K]]
            keep = np.concatenate([np.arange(SINK), np.arange(end - LOCAL, end)])
            if method == "exact":
                keep = np.concatenate([keep, best])
            if method == "full":
                keep = np.arange(end)
            values = tensors["v"][kv, :end]
            exact = weights @ values
            output = weights[keep] @ values[keep] / weights[keep].sum()
            masses.append(weights[keep].sum())
            errors.append(np.linalg.norm(output - exact) / np.linalg.norm(exact))
    return np.mean(masses), np.mean(errors)


def test_the_json_is_exactly_one_object_of_results(cli, trace):
    path, _ = trace
    whole = cli("eval", path, path, "--json", *ARGUMENTS).succeeds().json
    assert list(whole) == ["results"]
    assert len(whole["results"]) == 2 * len(METHODS)
    assert [entry["method"] for entry in whole["results"]] == 2 * METHODS
    for entry in whole["results"]:
        assert list(entry) == FIELDS
        assert entry["trace"] == "made.up"
        assert (entry["n"], entry["k"]) == (900, K)
        for field in FIELDS[4:]:
            assert isinstance(entry[field], (int, float)), field
        for field in ("candidates", "candidate_recall", "recall", "mass"):
            assert 0 <= entry[field] <= 1
        assert entry["error"] >= 0
        assert entry["microseconds"] > 0


@pytest.mark.parametrize("fit", [0, FIT])
def test_methods_without_an_index_are_those_of_numpy(cli, trace, fit):
    path, tensors = trace
    run = cli("eval", path, "--json", "--sink", SINK, "--local", LOCAL, "--k", K,
              "--fit-queries", fit, "--methods", "exact,full,streaming")  # fmt: skip
    results = {entry["method"]: entry for entry in run.succeeds().json["results"]}
    for method in ("exact", "full", "streaming"):
        mass, error = expected(tensors, method, range(fit, 12))
        # The library attends in fp32 from f16 inputs; numpy in double.
        assert results[method]["mass"] == pytest.approx(mass, abs=1e-9)
        assert results[method]["error"] == pytest.approx(error, abs=1e-5)
    assert (results["exact"]["recall"], results["exact"]["candidate_recall"]) == (1, 1)
    assert (results["full"]["recall"], results["full"]["mass"]) == (1, 1)
    assert (results["streaming"]["recall"], results["streaming"]["candidates"]) == (0, 0)


def test_bytes_per_key_are_records_or_rows(cli, trace):
    results = evaluate(cli, trace[0])
    assert results["full"]["bytes_per_key"] == results["exact"]["bytes_per_key"] == 2 * (16 + 24)
    assert results["streaming"]["bytes_per_key"] == 0
    assert results["default"]["bytes_per_key"] == 2 + 2 + 6 + 2 + (3 + 9 + 2) / 16
    assert results["paper"]["bytes_per_key"] == 2 + 6 + 4


def test_with_every_candidate_and_every_row_it_is_full_attention(cli, trace):
    results = evaluate(cli, trace[0], "--candidates", "1", "--methods", "paper,default,full")
    for method in ("paper", "default"):
        assert results[method]["candidates"] == 1
        assert results[method]["candidate_recall"] == 1
    assert 0.7 < results["paper"]["recall"] < 1  # the order of exact scores, up to rounded keys
    run = cli("eval", trace[0], "--json", "--k", 900, "--fit-queries", FIT)
    for entry in run.succeeds().json["results"]:
        if entry["method"] != "streaming":
            assert entry["recall"] == 1
            assert entry["mass"] == pytest.approx(1)
            assert entry["error"] < 1e-5


def test_the_vote_finds_more_with_more_candidates_and_far_more_than_chance(cli, trace):
    recalls = [
        evaluate(cli, trace[0], "--candidates", share, "--methods", "default")["default"]
        for share in ("0.02", "0.1", "0.3")
    ]
    found = [entry["candidate_recall"] for entry in recalls]
    assert found == sorted(found)
    assert found[1] > 0.3  # chance: 0.1
    assert [entry["candidates"] for entry in recalls] == [0.02, 0.1, 0.3]


def test_the_schedule_of_each_profile_is_its_own(cli, trace):
    path, tensors = trace
    results = evaluate(cli, path)
    zones = tensors["q_pos"][FIT:] + 1 - LOCAL - SINK
    for method, share in (("default", 0.1), ("paper", 0.1)):
        counts = np.minimum(zones, np.maximum(K, np.ceil(zones * share)))
        assert results[method]["candidates"] == pytest.approx(np.mean(counts / zones), rel=1e-12)


def test_shared_options_reach_paper_and_others_do_not(cli, trace):
    path, _ = trace
    base = evaluate(cli, path)
    other = evaluate(cli, path, "--codec", "scalar5", "--tail", "drop", "--vote-group", "heads")
    stable = [field for field in FIELDS if field != "microseconds"]
    for field in stable:
        for method in ("paper", "exact", "full", "streaming"):
            assert base[method][field] == other[method][field]
    assert base["default"]["error"] != other["default"]["error"]
    shared = evaluate(cli, path, "--seed", "5", "--candidates", "0.2")
    assert shared["paper"]["candidates"] == shared["default"]["candidates"] == 0.2
    assert shared["paper"]["candidate_recall"] != base["paper"]["candidate_recall"]


def test_seeds_give_the_mean_over_seeds(cli, trace):
    path, _ = trace
    both = evaluate(cli, path, "--seeds", "3..4")
    alone = [evaluate(cli, path, "--seed", seed) for seed in (3, 4)]
    for method in METHODS:
        for field in ("candidate_recall", "recall", "mass", "error"):
            mean = (alone[0][method][field] + alone[1][method][field]) / 2
            assert both[method][field] == pytest.approx(mean, rel=1e-12), (method, field)


def test_two_runs_give_the_same_figures(cli, trace):
    first, second = evaluate(cli, trace[0]), evaluate(cli, trace[0])
    for method in METHODS:
        first[method].pop("microseconds")
        second[method].pop("microseconds")
    assert first == second


def test_a_zone_without_tokens_is_dense_attention(cli, trace):
    run = cli("eval", trace[0], "--json", "--sink", 500, "--local", 500, "--fit-queries", FIT)
    for entry in run.succeeds().json["results"]:
        assert entry["recall"] is None
        assert entry["candidate_recall"] is None
        assert entry["mass"] == pytest.approx(1)
        assert entry["error"] < 1e-5


def test_without_rows_there_is_nothing_to_recall_but_something_to_attend(cli, trace):
    run = cli("eval", trace[0], "--json", "--k", 0, "--sink", SINK, "--local", LOCAL,
              "--fit-queries", FIT, "--tail", "sketch4", "--candidates", "1")  # fmt: skip
    results = {entry["method"]: entry for entry in run.succeeds().json["results"]}
    assert results["default"]["recall"] is None
    assert results["default"]["mass"] == results["streaming"]["mass"]
    assert results["default"]["error"] < 0.5 * results["streaming"]["error"]


def test_below_the_recall_asked_for_is_exit_code_1_with_the_result(cli, trace):
    run = cli("eval", trace[0], "--json", *ARGUMENTS, "--min-recall", "1", "--candidates", "0.02")
    assert run.code == 1
    assert len(run.json["results"]) == len(METHODS)
    cli("eval", trace[0], *ARGUMENTS, "--min-recall", "0").succeeds()


def test_the_table_has_aligned_columns_and_means(cli, trace):
    path, _ = trace
    lines = cli("eval", path, *ARGUMENTS).succeeds().out.splitlines()
    assert len(lines) == 1 + len(METHODS)
    assert len({line.index(word) for line, word in zip(lines, ["method", *METHODS])}) == 1
    lines = cli("eval", path, path, *ARGUMENTS, "--methods", "full").succeeds().out.splitlines()
    assert [line.split()[0] for line in lines] == ["trace", "made.up", "made.up", "mean"]


def test_queries_need_not_come_in_order(cli, trace, tmp_path):
    path, tensors = trace
    order = [0, 1, 2, 3, *range(11, 3, -1)]
    shuffled = {name: array for name, array in make_trace(dv=24)[0].items()}
    shuffled["q"] = shuffled["q"][order]
    shuffled["q_pos"] = shuffled["q_pos"][order]
    other = tmp_path / "shuffled.safetensors"
    other.write_bytes(safetensors_bytes(shuffled, make_trace(dv=24)[1]))
    assert np.array_equal(tensors["q_pos"][order], shuffled["q_pos"])
    first, second = evaluate(cli, path), evaluate(cli, other)
    for method in METHODS:
        for field in ("candidate_recall", "recall", "mass", "error"):
            assert first[method][field] == pytest.approx(second[method][field], rel=1e-9)


def test_metadata_may_be_missing(cli, trace, tmp_path):
    tensors, _ = make_trace(dv=24)
    bare = tmp_path / "made.up.safetensors"
    bare.write_bytes(safetensors_bytes(tensors))
    first, second = evaluate(cli, trace[0]), evaluate(cli, bare)
    assert first["exact"]["mass"] == second["exact"]["mass"]


@pytest.mark.skipif(not TRACES, reason="data/traces is not there")
def test_on_the_shipped_traces_default_beats_paper(cli):
    results = cli("eval", *TRACES, "--json", "--methods", "paper,default,streaming").succeeds().json
    by = {(e["trace"], e["method"]): e for e in results["results"]}
    for path in TRACES:
        paper, default = by[path.stem, "paper"], by[path.stem, "default"]
        assert default["candidate_recall"] > paper["candidate_recall"]
        assert default["error"] < paper["error"] < by[path.stem, "streaming"]["error"]
        assert default["bytes_per_key"] < paper["bytes_per_key"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_decode_is_as_good_as_a_codec_fitted_at_each_step(cli, path):
    arguments = ("--decode", "--prefill", 1700, "--methods", "default,full", "--candidates", 0.05)
    run = cli("eval", path, "--json", *arguments).succeeds()
    results = {entry["method"]: entry for entry in run.json["results"]}
    assert list(results) == ["default", "fresh", "full"]
    assert results["full"]["error"] < 1e-3
    for figure in ("candidate_recall", "recall"):
        assert abs(results["default"][figure] - results["fresh"][figure]) <= 0.03
    assert results["default"]["error"] < 0.3
    for drifted, fresh in zip(results["default"]["windows"], results["fresh"]["windows"]):
        assert abs(drifted["candidate_recall"] - fresh["candidate_recall"]) <= 0.05  # few queries


def test_decode_tells_figures_over_time(cli, trace):
    path, tensors = trace
    arguments = (*ARGUMENTS, "--decode", "--prefill", 200, "--window", 150, "--methods",
                 "default,exact")  # fmt: skip
    results = cli("eval", path, "--json", *arguments).succeeds().json["results"]
    positions = np.sort(tensors["q_pos"][FIT:]).astype(int)
    numbers, counts = np.unique((positions - 200) // 150, return_counts=True)
    assert len(numbers) > 1
    for entry in results:
        assert list(entry) == [*FIELDS, "windows"]
        windows = entry["windows"]
        assert [w["begin"] for w in windows] == [200 + 150 * n for n in numbers]
        assert [w["end"] for w in windows] == [350 + 150 * n for n in numbers]
        assert [w["queries"] for w in windows] == counts.tolist()
        for figure in ("candidate_recall", "recall", "error"):
            means = [w[figure] for w in windows if w[figure] is not None]
            weights = [w["queries"] for w in windows if w[figure] is not None]
            assert np.average(means, weights=weights) == pytest.approx(entry[figure], abs=1e-12)
    table = cli("eval", path, *arguments).succeeds().out
    assert f"{200 + 150 * numbers[0]} - {350 + 150 * numbers[0]}" in table


@pytest.mark.parametrize(
    "options, text",
    [
        (("--prefill", 5), "--prefill=5: applies with --decode"),
        (("--window", 5), "--window=5: applies with --decode"),
        (("--decode", "--window", 0), "--window=0"),
        (("--decode", "--prefill", 4000), "--prefill=4000: accepted are 0.."),
    ],
)
def test_prefill_and_window_are_refused_without_decode_and_out_of_range(cli, trace, options, text):
    cli("eval", trace[0], "--json", *ARGUMENTS, *options).refuses(2, text)
