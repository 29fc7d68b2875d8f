#!/usr/bin/env python3
"""runner_test.py PKV_CONFORMANCE MUTANTS_LIBRARY

The program itself: names, filters, shards, exit codes, reports.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

PROGRAM, MUTANTS = sys.argv[1], str(Path(sys.argv[2]).resolve())
GOLDEN = Path(__file__).resolve().parent / "golden"
FAST = "select/levels/*"


def run(*arguments, mutant=""):
    environment = dict(os.environ, PKV_CONFORMANCE_MUTANT=mutant)
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, env=environment, errors="replace"
    )


def listed(*arguments):
    done = run("--list", *arguments)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.splitlines()


def test_names():
    names = listed()
    assert len(names) == len(set(names)) > 1800
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9_/.+-]+", name) for name in names), names
    stages = {name.partition("/")[0] for name in names}
    assert stages >= set("fit encode store vote select rerank fetch attend step golden".split())
    for batch in (1, 3, 7, 8, 9, 33):
        for stage in ("encode", "vote", "select", "rerank", "fetch", "attend"):
            assert any(n.startswith(stage) and n.endswith(f"/b{batch}") for n in names), (
                stage,
                batch,
            )


def test_filter():
    names = listed()
    assert listed("--filter", "vote/graded/*") == [n for n in names if n.startswith("vote/graded/")]
    assert listed("--filter", "*/b33") == [n for n in names if n.endswith("/b33")]
    assert listed("--filter=" + names[7]) == [names[7]]
    assert listed("--filter", names[7][:-1] + "?") == [n for n in names if n[:-1] == names[7][:-1]]


def test_shards_partition_the_cases():
    shards = [listed("--filter", FAST, "--shard", f"{i}/4") for i in (1, 2, 3, 4)]
    assert sorted(sum(shards, [])) == sorted(listed("--filter", FAST))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert run("--list", "--filter", listed()[0], "--shard", "2/2").returncode == 0


def test_wrong_use():
    for arguments in (
        [],
        ["--backend"],
        ["--backend="],
        ["--backend", "cpu_ref", "--filters", "x"],
        ["--backend", "cpu_ref", "--filter", "no/such/case"],
        ["--backend", "cpu", "--set", "isa"],
        ["--backend", "cpu", "--set", "=2"],
        ["--backend", "cpu", "--set", "threads="],
        ["--backend", "cpu_ref", "--seed", "one"],
        ["--backend", "cpu_ref", "--seed", "-1"],
        ["--backend", "cpu_ref", "--shard", "0/2"],
        ["--backend", "cpu_ref", "--shard", "3/2"],
        ["--backend", "cpu_ref", "--shard", "2"],
        ["--backend", "cpu_ref", "--time-limit", "-1"],
        ["--backend", "cpu_ref", "--time-limit", "soon"],
        ["cpu_ref"],
    ):
        done = run(*arguments)
        assert done.returncode == 2 and done.stderr and not done.stdout, (arguments, done)


def test_backend_not_there():
    for backend in ("no_such", "./no_such.so", __file__):
        done = run("--backend", backend)
        assert done.returncode == 4 and Path(backend).name in done.stderr, done
    done = run("--backend", MUTANTS, mutant="?")  # refuses to be loaded
    assert done.returncode == 4 and "mutants:" in done.stderr, done


def test_device_options():
    options = ["--set", "isa=best", "--set", "threads=2", "--set", "threads=1"]
    done = run("--backend", "cpu", *options, "--filter", FAST, "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["options"] == {"isa": "best", "threads": "1"}
    assert ": cpu isa=best threads=2 threads=1 (" in done.stderr
    refused = (("cpu", "isa=none_such"), ("cpu", "threads=-1"), ("cpu_ref", "isa=x"))
    for backend, option in refused:
        done = run("--backend", backend, "--set", option)
        assert done.returncode == 4 and not done.stdout, done
        assert option.partition("=")[0] in done.stderr, done


def test_help():
    for option in ("--help", "--version"):
        done = run(option)
        assert done.returncode == 0 and "pkv-conformance" in done.stdout


def test_closing_line():
    count = len(listed("--filter", FAST))
    done = run("--backend", "cpu_ref", "--filter", FAST)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == f"{count} passed, 0 failed, 0 skipped"
    done = run("--backend", "cpu_ref", "--filter", "golden/signs/*")
    assert "compared with golden vectors: 16 cases" in done.stdout, done


def test_failure_says_how_to_repeat_it():
    done = run("--backend", MUTANTS, "--filter", "vote/graded/*", "--seed", "5", mutant="vote_ulp")
    assert done.returncode == 1, done
    head, text, command = done.stdout.split("FAILED")[1].splitlines()[:3]
    assert re.search(
        r"first \[\d+\]: expected .* \(0x[0-9a-f]{8}\), got .* \(0x[0-9a-f]{8}\)", text
    )
    assert command.split() == [
        "pkv-conformance", "--backend", MUTANTS, "--seed", "5", "--filter", head.strip()
    ]  # fmt: skip
    again = run(*command.split()[1:], mutant="vote_ulp")
    assert again.returncode == 1 and text in again.stdout, again
    assert again.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_seed_changes_the_numbers():
    def failure(seed):
        case = listed("--filter", "vote/graded/*")[0]
        done = run("--backend", MUTANTS, "--filter", case, "--seed", seed, mutant="vote_ulp")
        return done.stdout.split("FAILED")[1].splitlines()[1]

    assert failure("1") == failure("1") != failure("2")


def test_paths():
    glob = "step/default/d64_h2_g2_n40_k16/b*"
    done = run("--backend", "cpu", "--filter", glob, "--paths", "--json")
    assert done.returncode == 0, done  # a part of the cases owes nothing
    report = json.loads(done.stdout)
    assert all(case["paths"] for case in report["cases"])
    reached = set().union(*(case["paths"] for case in report["cases"]))
    assert reached == {path for path, count in report["paths"].items() if count > 0}
    assert 0 in report["paths"].values() and "attend_block_impl" in reached
    assert "fit_keys_impl" not in reached and "fit_keys_impl                  0" in done.stderr
    assert "NOT REACHED by any case" in done.stderr
    done = run("--backend", "cpu_ref", "--filter", FAST, "--paths", "--json")
    assert "does not tell its paths" in done.stderr and "paths" not in json.loads(done.stdout)
    done = run("--backend", "cpu", "--filter", glob, "--json")
    assert "paths" not in json.loads(done.stdout) and "NOT REACHED" not in done.stderr


def test_shards_merge():
    """What the shards of a run printed gives the report of the whole."""
    glob = ("--filter", "select/levels/*")
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{i}.json") for i in (1, 2, 3)]
        for i, file in enumerate(files, 1):
            done = run("--backend", "cpu", *glob, "--shard", f"{i}/3", "--paths", "--json")
            Path(file).write_text(done.stdout)
        page = Path(folder) / "page.html"
        words = [word for file in files for word in ("--merge", file)]
        done = run(*words, "--json", "--html", str(page))
        assert done.returncode == 0, done
        merged = json.loads(done.stdout)
        assert [case["name"] for case in merged["cases"]] == listed(*glob)
        assert merged["backend"] == "cpu" and merged["passed"] == len(merged["cases"])
        assert merged["paths"]["keep_best_impl"] == len(merged["cases"])
        assert "Conforms" in page.read_text() and "keep_best_impl" in page.read_text()
        assert run(*words, *words[:2]).returncode == 5  # a case twice
        other = Path(folder) / "other.json"
        other.write_text(Path(files[0]).read_text().replace('"seed": 1', '"seed": 2'))
        refused = run("--merge", files[1], "--merge", str(other))
        assert refused.returncode == 5 and '"seed":2' in refused.stderr, refused
        other.write_text("{}")
        assert run("--merge", str(other)).returncode == 5
        assert run("--merge", str(other) + ".none").returncode == 5


def test_json():
    done = run("--backend", "cpu_ref", "--filter", FAST, "--json")
    report = json.loads(done.stdout)
    assert [case["name"] for case in report["cases"]] == listed("--filter", FAST)
    assert report["passed"] == len(report["cases"]) and report["failed"] == 0
    assert {case["class"] for case in report["cases"]} == {"exact"}
    assert done.stderr.rstrip().endswith("0 skipped")


def test_junit_is_xml_whatever_the_texts():
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(folder) / "a&b <\"c'd\u00e9>"
        odd.mkdir()
        library = shutil.copy(MUTANTS, odd / "pariskv_backend_m.so")
        junit = odd / "out.xml"
        done = run("--backend", library, "--filter", FAST, "--junit", junit,
                   mutant="select_larger_position")  # fmt: skip
        assert done.returncode == 1, done
        suite = xml.etree.ElementTree.parse(junit).getroot()
        cases = suite.findall("testcase")
        failures = suite.findall("testcase/failure")
        assert int(suite.get("tests")) == len(cases) == len(listed("--filter", FAST))
        assert int(suite.get("failures")) == len(failures) > 0
        assert "a&b <\"c'" in failures[0].text.replace("'\\''", "'"), failures[0].text
        assert cases[0].get("classname") == "conformance.select"
        done = run("--backend", "cpu_ref", "--filter", FAST, "--junit", odd / "gone" / "out.xml")
        assert done.returncode == 5 and "out.xml" in done.stderr, done


def test_expected_failures():
    with tempfile.TemporaryDirectory() as folder:
        expected = Path(folder) / "expected.txt"

        def with_list(text, mutant="vote_ulp"):
            expected.write_text(text)
            return run(
                "--backend", MUTANTS, "--filter", "vote/graded/d*_g4_n65/b1", "--json",
                "--expected", expected, mutant=mutant,
            )  # fmt: skip

        done = with_list("# known\n\nvote/*/d64_*: half a bit\nvote/graded/*: a bit too much\n")
        report = json.loads(done.stdout)
        assert done.returncode == 0 and report["failed"] == report["passed"] == 0, done
        assert report["expected"] == len(report["cases"]) > 1
        texts = {case["name"]: case["text"] for case in report["cases"]}
        assert texts["vote/graded/d64_g4_n65/b1"].startswith("half a bit (it was: vote: votes of")
        assert texts["vote/graded/d80_g4_n65/b1"].startswith("a bit too much (it was: ")
        assert done.stderr.splitlines()[-1].endswith(f", {len(texts)} failed as expected")
        done = with_list("vote/graded/*: a bit too much\n", mutant="")  # passes after all
        outcomes = {(case["outcome"], case["text"]) for case in json.loads(done.stdout)["cases"]}
        assert outcomes == {("failed", "passed, but is expected to fail: a bit too much")}, done
        assert done.returncode == 1
        for text in ("vote/graded/*\n", "vote/graded/*: \n", "no/such: reason\n"):
            done = with_list(text)
            assert done.returncode == 2 and f"{expected}:1" in done.stderr, done
        done = run("--backend", "cpu_ref", "--expected", Path(folder) / "gone")
        assert done.returncode == 5 and "gone" in done.stderr, done


def test_verdict_page():
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"

        def verdict(*arguments, mutant=""):
            run("--html", page, "--filter", FAST, *arguments, mutant=mutant)
            text = page.read_text()
            assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
            assert not re.search(r"https?:|src=|<link|<script|@import|url\(", text)
            well_formed = re.sub(r"<(meta|!DOCTYPE)[^>]*>", "", text)
            xml.etree.ElementTree.fromstring(well_formed)
            return re.search(r'<p class="verdict (\w+)">([^:(]+)', text).groups(), text

        (kind, words), text = verdict("--backend", "cpu_ref")
        assert (kind, words.strip()) == ("part", "Conforms") and "of the suite: " in text
        assert all(name in text for name in listed("--filter", FAST))
        (kind, words), text = verdict("--backend", MUTANTS, mutant="select_larger_position")
        assert (kind, words.strip()) == ("fail", "Does not conform")
        assert "pkv-conformance --backend " in text and "candidates of row" in text
        assert run("--backend", "cpu_ref", "--html", folder, "--filter", FAST).returncode == 5


def test_in_process():
    done = run("--backend", "cpu_ref", "--in-process", "--filter", FAST)
    assert done.returncode == 0 and done.stdout.endswith(" 0 failed, 0 skipped\n"), done


def test_golden_folder():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert run("--golden", name, "--list").returncode == 5  # nothing there
        assert run("--golden", folder / "gone", "--list").returncode == 5
        for path in GOLDEN.glob("*.json"):
            shutil.copy(path, folder)
        case = "golden/vote/scalar4/d128"
        assert run("--backend", "cpu_ref", "--golden", name, "--filter", case).returncode == 0
        text = (folder / "scalar4.json").read_text()
        at = text.index('"votes":"', text.index('"scalar4/d128"')) + len('"votes":"')
        changed = "1" if text[at] == "0" else "0"
        (folder / "scalar4.json").write_text(text[:at] + changed + text[at + 1 :])
        done = run("--backend", "cpu_ref", "--golden", name, "--filter", case)
        assert done.returncode == 1 and "votes of row 0: 1 of 16 differ, first [0]" in done.stdout
        (folder / "scalar4.json").write_text("{")
        done = run("--backend", "cpu_ref", "--golden", name)
        assert done.returncode == 5 and "scalar4.json" in done.stderr, done


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        test()
        print(f"{name}: ok")
    assert len(tests) == 18, len(tests)


if __name__ == "__main__":
    main()
