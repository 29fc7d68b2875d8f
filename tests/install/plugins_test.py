#!/usr/bin/env python3
"""plugins_test.py --build BUILD --prefix PREFIX --work FOLDER

Backends built outside the tree from the copy installed in PREFIX, and the installed conformance
program on them: the template as docs/backend-guide.md says, the examples in C and in Rust.
"""

import json
import os
import shutil
import subprocess

import sample
from outside import EXAMPLES, from_command_line, run

IMPLEMENTED = {"encode", "store", "vote", "select"}


def verdict(outside, library, *arguments):
    """(exit code, report as JSON, page)"""
    page = outside.work / "page.html"
    done = subprocess.run(
        [outside.program("pkv-conformance"), "--backend", library, "--json", "--html", page]
        + list(arguments),
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout), page.read_text()


def count(report, stage, outcome):
    return sum(case["stage"] == stage and case["outcome"] == outcome for case in report["cases"])


def check_example(outside, library, name):
    code, report, page = verdict(outside, library, "--shard", "1/4")
    failed = [case for case in report["cases"] if case["outcome"] == "failed"]
    assert code == 0 and not failed, failed[:3]
    assert report["backend"] == name and "Conforms in what it implements" in page
    for stage in IMPLEMENTED | {"golden"}:
        assert count(report, stage, "passed") > 0, stage
    for stage in {case["stage"] for case in report["cases"]} - IMPLEMENTED - {"golden"}:
        assert count(report, stage, "passed") == 0, stage
    print(f"{name}: {report['passed']} passed, {report['skipped']} skipped")


def check_listed(outside, library, name):
    """By the search path, by its name, and used by the command line."""
    folder = outside.work / "backends"
    folder.mkdir()
    shutil.copy(library, folder / f"pariskv_backend_{name}.so")
    environment = dict(os.environ, PKV_BACKEND_PATH=str(folder))
    info = json.loads(run(outside.program("pariskv"), "info", "--json", env=environment))
    listed = [backend["name"] for backend in info["backends"]]
    assert listed.count(name) == 1, listed
    text = run(
        outside.program("pkv-conformance"), "--backend", name, "--filter", "select/levels/*",
        env=environment, cwd=outside.work,
    )  # fmt: skip
    assert ", 0 failed, 0 skipped" in text, text


def check_template(outside):
    """What section 1 of the guide says: copied under another name, built, nothing there yet."""
    source = sample.skeleton(outside, outside.work / "tree", "mine")
    library = outside.cmake(source) / "pariskv_backend_mine.so"
    code, report, page = verdict(outside, library, "--shard", "1/8")
    assert code == 0 and report["backend"] == "mine"
    assert report["passed"] == report["failed"] == 0 and report["skipped"] > 200
    assert "Nothing was shown" in page
    print(f"template: {report['skipped']} skipped")


def check_sample(outside):
    """The skeleton with stages put in one after the other: each is found as soon as it is there,
    and in the end nothing is skipped but what asks the library."""
    folder = sample.skeleton(outside, outside.work / "sample", "finished")
    sample.put_helpers(outside, folder)
    done = []
    for stages in (sample.STAGES[:3], sample.STAGES[3:]):
        for stage in stages:
            sample.put_stage(outside, folder, stage)
        done += stages
        library = outside.cmake(folder) / "pariskv_backend_finished.so"
        code, report, page = verdict(outside, library, "--shard", "1/8")
        failed = [case for case in report["cases"] if case["outcome"] == "failed"]
        assert code == 0 and not failed, failed[:3]
        for stage in sample.STAGES:
            assert (count(report, stage, "passed") > 0) == (stage in done), stage
    skipped = [case for case in report["cases"] if case["outcome"] == "skipped"]
    assert all("asks the library" in case["text"] for case in skipped), skipped[:3]
    assert count(report, "step", "passed") > 0 and "Conforms in what it implements" in page
    print(f"sample: {report['passed']} passed, {report['skipped']} skipped")


def main():
    outside, _ = from_command_line()
    check_template(outside)
    check_sample(outside)
    in_c = outside.cmake(outside.copy(EXAMPLES / "plugin_c")) / "pariskv_backend_example_c.so"
    check_example(outside, in_c, "example_c")
    check_listed(outside, in_c, "example_c")
    target = outside.cargo(outside.copy(EXAMPLES / "plugin_rust"))
    if target is not None:
        check_example(outside, target / "libpariskv_backend_example_rust.so", "example_rust")


if __name__ == "__main__":
    main()
