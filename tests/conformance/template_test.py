#!/usr/bin/env python3
"""template_test.py PKV_CONFORMANCE LIBRARY

That a backend without stages is told from one that works: every case is skipped with a reason, none
passes, and the exit code is 0. A quarter of the cases, which has every stage.
tests/install/plugins_test.py builds it outside the tree.
"""

import json
import subprocess
import sys


def check(program, library):
    command = [program, "--backend", library, "--shard", "1/4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    last = done.stderr.rstrip().splitlines()[-1]
    cases = report["cases"]
    assert last == f"0 passed, 0 failed, {len(cases)} skipped", last
    assert len(cases) > 450
    for case in cases:
        assert case["outcome"] == "skipped", case
        assert " yet (" in case["text"] or case["text"].startswith("asks the library"), case
    names = {case["stage"] for case in cases}
    assert names >= {"fit", "encode", "store", "vote", "select", "rerank", "fetch", "attend"}, names
    print(f"{report['backend']}: {len(cases)} cases skipped, e.g. {cases[0]['text']}")


if __name__ == "__main__":
    check(*sys.argv[1:])
