"""tools/fuzz_run: what it counts, keeps and packs, with programs that talk as libFuzzer does."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz_run"
FAKE = f"#!{sys.executable} -SE\n"
FAKE += """
import os, signal, sys, time
if "PKV_FUZZ_SEEDS" in os.environ:
    open(os.environ["PKV_FUZZ_SEEDS"] + "/seed-0", "w").write("seed")
    sys.exit()
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if word[0] == "-")
folders = [word for word in sys.argv[1:] if word[0] != "-"]
if "artifact_prefix" not in options and "merge" not in options:
    # Asked whether it can look for leaks, or for an input once more.
    sys.exit(70 if "slow" in "".join(open(name).read() for name in folders) else 0)
if "merge" in options:
    open(folders[0] + "/fewest", "w").write("fewest")
    sys.exit()
start = 1 + sum(len(os.listdir(folder)) for folder in folders)
executed = int(options.get("runs", start + 100))
def end(code, executed):
    print(f"#{executed} DONE cov: 7 ft: 9", file=sys.stderr)
    print(f"stat::number_of_executed_units: {executed}", file=sys.stderr)
    sys.exit(code)
"""
GOOD = """
open(folders[0] + "/new", "w").write("new")
print(f"#{start} INITED cov: 5 ft: 6", file=sys.stderr)
print(f"sequences {executed}, calls {3 * executed}, most of a sequence 4", file=sys.stderr)
end(0, executed)
"""
FINDS = """
open(options["artifact_prefix"] + f"crash-{os.getpid()}", "w").write("case")
print(f"#{start} INITED cov: 5 ft: 6", file=sys.stderr)
end(77, start + 1)
"""
STANDS_STILL = """
for input in "slow", "quick":
    open(options["artifact_prefix"] + f"timeout-{input}", "w").write(input)
print(f"#{start} INITED cov: 5 ft: 6", file=sys.stderr)
end(70, executed)
"""
DEAD = "sys.exit(1)"
WAITS = """
signal.signal(signal.SIGTERM, lambda *_: end(72, start + 40))
print(f"#{start} INITED cov: 5 ft: 6", file=sys.stderr, flush=True)
while True: time.sleep(1)
"""


class Fuzz:
    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out"
        (folder / "bin").mkdir()

    def target(self, name, body):
        program = self.folder / "bin" / f"pkv_fuzz_{name}"
        program.write_text(FAKE + body)
        program.chmod(0o755)
        corpus = self.folder / "corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        (corpus / "case").write_text("case")

    def start(self, *words):
        places = {"PKV_FUZZ_BIN": self.folder / "bin", "PKV_FUZZ_CORPUS": self.folder / "corpus"}
        environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
        command = [sys.executable, str(TOOL), "--out", str(self.out), *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words):
        """Its exit code, and of each target of the table the cells by their heads."""
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        assert not err, err
        return process.returncode, self.table(out)

    def table(self, text):
        heads, *rows = [line.split() for line in text.splitlines()[1:]]
        return {row[0]: dict(zip(heads, row)) for row in rows}

    def chunks(self):
        return (self.out / "progress.txt").read_text().splitlines()


@pytest.fixture
def fuzz(tmp_path):
    return Fuzz(tmp_path)


def test_goals_are_of_mutated_inputs_and_of_api_a_fiftieth(fuzz):
    fuzz.target("npy", GOOD)
    fuzz.target("api", GOOD)
    code, table = fuzz.run("--runs", 1000, "--jobs", 3)
    assert code == 0
    assert (table["npy"]["executions"], table["npy"]["goal"]) == ("1000", "1000")
    assert (table["api"]["executions"], table["api"]["goal"]) == ("20", "20")
    assert int(table["api"]["calls"]) > 3 * 20
    assert (table["npy"]["edges"], table["npy"]["features"]) == ("7", "9")
    assert os.listdir(fuzz.out / "corpora" / "npy") == ["fewest"]
    assert os.listdir(fuzz.out / "findings") == []


def test_goes_on_where_it_stopped_but_not_behind_another_build(fuzz):
    fuzz.target("npy", GOOD)
    fuzz.run("--runs", 100)
    chunks = len(fuzz.chunks())
    assert fuzz.run("--runs", 100)[1]["npy"]["executions"] == "100"
    assert len(fuzz.chunks()) == chunks
    assert fuzz.run("--runs", 150)[1]["npy"]["executions"] == "150"
    fuzz.target("npy", GOOD + "# another build\n")
    chunks = len(fuzz.chunks())
    assert fuzz.run("--runs", 100)[1]["npy"]["executions"] == "100"
    assert len(fuzz.chunks()) > chunks


def test_a_finding_is_kept_and_enough_of_them_end_the_target(fuzz):
    fuzz.target("npy", FINDS)
    fuzz.target("npz", GOOD)
    code, table = fuzz.run("--runs", 1000, "--jobs", 2, "--pack", fuzz.folder / "out.tar.xz")
    assert code == 1
    assert int(table["npy"]["findings"]) >= 20
    assert int(table["npy"]["executions"]) < 100
    assert (table["npz"]["findings"], table["npz"]["executions"]) == ("0", "1000")
    with tarfile.open(fuzz.folder / "out.tar.xz") as archive:
        names = archive.getnames()
    assert {"report.txt", "progress.txt", "corpora/npz/fewest"} <= set(names)
    assert sum(name.startswith("findings/npy-crash-") for name in names) >= 20
    assert sum(name.startswith("findings/npy.") for name in names) >= 20  # what they said


def test_an_input_that_ran_out_of_time_is_run_once_more(fuzz):
    fuzz.target("npy", STANDS_STILL)
    code, table = fuzz.run("--runs", 10)
    assert (code, table["npy"]["findings"], table["npy"]["executions"]) == (1, "1", "10")
    assert (fuzz.out / "findings" / "npy-timeout-slow").exists()
    assert not (fuzz.out / "findings" / "npy-timeout-quick").exists()


def test_a_target_that_does_not_run_is_no_success(fuzz):
    fuzz.target("npy", DEAD)
    process = fuzz.start("--runs", 100)
    assert "does not run" in process.communicate(timeout=60)[0]
    assert process.returncode == 1


def test_time_is_shared_out_without_a_goal(fuzz):
    fuzz.target("npy", GOOD)
    fuzz.target("npz", GOOD)
    code, table = fuzz.run("--seconds", 3, "--jobs", 2)
    assert code == 0
    assert all(int(row["executions"]) >= 100 for row in table.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_counted_and_packed(fuzz, number):
    fuzz.target("npy", WAITS)
    process = fuzz.start("--runs", 100000, "--jobs", 2, "--pack", fuzz.folder / "out.tar.xz")
    logs = fuzz.out / "findings"
    begun = time.monotonic()
    while sum("INITED" in log.read_text() for log in logs.glob("npy.*.log")) < 2:
        assert time.monotonic() - begun < 60
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert fuzz.table(out)["npy"]["executions"] == "80"
    with tarfile.open(fuzz.folder / "out.tar.xz") as archive:
        assert {"report.txt", "progress.txt", "corpora/npy/seed-0"} <= set(archive.getnames())


def test_unknown_targets_are_wrong_use(fuzz):
    fuzz.target("npy", GOOD)
    process = fuzz.start("npz")
    assert "no target npz" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
