"""tools/gpu_check: its flow with programs that behave badly, and with a real build on the CPU.
PARISKV_CLI names the program of that build."""

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOOL = REPOSITORY / "tools" / "gpu_check"
HEAD = ["device", "driver", "command", "date"]


def load():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes
    return module


gpu_check = load()

INFO = {
    "chosen": "fake",
    "backends": [
        {
            "name": "fake",
            "usable": True,
            "devices": [{"ordinal": 0, "device": "Fake 1"}],
        }
    ],
}
ROW = {
    "backend": "fake",
    "stage": "step",
    "n": 64,
    "batch": 1,
    "candidates": 0.05,
    "rows": "host",
    "min_us": 1.0,
    "median_us": 2.0,
    "max_us": 3.0,
}
PROGRAM = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
{body}
"""
# Every case of the shard passes, but for what `bad` says of some.
CONFORMANCE = """
bad = {bad}
names = ["store.a", "store.b", "vote.a", "vote.b"]
def value(option, default):
    return words[words.index(option) + 1] if option in words else default
if "--merge" in words:
    files = [word for word, before in zip(words[1:], words) if before == "--merge"]
    cases = [case for file in files for case in json.load(open(file))["cases"]]
    open(value("--html", None), "w").write(" ".join(case["name"] for case in cases))
    print("path.a 0 NOT REACHED by any case")
    sys.exit(1)
name = value("--filter", "*")
chosen = names if name == "*" else [name]
shard, shards = map(int, value("--shard", "1/1").split("/"))
chosen = chosen[shard - 1 :: shards]
cases = []
for name in chosen:
    outcome = bad.get(name, "passed")
    if outcome == "crash":
        print("FAILED  " + name + "\\n        what went wrong", file=sys.stderr, flush=True)
        os.abort()
    if outcome == "hang":
        time.sleep(600)
    if outcome == "follows" and len(chosen) == 1 and shards == 1:
        outcome = "passed"
    outcome = "failed" if outcome == "follows" else outcome
    cases.append({{"name": name, "outcome": outcome, "text": outcome + " because"}})
