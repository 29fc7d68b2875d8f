#!/usr/bin/env python3
"""template_test.py PKV_CONFORMANCE LIBRARY
template_test.py --build BUILD --cmake CMAKE --work FOLDER

That a backend without stages is told from one that works: every case is skipped with a reason, none
passes, and the exit code is 0. The second form does what docs/backend-guide.md says: it installs
BUILD, copies backends/template under another name into a tree outside, builds it there against the
installed package, and runs the installed program on it.
"""

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent


def build_outside(build, cmake, work):
    """(installed program, plug-in built outside)"""
    shutil.rmtree(work, ignore_errors=True)
    prefix, tree = work / "prefix", work / "tree"

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"

    run(cmake, "--install", build, "--prefix", prefix)
    source = tree / "backends" / "mine"
    shutil.copytree(HERE.parents[1] / "backends" / "template", source)
    for path in source.iterdir():
        path.write_text(path.read_text().replace("template", "mine"))
    cache = (Path(build) / "CMakeCache.txt").read_text()
    generator = re.search(r"^CMAKE_GENERATOR:INTERNAL=(.+)$", cache, re.MULTILINE)[1]
    configured = ("-G", generator, f"-DCMAKE_PREFIX_PATH={prefix}")  # there may be no make
    run(cmake, "-S", source, "-B", work / "build", *configured)
    run(cmake, "--build", work / "build")
    return prefix / "bin" / "pkv-conformance", work / "build" / "pariskv_backend_mine.so"


def check(program, library):
    done = subprocess.run([program, "--backend", library, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    last = done.stderr.rstrip().splitlines()[-1]
    cases = report["cases"]
    assert last == f"0 passed, 0 failed, {len(cases)} skipped", last
    assert len(cases) > 1800
    for case in cases:
        assert case["outcome"] == "skipped", case
        assert " yet (" in case["text"] or case["text"].startswith("asks the library"), case
    names = {case["stage"] for case in cases}
    assert names >= {"fit", "encode", "store", "vote", "select", "rerank", "fetch", "attend"}, names
    print(f"{report['backend']}: {len(cases)} cases skipped, e.g. {cases[0]['text']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--build")
    parser.add_argument("--cmake")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    if arguments.build:
        check(*build_outside(arguments.build, arguments.cmake, arguments.work))
    else:
        check(*arguments.files)


if __name__ == "__main__":
    main()
