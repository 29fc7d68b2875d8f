#!/usr/bin/env python3
"""bad_plugins_test.py PKV_CONFORMANCE BAD_PLUGIN LIBRARY_WITHOUT_SYMBOL

Plug-ins that crash, hang, leave or lie: a failed case or a refusal with a sentence, and the suite
goes on. bad/plugin.cpp has the faults.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAM, PLUGIN, NO_ENTRY = (str(Path(path).resolve()) for path in sys.argv[1:4])
SECONDS = 4  # far more than a case takes
LIMIT = ("--time-limit", str(SECONDS))
OUT_OF_TIME = f"no end within {SECONDS} s (--time-limit)"
VOTES = "vote/graded/d*_g4_n65/b1"


def run(*arguments, fault="", plugin=PLUGIN):
    # Sanitizers leave signals alone, and refuse what is too large as others do.
    options = "handle_segv=0:handle_abort=0:allocator_may_return_null=1"
    return subprocess.run(
        [PROGRAM, "--backend", plugin, *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ, PKV_BAD_PLUGIN=fault, ASAN_OPTIONS=options, TSAN_OPTIONS=options),
    )


def cases_of(done):
    return {case["name"]: case for case in json.loads(done.stdout)["cases"]}


def with_fault(fault, *arguments):
    """The cases of VOTES with the fault: those that it hits fail, the others pass."""
    done = run("--filter", VOTES, "--json", *arguments, fault=fault)
    assert done.returncode == 1, done
    cases = cases_of(done)
    assert list(cases) == list(cases_of(run("--filter", VOTES, "--json")))
    hit = {name for name in cases if re.search(r"/d(192|256)_", name)}
    failed = {name for name, case in cases.items() if case["outcome"] == "failed"}
    assert failed == hit and 0 < len(hit) < len(cases), failed ^ hit
    assert {case["outcome"] for name, case in cases.items() if name not in hit} == {"passed"}
    return [cases[name]["text"] for name in hit], done


def test_without_a_fault_it_passes():
    done = run("--filter", VOTES)
    assert done.returncode == 0 and ", 0 failed, 0 skipped" in done.stdout, done


def test_a_crash_is_a_failed_case():
    for fault, signal in (("vote_crashes", 11), ("vote_aborts", 6), ("vote_leaves_a_process", 11)):
        texts, done = with_fault(fault)
        assert all(text.startswith(f"crashed: signal {signal} (") for text in texts), texts
        assert f"--backend {PLUGIN} --filter vote/graded/" in done.stderr, done


def test_an_exit_is_a_failed_case():
    texts, _ = with_fault("vote_exits")
    assert all(text == "ended the process, exit code 0" for text in texts), texts


def test_an_exception_is_a_failed_case():
    texts, _ = with_fault("vote_throws")
    assert all("thrown over the table" in text or "crashed" in text for text in texts), texts


def test_a_hang_is_a_failed_case():
    texts, _ = with_fault("vote_hangs", *LIMIT)
    assert all(text == OUT_OF_TIME for text in texts), texts


def test_after_three_hangs_the_rest_is_not_run():
    done = run("--filter", "vote/*/d256_*", "--json", *LIMIT, fault="vote_hangs")
    outcomes = [(case["outcome"], case["text"]) for case in cases_of(done).values()]
    assert len(outcomes) > 3 and {outcome for outcome, _ in outcomes} == {"failed"}
    texts = [text for _, text in outcomes]
    assert [text == OUT_OF_TIME for text in texts[:3]] == [True] * 3, texts
    assert set(texts[3:]) == {"not run: 3 cases did not end in time"}, texts


def test_trouble_behind_the_last_case_is_a_failure():
    for fault, text in (
        ("end_crashes", "crashed: signal 11"),
        ("end_hangs", OUT_OF_TIME),
    ):
        done = run("--filter", VOTES, "--json", *LIMIT, fault=fault)
        *cases, last = cases_of(done).values()
        assert done.returncode == 1 and {case["outcome"] for case in cases} == {"passed"}
        assert last["name"] == "process/end" and last["text"].startswith(text), last


def test_what_does_not_open_is_refused():
    for fault, text in (
        ("load_crashes", "crashed: signal 11"),
        ("load_hangs", OUT_OF_TIME),
        ("load_exits", "ended the process, exit code 0"),
        ("query_crashes", "crashed: signal 11"),
        ("query_hangs", OUT_OF_TIME),
        ("query_is_silent", "no reason given"),
        ("table_is_short", "16"),
        ("table_has_no_vote", "vote.supports"),
        ("memory_misaligned", "aligned"),
        ("memory_none", "NULL"),
    ):
        done = run(*LIMIT, fault=fault)
        assert done.returncode == 4 and done.stdout == "", (fault, done)
        assert text in done.stderr, (fault, done.stderr)
        assert "bad_plugin" in done.stderr or "bad" in done.stderr, (fault, done.stderr)


def test_what_is_no_plugin_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.so"
        text.write_text("not a library\n")
        cut = Path(folder) / "cut.so"
        cut.write_bytes(Path(PLUGIN).read_bytes()[:2000])
        for plugin, words in (
            (NO_ENTRY, "pkv_backend_query"),
            (str(text), "text.so"),
            (str(cut), "cut.so"),
            (folder, folder),
            (folder + "/gone.so", "gone.so"),
        ):
            done = run(plugin=plugin)
            assert done.returncode == 4 and words in done.stderr, (plugin, done)


def test_lies_about_sizes_are_failed_cases():
    for fault, text in (
        ("scratch_negative", "-1"),
        ("scratch_huge", str(2**63 - 2)),
        ("rows_negative", "store_row_bytes=-256 "),
        ("rows_uneven", "accepted: multiples of 256"),
        ("rows_huge", ""),
        ("rows_empty", "store_row_bytes=0 "),
    ):
        done = run("--filter", VOTES, "--json", fault=fault)
        assert done.returncode == 1, (fault, done)
        for case in cases_of(done).values():
            assert case["outcome"] == "failed" and text in case["text"], (fault, case)
            assert "crashed" not in case["text"], (fault, case)


def test_more_scratch_than_was_asked_for_is_a_failed_case():
    done = run("--filter", VOTES, "--json", fault="scratch_short")
    for case in cases_of(done).values():
        assert "vote writes behind its scratch of " in case["text"], case


def test_a_status_that_does_not_exist_is_a_failed_case():
    done = run("--filter", VOTES, "--json", fault="vote_odd_status")
    assert done.returncode == 1, done
    assert {case["outcome"] for case in cases_of(done).values()} == {"failed"}


def test_what_a_plugin_prints_is_no_part_of_the_report():
    done = run("--filter", VOTES, "--json", fault="vote_prints")
    assert done.returncode == 0 and json.loads(done.stdout)["passed"] > 0, done


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with ThreadPoolExecutor(len(tests)) as pool:  # most of them wait for a hang
        for name, done in [(name, pool.submit(test)) for name, test in tests]:
            done.result()
            print(f"{name}: ok")
    assert len(tests) == 13, len(tests)


if __name__ == "__main__":
    main()