print(json.dumps({{"cases": cases}}))
sys.exit(any(case["outcome"] == "failed" for case in cases))
"""


@pytest.fixture
def fake(tmp_path):
    """A prefix of programs that are scripts, and a run of the tool over it."""

    class Fake:
        prefix = tmp_path / "prefix"
        folder = tmp_path / "results"
        log = tmp_path / "log"

        def program(self, name, body):
            path = self.prefix / "bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = PROGRAM.format(python=sys.executable, log=str(self.log), body=body)
            path.write_text(text)
            path.chmod(0o755)

        def pariskv(self, info=INFO, rows=(ROW,), code=0):
            whole = {"device": "Fake 1", "results": list(rows)}
            self.program(
                "pariskv",
                f"print(json.dumps({info!r} if words[0] == 'info' else {whole!r}))\n"
                f"sys.exit({code} if words[0] == 'bench' else 0)",
            )

        def conformance(self, **bad):
            bad = {name.replace("_", "."): outcome for name, outcome in bad.items()}
            self.program("pkv-conformance", CONFORMANCE.format(bad=bad))

        def run(self, *options):
            words = ["--backend", "fake", "--prefix", self.prefix, self.folder, "--row-cache", 0]
            words += options
            return gpu_check.main([str(word) for word in words])

        def result(self, part):
            return json.loads((self.folder / f"{part}.json").read_text())

        def commands(self):
            return [json.loads(line) for line in self.log.read_text().splitlines()]

    made = Fake()
    made.pariskv()
    made.conformance()
    return made


def table(capsys):
    return capsys.readouterr().out


def test_all_parts_in_order_with_a_table_last(fake, capsys):
    options = ("--n", "64,128", "--candidates", "0.1", "--batches", "2x32", "--shards", 2)
    assert fake.run("--parts", "bench,conformance,info,encode", *options) == 0
    lines = table(capsys).splitlines()
    parts = [line.split()[0] for line in lines]
    assert parts == ["info", "conformance", "verdict", *["bench"] * 3, *["encode"]]
    assert "Fake 1" in lines[0] and "4 passed, 0 failed, 0 skipped" in lines[1]
    assert "verdict.html  reached by no case: path.a" in lines[2]
    assert "2.0 us [1.0, 3.0]" in lines[3]
    page = (fake.folder / "verdict.html").read_text()
    assert sorted(page.split()) == ["store.a", "store.b", "vote.a", "vote.b"]
    for part in ("info", "conformance", "bench", "encode"):
        whole = fake.result(part)
        assert list(whole)[:4] == HEAD
        assert whole["device"] == "Fake 1"
    shapes = [
        [words[words.index(name) + 1] for name in ("--batch", "--n", "--candidates")]
        for words in fake.commands()
        if words[0] == "bench" and "step" in words
    ]
    assert shapes == [["1", "64", "0.1"], ["1", "128", "0.1"], ["2", "32", "0.1"]]
    assert fake.result("bench")["results"] == [ROW] * 3
    assert len(fake.result("bench")["commands"]) == 3


def test_every_step_comes_once_more_with_a_row_cache(fake, capsys):
    fake.pariskv(rows=[{**ROW, "row_cache": 64, "repeats": 0.58}])
    fake.run(
        "--parts", "bench", "--n", 64, "--batches", "", "--candidates", "0.1", "--row-cache", 64
    )
    runs = [words for words in fake.commands() if "step" in words]
    assert ["--row-cache" in words for words in runs] == [False, True]
    assert "58% from a row cache" in table(capsys)


def test_random_shapes_and_faults_are_judged(fake):
    assert fake.run("--parts", "random,faults", "--random", 70, "--seed", 5, "--shards", 2) == 0
    shards = [words for words in fake.commands() if "--random" in words]
    assert len(shards) == 2
    assert all(words[words.index("--random") + 1] == "70" for words in shards)
    assert all(words[words.index("--seed") + 1] == "5" for words in shards)
    assert fake.result("random")["passed"] == 4
    assert fake.result("faults")["passed"]
    fake.conformance(vote_a="failed")
    assert fake.run("--parts", "random", "--shards", 2) == 1
    fake.program("pkv-conformance", "sys.exit(1)")
    assert fake.run("--parts", "faults") == 1


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shards_hold_every_case_once(fake, shards):
    fake.conformance()
    code = fake.run("--parts", "conformance", "--shards", shards)
    names = sorted(case["name"] for case in fake.result("conformance")["cases"])
    assert (code, names) == (0, ["store.a", "store.b", "vote.a", "vote.b"])


def test_a_failed_case_fails_the_check_but_no_later_part(fake, capsys):
    fake.conformance(vote_a="failed", store_b="follows")
    assert fake.run("--parts", "info,conformance,bench", "--shards", 1) == 1
    whole = fake.result("conformance")
    alone = {case["name"]: case.get("alone") for case in whole["cases"]}
    assert (whole["passed"], whole["failed"]) == (2, 2)
    assert (alone["vote.a"], alone["store.b"]) == ("fails alone", "passes alone")
    assert alone["store.a"] is None
    assert "vote.a (fails alone): failed because" in table(capsys)
    assert fake.result("bench")["results"]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_cache_that_differs_fails_the_check(fake, capsys, code):
    row = {"tokens": 64, "layers": 2, "steps": 9, "step_us": 1.0, "relative_error": 0.001}
    row.update(compared=3, grown_bytes=0)
    said = f"print(json.dumps({row!r}))" if code < 2 else "print('no', file=sys.stderr)"
    fake.program("pkv-cache-check", f"{said}\nsys.exit({code})")
    assert fake.run("--parts", "cache", "--cache-options", "--tokens 64") == min(code, 1)
    assert fake.commands()[-1][-2:] == ["--tokens", "64"]
    out = table(capsys)
    assert ("ok" if code == 0 else "FAILED") in out
    assert ("9 steps of one graph" in out) == (code < 2)
    assert (fake.result("cache")["trouble"] == "") == (code == 0)


def test_nothing_passed_is_no_success(fake, capsys):
    names = ("store_a", "store_b", "vote_a", "vote_b")
    fake.conformance(**dict.fromkeys(names, "skipped"))
    assert fake.run("--parts", "conformance", "--shards", 2) == 1
    assert "4 skipped: skipped because" in table(capsys)


def test_a_shard_that_crashes_is_a_failure_with_what_it_said(fake, capsys):
    fake.conformance(vote_b="crash")
    assert fake.run("--parts", "conformance", "--shards", 4) == 1
    whole = fake.result("conformance")
    assert (whole["passed"], whole["failed"]) == (3, 1)
    crashed = [case for case in whole["cases"] if case["outcome"] == "failed"][0]
    assert (crashed["name"], crashed["text"]) == ("vote.b", "what went wrong")
    assert crashed["alone"] == "exit code -6 alone"
    assert "shard 4: exit code -6" in table(capsys)


def test_a_shard_without_end_is_a_failure_and_ends(fake):
    fake.conformance(store_a="hang")
    begin = time.monotonic()
    limit = 4 / gpu_check.LIMITS["conformance"]
    assert fake.run("--parts", "conformance,encode", "--shards", 2, "--limit", limit) == 1
    assert time.monotonic() - begin < 60
    whole = fake.result("conformance")
    assert whole["passed"] == 2
    assert len(whole["troubles"]) == 1 and "longer than" in whole["troubles"][0]


def test_what_a_child_started_ends_with_it(tmp_path):
    mark = tmp_path / "mark"
    script = f"(sleep 3; touch {mark}) & sleep 600"
    done = gpu_check.run(["sh", "-c", f"echo begun; {script}"], 1)
    assert (done.code, done.out) == (None, "begun\n")
    time.sleep(4)
    assert not mark.exists()


@pytest.mark.parametrize(
    "backend, reason",
    [
        ({"name": "fake", "usable": False, "reason": "no driver"}, "no driver"),
        ({"name": "", "path": "/x/pariskv_backend_fake.so", "reason": "too old"}, "too old"),
        ({"name": "other", "usable": True, "devices": [{"device": "x"}]}, "no such backend"),
        ({"name": "fake", "devices": [{"ordinal": 0, "error": "lost"}]}, "no device"),
    ],
)
def test_without_a_device_nothing_else_runs(fake, capsys, backend, reason):
    fake.pariskv(info={"backends": [backend]})
    assert fake.run() == 4
    assert reason in table(capsys)
    assert len(fake.commands()) == 1


def test_benchmarks_that_fail_are_named_and_the_others_kept(fake, capsys):
    fake.pariskv(code=5)
    assert fake.run("--parts", "info,bench", "--n", "64", "--batches", "") == 0
    assert fake.result("bench")["results"] == []
    assert table(capsys).count("FAILED") == 2


def test_the_sanitizers_run_one_after_the_other(fake, monkeypatch, capsys):
    path = fake.prefix / "tools" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text(
        '#!/bin/sh\necho "========= of $2" >&2\nif [ "$2" = racecheck ]; then exit 99; fi\n'
        'if [ "$2" != synccheck ]; then echo \'{"passed": 3, "failed": 0}\'; fi\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    assert fake.run("--parts", "sanitizer") == 0
    tools = fake.result("sanitizer")["tools"]
    clean = {tool: found["clean"] for tool, found in tools.items()}
    bad = ("racecheck", "synccheck")
    assert clean == {tool: tool not in bad for tool in gpu_check.SANITIZER_TOOLS}
    assert tools["memcheck"]["cases"] == 3
    assert tools["synccheck"]["trouble"] == "no case ran"
    assert tools["initcheck"]["reports"] == ["========= of initcheck"]
    assert "exit code 99" in table(capsys)


def test_an_exception_in_a_part_does_not_stop_the_others(fake, capsys, monkeypatch):
    def broken(self):
        raise ZeroDivisionError("of this part")

    monkeypatch.setattr(gpu_check.Check, "bench", broken)
    assert fake.run("--parts", "bench,encode", "--n", "64") == 0
    out = table(capsys)
    assert "ZeroDivisionError: of this part" in out
    assert fake.result("encode")["results"]


@pytest.mark.parametrize(
    "options, text",
    [
        (("--parts", "infos"), "accepted are info"),
        (("--shards", "0"), "1 and more"),
        ((), "FOLDER"),
    ],
)
def test_wrong_use(options, text, tmp_path, capsys):
    folder = [str(tmp_path)] if options else []
    with pytest.raises(SystemExit) as ended:
        gpu_check.main([*folder, *options])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


# ---- A real build --------------------------------------------------------------------


@pytest.fixture
def build():
    default = REPOSITORY / "build" / "dev" / "bin" / "pariskv"
    path = Path(os.environ.get("PARISKV_CLI", default)).resolve()
    if not path.with_name("pkv-conformance").is_file():
        pytest.skip(f"{path.parent} has no pkv-conformance (PARISKV_CLI names a build's program)")
    return path.parents[1]


def test_a_real_build_on_the_cpu(build, tmp_path, capsys):
    code = gpu_check.main(
        [
            *(
                "--prefix",
                str(build),
                "--backend",
                "cpu",
                "--parts",
                "info,conformance,bench,encode",
            ),
            *("--filter", "select*", "--shards", "2", "--n", "512", "--candidates", "0.25"),
            *("--batches", "2x256", "--repeat", "2", "--memory", "1"),
            *("--bench-options=--calls 3 --warm", str(tmp_path)),
        ]
    )
    out = table(capsys)
    assert code == 0, out
    rows = json.loads((tmp_path / "bench.json").read_text())["results"]
    of_steps = [row for row in rows if row["stage"] == "step"]
    shapes = [(row["batch"], row["n"], row["candidates"]) for row in of_steps]
    assert shapes == [(1, 512, 0.25)] * 2 + [(2, 256, 0.25)] * 2
    assert [row.get("row_cache", 0) > 0 for row in of_steps] == [False, True] * 2
    conformance = json.loads((tmp_path / "conformance.json").read_text())
    assert conformance["passed"] > 50 and conformance["failed"] == 0
    assert {case["stage"] for case in conformance["cases"]} == {"select"}
