"""python -m bench.peers: a tiny run, and what its parts promise. Needs no quiet machine: no times
are judged. PARISKV_LIBRARY names the library; torch and FAISS come from bench/requirements.txt."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))

from bench import peers  # noqa: E402
from bench.compare import capi, measure, options, report  # noqa: E402

FIELDS = (
    "backend stage n batch kv_heads query_heads head_dim k candidates profile dtype tail rows cold "
    "threads min_us median_us max_us bytes"
).split()
REQUIREMENTS = "not installed (bench/requirements.txt)"
relaxed = settings(deadline=None, max_examples=40)
times = st.lists(st.floats(1e-3, 1e9), min_size=1)


@pytest.fixture(scope="module")
def library():
    pytest.importorskip("torch", reason=f"torch is {REQUIREMENTS}")
    path = capi.library_path()
    if not path.is_file():
        pytest.skip(f"{path} is not built (PARISKV_LIBRARY names the library)")
    opened = capi.Library(path, "cpu_ref")
    yield opened
    opened.close()


@pytest.fixture
def small_sweep(library, monkeypatch):
    from bench.compare import room

    monkeypatch.setattr(room, "LARGEST_SWEEP", 1 << 16)


# ---- Turns ---------------------------------------------------------------------------


@settings(relaxed, max_examples=8)
@given(st.integers(1, 5), st.integers(1, 6))
def test_methods_take_turns_and_the_first_round_is_not_timed(count, repeat):
    log = []
    methods = [
        measure.Method({"method": str(i)}, lambda turn, i=i: log.append((turn, i)))
        for i in range(count)
    ]
    measure.take_turns(methods, repeat)
    assert log == [(turn, i) for turn in range(repeat + 1) for i in range(count)]
    assert all(len(method.times) == repeat for method in methods)


def test_what_precedes_a_turn_and_its_pilots_are_not_timed():
    now = [0]

    def spend(nanoseconds):
        now[0] += nanoseconds

    method = measure.Method(
        {"method": "m"}, lambda turn: spend(7000 + turn), pilot=lambda: spend(100_000)
    )
    measure.take_turns([method], 3, before=lambda: spend(10**6), clock=lambda: now[0])
    assert method.times == [7.001, 7.002, 7.003]
    assert now[0] == 4 * (10**6 + measure.PILOTS * 100_000 + 7000) + 1 + 2 + 3


@relaxed
@given(times)
def test_a_summary_is_ordered_and_ends_in_what_was_seen(values):
    figures = measure.summary(values)
    assert figures["min_us"] <= figures["median_us"] <= figures["max_us"]
    assert figures["min_us"] == round(min(values), 3)
    assert figures["max_us"] == round(max(values), 3)


def test_the_last_level_cache_is_the_largest(tmp_path):
    for i, text in enumerate(("48K", "2M", "512K")):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(text + "\n")
    assert measure.last_level_cache(tmp_path) == 2 << 20
    assert measure.last_level_cache(tmp_path / "none") == 32 << 20


# ---- Results -------------------------------------------------------------------------


def result(method, values, work):
    return {"method": method, "work": work, "backend": "b", "bytes": None} | measure.summary(values)


@relaxed
@given(times, times, st.integers(1, 10**9), st.integers(1, 64))
def test_ratios_are_per_key_and_query(ours, others, keys, queries):
    results = [
        result("step", ours, keys) | {"is_baseline": True},
        result("peer", others, keys * queries),
    ]
    report.add_ratios(results)
    first, second = results
    assert first["min_x_ours"] == first["median_x_ours"] == 1
    want = second["median_us"] / first["median_us"] / queries
    assert second["median_x_ours"] == pytest.approx(want, rel=1e-9, abs=6e-4)  # 3 decimals
    assert "min_x_read" not in first and "is_baseline" not in first


def test_the_table_orders_by_ratio_and_has_a_line_for_each():
    results = [
        result("step", [10.0, 20.0], 1) | {"is_baseline": True},
        result("slow", [90.0], 1),
        result("read", [5.0], 1),
        result("many", [90.0], 8),
    ]
    report.add_ratios(results)
    lines = report.table(results)
    assert [line.split()[0] for line in lines] == ["method", "read", "many", "step", "slow"]
    assert results[1]["median_x_read"] == 18


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "out.json"
    report.write(target, "old\n")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "fsync", fail)
    with pytest.raises(OSError):
        report.write(target, "new\n")
    assert target.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [target]


# ---- Command line --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--n", "64"], "'64', accepted: 128..16777216"),
        (["--n", "4096,many"], "'many', accepted: 128..16777216"),
        (["--candidates", "0"], "'0', accepted: 1e-06..1"),
        (["--candidates", "nan"], "'nan', accepted: 1e-06..1"),
        (["--n", "4096,8192,16384", "--candidates", "0.1,0.2"], "2 shares, accepted: 1 or 3"),
        (["--threads", "0"], "'0', accepted: 1..1024"),
        (["--repeat", "1.5"], "'1.5', accepted: 1..100000"),
        (["--methods", "step,torch,annoy"], "'annoy', accepted: all, ours, torch, faiss, step"),
        (["--json", "/nowhere/at/all.json"], "no folder /nowhere/at"),
    ],
)
def test_bad_options_are_refused_with_the_value_and_what_is_accepted(arguments, text, capsys):
    with pytest.raises(SystemExit) as error:
        peers.main(arguments)
    assert error.value.code == 2
    captured = capsys.readouterr()
    assert text in captured.err and captured.out == ""


def test_an_output_that_exists_is_replaced_only_by_force(tmp_path, capsys):
    target = tmp_path / "out.json"
    target.write_text("kept")
    with pytest.raises(SystemExit) as error:
        peers.main(["--json", str(target)])
    assert error.value.code == 2 and "--force" in capsys.readouterr().err
    assert options.parse(["--json", str(target), "--force"], "about").force


def test_a_share_for_each_n():
    def parsed(*arguments):
        return options.parse(list(arguments), "about").candidates

    assert parsed() == [0.05, 0.02, 0.01]
    assert parsed("--n", "4096,8192", "--candidates", "0.3") == [0.3, 0.3]
    assert parsed("--n", "4096,8192", "--candidates", "0.3,0.4") == [0.3, 0.4]


def test_a_missing_library_or_backend_is_unavailable(library, tmp_path, capsys):
    assert peers.main(["--library", str(tmp_path / "lib.so")]) == 4
    assert "lib.so is not there" in capsys.readouterr().err
    assert peers.main(["--backend", "none_such"]) == 4
    assert "none_such" in capsys.readouterr().err


# ---- Ours and torch ------------------------------------------------------------------


def test_candidates_are_counted_as_the_library_counts(library):
    import ctypes

    ours = pytest.importorskip("bench.compare.ours")

    @relaxed
    @given(st.integers(0, 1 << 24), st.floats(1e-6, 1), st.integers(0, 2000))
    def check(n, share, k):
        rule, out = capi.CandidateRule(k=k, steps=1), capi.I64()
        rule.below[0], rule.ppm[0] = 2**63 - 1, ours.ppm_of(share)
        library.call("pkv_candidate_count", ctypes.byref(rule), capi.I64(n), ctypes.byref(out))
        assert ours.candidate_count(n, share, k) == out.value

    check()


@relaxed
@given(st.integers(128, 1 << 24), st.integers(1, 64), st.floats(0.1, 512))
def test_layers_fit_into_memory(n, wanted, gib):
    pytest.importorskip("torch", reason=f"torch is {REQUIREMENTS}")
    from bench.compare import section

    room = gib * section.GIB
    count = section.layer_count(n, wanted, room)
    assert 1 <= count <= wanted
    assert count == 1 or count * section.layer_bytes(n) <= room
    assert count == wanted or (count + 1) * section.layer_bytes(n) > room


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["matmul", "sdpa"])
def test_attention_of_torch_is_full_attention(form, dtype):
    """bf16 rounds weights and output, each by 2^-8 of itself: less than .02 of the largest."""
    torch = pytest.importorskip("torch", reason=f"torch is {REQUIREMENTS}")
    from bench.compare import context, torch_attention

    kind = getattr(torch, dtype)
    layers = [context.make_context(300, seed) for seed in (1, 2)]
    queries = context.make_queries(3, seed=3)
    pairs = [(layer.keys.to(kind), layer.values.to(kind)) for layer in layers]
    attention = torch_attention.Attention(form, pairs, queries)
    for turn in range(3):
        wanted = torch_attention.reference(layers[turn % 2], queries[turn, 0])
        error = (attention.run(turn).float() - wanted).abs().max() / wanted.abs().max()
        assert error < (1e-4 if dtype == "float32" else 0.02)


def test_a_step_that_fetches_every_key_is_full_attention(library):
    from bench.compare import ours, torch_attention

    assert ours.step_error(library, torch_attention.reference, n=256) < 1e-4


def test_a_step_that_is_wrong_ends_the_run(small_sweep, monkeypatch, capsys, tmp_path):
    from bench.compare import ours

    class WrongStep(ours.StepMethod):
        def run(self, turn):
            return super().run(turn) * 1.02

    monkeypatch.setattr(ours, "StepMethod", WrongStep)
    target = tmp_path / "out.json"
    arguments = ["--backend", "cpu_ref", "--threads", "1", "--json", str(target)]
    assert peers.main(arguments) == 1
    assert "accepted: 0.01" in capsys.readouterr().err
    assert not target.exists()


# ---- FAISS ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faiss_search():
    pytest.importorskip("torch", reason=f"torch is {REQUIREMENTS}")
    pytest.importorskip("faiss", reason=f"faiss-cpu is {REQUIREMENTS}")
    from bench.compare import faiss_search

    return faiss_search


def test_recall_is_the_share_of_the_best_that_was_found(faiss_search):
    found = [[0, 1, 2, 3, -1], [7, 8, 9, 4, 5]]
    assert faiss_search.recall(found, [[0, 1], [7, 6]]) == 0.75


@pytest.mark.parametrize("kind", options.FAISS)
def test_every_kind_finds_more_than_chance(faiss_search, kind):
    """100 of 2048 keys by chance hold .05 of the best."""
    if reason := faiss_search.missing(kind):
        pytest.skip(reason)
    import numpy as np

    random = np.random.default_rng(5)
    keys = random.standard_normal((2048, 128)).astype(np.float32)
    queries = random.standard_normal((2, 4, 128)).astype(np.float32)
    index = faiss_search.KINDS[kind].build(keys, 100)
    search = faiss_search.Search(index, queries, 100, 1)
    for turn in range(2):
        value = faiss_search.recall(search.run(turn), faiss_search.best_keys(keys, queries[turn]))
        assert value == 1 if kind == "flat" else value > 0.15


def test_heads_are_searched_each_in_its_own_keys(faiss_search):
    import numpy as np

    random = np.random.default_rng(6)
    keys = random.standard_normal((5, 256, 128)).astype(np.float32)
    queries = random.standard_normal((2, 5, 128)).astype(np.float32)
    indices = [faiss_search.KINDS["flat"].build(part, 3) for part in keys]
    found = faiss_search.HeadSearch(indices, queries, 3, threads=2).run(1)
    scores = np.einsum("hd,hnd->hn", queries[1], keys)
    assert np.array_equal(found, np.argsort(-scores, axis=1)[:, :3])


# ---- The whole -----------------------------------------------------------------------


def test_a_tiny_run_says_all_that_results_have_to_say(small_sweep, tmp_path, capsys):
    target = tmp_path / "out.json"
    arguments = "--backend cpu_ref --threads 1 --n 512 --candidates 0.25 --repeat 2 --pause 0"
    arguments = [*arguments.split(), "--methods", "ours,torch", "--json", str(target)]
    assert peers.main(arguments) == 0
    document = json.loads(target.read_text())
    assert {"device", "command", "date", "results", "left_out", "versions"} <= set(document)
    assert document["command"].startswith("python -m bench.peers --backend cpu_ref --threads 1")
    results = {result["method"]: result for result in document["results"]}
    for entry in document["results"]:
        assert set(FIELDS) <= set(entry)
        assert 0 < entry["min_us"] <= entry["median_us"] <= entry["max_us"]
        assert entry["runs"] == 2 and entry["cold"] is True
        assert {"min_x_ours", "median_x_ours", "min_x_read", "median_x_read"} <= set(entry)
    stages = {name: entry["stage"] for name, entry in results.items()}
    assert stages["step"] == "step" and stages["vote+select"] == "vote+select"
    assert all(stages[name] == "full_attention" for name in options.TORCH)
    assert results["step"]["backend"] == results["retrieve"]["backend"] == "cpu_ref"
    assert results["retrieve"]["bytes"] == 8 * 512 * 18
    table = capsys.readouterr().out
    assert all(name in table for name in results)


def test_a_tiny_run_has_every_kind_of_search(small_sweep, faiss_search, tmp_path, capsys):
    target = tmp_path / "out.json"
    arguments = "--backend cpu_ref --threads 1 --n 512 --candidates 0.25 --repeat 1 --pause 0"
    arguments += f" --hnsw-limit 600 --methods faiss,vote+select --json {target}"
    assert peers.main(arguments.split()) == 0
    document = json.loads(target.read_text())
    methods = {entry["method"]: entry for entry in document["results"]}
    kinds = [kind for kind in options.FAISS if not faiss_search.missing(kind)]
    for kind in kinds:
        assert f"{kind} 8 x 512" in methods
        if kind != "hnsw":
            assert methods[f"{kind} 1 x 4096, 8 q"]["work"] == 8 * 4096
    assert {"method": "hnsw 1 x 4096", "n": 512}.items() <= document["left_out"][-1].items()
    assert methods["flat 8 x 512"]["candidate_recall"] == 1
    for found in ("retrieve 8 q", "candidates", "candidates 8 q", "vote+select"):
        assert methods[found]["candidate_recall"] == methods["retrieve"]["candidate_recall"]
    assert methods["candidates 8 q"]["work"] == 8 * 8 * 512
    assert methods["candidates"]["k"] == 0
    assert methods["retrieve"]["candidate_recall"] > 0.6  # a quarter of the keys by chance: .25
    assert "step" not in methods
    capsys.readouterr()


def test_a_search_that_is_too_large_is_left_out_with_its_reason(small_sweep, tmp_path, capsys):
    target = tmp_path / "out.json"
    arguments = (
        "--backend cpu_ref --threads 1 --n 512 --repeat 1 --search-limit 500 --methods faiss"
    )
    assert peers.main([*arguments.split(), "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["results"] == []
    [entry] = document["left_out"]
    assert entry == {"method": "search", "n": 512, "reason": "above --search-limit 500"}
    assert "left out: search, n = 512" in capsys.readouterr().out
