"""python -m bench.quality: the command, its files, and its figures beside those of `pariskv eval`
(PARISKV_LIBRARY and PARISKV_CLI name library and program)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rules_data import ROOT, np, safetensors, trace_arrays

from bench import quality
from bench.rules import presets, registry, report, stats, trace

SHIPPED = sorted((ROOT / "data" / "traces").glob("*.safetensors"))
CLI = Path(os.environ.get("PARISKV_CLI", ROOT / "build" / "dev" / "bin" / "pariskv"))
NUMPY = (
    "full,exact,streaming,quest,snapkv,h2o,magicpig:bits=4:tables=20,shadowkv:rank=8,kivi:group=8"
)
SMALL = ["--k", "8", "--sink", "4", "--local", "16", "--fit-queries", "4"]


@pytest.fixture
def small_trace(tmp_path):
    path = tmp_path / "small.safetensors"
    path.write_bytes(safetensors({"layer": "3", "kv_heads": "[5, 9]"}, **trace_arrays()))
    return path


def results_of(tmp_path, *arguments):
    target = tmp_path / "out.json"
    assert quality.main([*map(str, arguments), "--json", str(target), "--force"]) == 0
    return json.loads(target.read_text())


# ---- Ours beside pariskv eval ----------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_our_rows_are_those_of_eval(pariskv, path, tmp_path):
    """Recall and mass are counted alike; outputs are the library's float32 ones on both sides, but
    for full and exact, which are in float64 here."""
    if not CLI.is_file():
        pytest.skip(f"{CLI} is not built (PARISKV_CLI names the program)")
    methods = "paper,default,exact,full,streaming"
    command = [CLI, "eval", path, "--methods", methods, "--json"]
    evaluated = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    wanted = {entry["method"]: entry for entry in evaluated["results"]}
    document = results_of(tmp_path, path, "--methods", methods)
    assert document["left_out"] == []
    assert {entry["method"] for entry in document["results"]} == set(wanted)
    for entry in document["results"]:
        other = wanted[entry["method"]]
        assert entry["trace"] == other["trace"] and entry["n"] == other["n"]
        for name in ("candidate_recall", "recall"):
            assert entry[name]["mean"] == pytest.approx(other[name], rel=1e-6), name
        assert entry["mass"]["mean"] == pytest.approx(other["mass"], abs=1e-6)
        assert entry["error"]["mean"] == pytest.approx(other["error"], abs=2e-6, rel=1e-4)
        if entry["method"] in ("paper", "default"):
            assert entry["device_bytes_per_key"] == pytest.approx(other["bytes_per_key"])


def test_bytes_of_a_step_of_ours_are_those_of_the_records(pariskv, tmp_path):
    """d = 128, scalar4, graded: scan 18 B a key, records of 66 B, sketches of 66 B."""
    path = next(path for path in SHIPPED if "l13" in path.name)
    methods = "default:tail=drop:candidates=0.1,default:candidates=0.1,paper:candidates=0.1"
    entries = results_of(tmp_path, path, "--methods", methods)["results"]
    one = trace.load(path)
    zones = [int(p) + 1 - 640 for p in one.positions[64:]]
    candidates = [max(100, int(np.ceil(zone * 0.1))) for zone in zones]
    drop, sampled, paper = [
        np.mean([zone * scan + count * record + rest for zone, count in zip(zones, candidates)])
        for scan, record, rest in ((18, 66, 0), (18, 66, 0), (16, 96, 16384))
    ]
    samples = np.mean([min(512, -(-zone // 16)) for zone in zones]) * (66 + 66) + 4 * 128
    for entry, wanted in zip(entries, (drop, sampled + samples, paper)):
        assert entry["device_bytes"]["mean"] == pytest.approx(wanted, rel=1e-6)
        assert entry["host_bytes"]["mean"] == 100 * 512


def test_an_unknown_option_of_ours_is_usage(pariskv, capsys):
    with pytest.raises(SystemExit) as stop:
        quality.main([str(SHIPPED[0]), "--methods", "default:bogus=1"])
    assert stop.value.code == 2
    assert "no option 'bogus', accepted: " in capsys.readouterr().err


# ---- The whole -------------------------------------------------------------------------


def test_a_run_says_all_that_results_have_to_say(small_trace, tmp_path, capsys):
    document = results_of(tmp_path, small_trace, "--methods", NUMPY, "--budget", "4,32", *SMALL)
    assert {"device", "command", "date", "versions", "results", "left_out"} <= set(document)
    labels = [entry["setting"] for entry in document["results"]]
    assert labels[:3] == ["full", "exact", "streaming"] and "quest@32" in labels
    assert len(labels) == len(set(labels))
    for entry in document["results"]:
        assert entry["trace"] == "small" and entry["layer"] == "3" and entry["queries"] == 8
        assert [head["kv_head"] for head in entry["heads"]] == [5, 9]
        for name in ("mass", "error", "device_bytes"):
            figure = entry[name]
            assert figure["low"] <= figure["mean"] <= figure["high"]
            heads = [head[name]["mean"] for head in entry["heads"]]
            assert figure["mean"] == pytest.approx(np.mean(heads))
    table = capsys.readouterr().out
    assert all(label in table for label in labels)
    assert quality.main(["--show", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out == table


def test_several_k_and_traces_are_averaged_where_all_have_them(small_trace, tmp_path, capsys):
    other = tmp_path / "other.safetensors"
    other.write_bytes(safetensors(**trace_arrays(n=200, seed=8)))
    arguments = [small_trace, other, "--methods", "exact,streaming", *SMALL, "--k", "4,8"]
    document = results_of(tmp_path, *arguments)
    keys = [(entry["trace"], entry["setting"], entry["k"]) for entry in document["results"]]
    assert keys[:3] == [("small", "exact", 4), ("small", "streaming", 4), ("small", "exact", 8)]
    averages = {
        (entry["setting"], entry["k"]): entry for entry in report.means(document["results"])
    }
    errors = [
        e["error"]["mean"] for e in document["results"] if (e["setting"], e["k"]) == ("exact", 8)
    ]
    assert len(errors) == 2
    assert averages["exact", 8]["error"]["mean"] == pytest.approx(np.mean(errors))
    capsys.readouterr()


def test_results_of_several_runs_are_shown_as_one(small_trace, tmp_path, capsys):
    results_of(tmp_path, small_trace, "--methods", "full,quest", *SMALL)
    (tmp_path / "out.json").rename(tmp_path / "first.json")
    results_of(tmp_path, small_trace, "--methods", "quest,h2o", *SMALL)
    capsys.readouterr()
    files = [str(tmp_path / name) for name in ("first.json", "out.json")]
    assert quality.main(["--show", *files]) == 0
    shown = capsys.readouterr().out
    lines = [line.split()[:2] for line in shown.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["small"]] == ["full", "quest", "h2o"]
    runs = {"device": "d", "runs": [json.loads(Path(file).read_text()) for file in files]}
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    assert quality.main(["--show", str(tmp_path / "runs.json")]) == 0
    assert capsys.readouterr().out == shown


def test_a_rule_without_its_library_is_left_out_and_says_so(
    small_trace, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    document = results_of(tmp_path, small_trace, "--methods", "full,pqcache,default", *SMALL)
    assert [entry["setting"] for entry in document["results"]] == ["full"]
    reasons = {entry["setting"]: entry["reason"] for entry in document["left_out"]}
    assert set(reasons) == {"pqcache", "default"}
    assert all("is not installed" in reason for reason in reasons.values())
    assert "left out: pqcache: faiss is not installed" in capsys.readouterr().out


def test_a_setting_that_a_trace_cannot_have_is_left_out(small_trace, tmp_path, capsys):
    document = results_of(tmp_path, small_trace, "--methods", "full,shadowkv", *SMALL)
    [entry] = document["left_out"]
    assert entry["trace"] == "small" and "rank=64 is above head_dim 16" in entry["reason"]
    capsys.readouterr()


def test_without_fit_queries_all_judge(small_trace, tmp_path, capsys):
    arguments = [small_trace, "--methods", "full,h2o,snapkv,quest", *SMALL, "--fit-queries", "0"]
    assert {entry["queries"] for entry in results_of(tmp_path, *arguments)["results"]} == {12}
    capsys.readouterr()


# ---- Folders and processes ---------------------------------------------------------------


def without_times(entries):
    return [
        {name: value for name, value in entry.items() if name not in ("build_s", "python_us")}
        for entry in entries
    ]


def test_processes_find_what_one_finds(small_trace, tmp_path, capsys):
    """A folder of two traces, two k, a setting that fits neither: same results, same order."""
    folder = tmp_path / "traces"
    folder.mkdir()
    small_trace.rename(folder / "small.safetensors")
    (folder / "other.safetensors").write_bytes(safetensors(**trace_arrays(n=200, seed=8)))
    methods = "full,shadowkv:rank=8,exact,quest,kivi:group=8,shadowkv,h2o,kivi:group=8:bits=4"
    arguments = [folder, "--methods", methods, *SMALL, "--k", "4,8"]
    alone = results_of(tmp_path, *arguments)
    shared = results_of(tmp_path, *arguments, "--jobs", "2")
    assert {entry["trace"] for entry in alone["results"]} == {"small", "other"}
    assert len(alone["results"]) == 2 * (7 + 4)  # full and kivi do not take k
    assert without_times(shared["results"]) == without_times(alone["results"])
    key = lambda entry: (entry["trace"], entry["setting"], entry["reason"])  # noqa: E731
    assert sorted(map(key, shared["left_out"])) == sorted(map(key, alone["left_out"]))
    assert len(shared["left_out"]) == 4 and "rank=64 is above" in shared["left_out"][0]["reason"]
    capsys.readouterr()


def test_after_the_minutes_what_was_not_begun_is_named(small_trace, tmp_path, capsys):
    arguments = [small_trace, "--methods", "full,quest,kivi:group=8", *SMALL]
    document = results_of(tmp_path, *arguments, "--jobs", "2", "--minutes", "0")
    assert document["results"] == []
    left = {entry["setting"]: entry["reason"] for entry in document["left_out"]}
    assert left == dict.fromkeys(["full", "quest", "kivi:group=8"], "no time left")
    capsys.readouterr()


def test_a_setting_that_fails_does_not_take_others_with_it(small_trace, monkeypatch):
    from bench.rules import harness, jobs, quest

    def breaks(self, *_):
        raise ArithmeticError("broken on purpose")

    monkeypatch.setattr(quest.Quest, "select", breaks)
    settings = registry.parse_settings("full,quest,streaming")
    job = jobs.Job(str(small_trace), 256, harness.Setup(8, 4, 16, 4), settings, first=10)
    outcome = jobs.work(job)
    placed = [(place, result["setting"]) for place, result in jobs.placed(job, outcome)]
    assert placed == [(10, "full"), (12, "streaming")]
    [left] = outcome[1]
    assert left["setting"] == "quest" and left["reason"] == "ArithmeticError: broken on purpose"


def test_an_empty_folder_is_no_input(tmp_path, capsys):
    assert quality.main([str(tmp_path)]) == 3
    assert "no trace, accepted: a folder of .safetensors files" in capsys.readouterr().err


def test_presets_name_each_setting_once_per_k():
    for parts in presets.PRESETS.values():
        found = [
            (setting.label, k)
            for part in parts
            for setting in registry.parse_settings(part.methods)
            for k in part.k
        ]
        assert len(found) == len(set(found))
        assert {label.partition(":")[0] for label, _ in found} == set(registry.RULES)


# ---- Usage -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "accepted: TRACE.., or --show FILE.."),
        (["t", "--methods", "full,sparse"], "sparse: accepted are full, exact, streaming, quest"),
        (["t", "--methods", "quest:size=3"], "no parameter 'size', accepted: page"),
        (["t", "--methods", "quest:page=0"], "quest:page=0, accepted: 1..4096"),
        (["t", "--methods", "quest:page=x"], "quest:page=x, accepted: 1..4096"),
        (["t", "--methods", "quest:page"], "'page', accepted: NAME=VALUE"),
        (["t", "--methods", "full:a=1"], "no parameter 'a', accepted: none"),
        (["t", "--methods", "full,full"], "full is given twice"),
        (["--show", "r.json", "--json", "-"], "--json: accepted with TRACE.."),
        (["t", "--k", "0"], "'0', accepted: 1..65536"),
        (["t", "--json", "/nowhere/at/all.json"], "no folder /nowhere/at"),
    ],
)
def test_bad_options_are_refused_with_what_is_accepted(arguments, text, capsys):
    with pytest.raises(SystemExit) as stop:
        quality.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert text in captured.err and captured.out == ""


def test_fit_queries_leave_some_to_judge(small_trace, capsys):
    with pytest.raises(SystemExit) as stop:
        quality.main([str(small_trace), "--fit-queries", "12"])
    assert stop.value.code == 2
    assert "--fit-queries 12, accepted: 0..11" in capsys.readouterr().err


def test_the_module_runs_as_a_program(small_trace):
    command = [sys.executable, "-m", "bench.quality", str(small_trace), "--methods", "full", *SMALL]
    done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["method"] == "full"
    assert "small" in done.stderr


# ---- Statistics and tables ---------------------------------------------------------------


def test_an_interval_covers_the_mean_about_19_times_of_20():
    random = np.random.default_rng(2)
    found = [stats.summary(random.exponential(size=100)) for _ in range(200)]
    covered = sum(figure["low"] <= 1 <= figure["high"] for figure in found)
    assert 175 <= covered <= 199  # 190 expected, a little less for a skewed law
    assert stats.summary([]) is None and stats.summary([None]) is None


def test_the_front_is_what_nothing_else_beats_in_all():
    def entry(method, device, host, error):
        figures = {"device_bytes": device, "host_bytes": host, "error": error}
        return {"method": method, **{name: {"mean": value} for name, value in figures.items()}}

    entries = [
        entry("a", 10, 10, 0.3),
        entry("b", 10, 20, 0.2),
        entry("c", 20, 20, 0.25),
        entry("exact", 1, 1, 0.1),
    ]
    assert [report.is_on_front(one, entries) for one in entries] == [True, True, False, True]
