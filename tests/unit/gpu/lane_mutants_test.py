#!/usr/bin/env python3
"""lane_mutants_test.py PKV_CONFORMANCE MUTANTS_LIBRARY

Lane group operations that are right on 32 lanes alone: nothing notices with lanes=32, and with
lanes=64 each is found in every stage that has one.
"""

import json
import os
import subprocess
import sys

MUTANTS = ("ballot_of_32", "shuffle_of_32", "lanes_are_32")
# Cases of each stage; and the stages that find a mutant, those with operations of its kind.
CASES = {
    "vote": "vote/graded_heads/*_g4_n65/b1",
    "select": "select/levels/*",
    "rerank": "rerank/scalar4_group/d*_g4_n65/b1",
    "encode": "encode/scalar4/d*_n33/b1",
}
FINDS = {
    "ballot_of_32": ("select", "encode"),
    "shuffle_of_32": ("vote", "select", "rerank", "encode"),
    "lanes_are_32": ("vote", "select", "rerank", "encode"),
}


def run(conformance, library, mutant, lanes, glob):
    """(cases that failed, cases that ran); a program that crashes has failed in one of one."""
    command = [conformance, "--backend", library, "--set", f"lanes={lanes}", "--filter", glob]
    done = subprocess.run(
        [*command, "--json"],
        env=dict(os.environ, PKV_LANE_MUTANT=mutant),
        capture_output=True,
        text=True,
    )
    if "crashed in case" in done.stderr:
        return [done.stderr.strip().splitlines()[-1]], 1
    if done.returncode not in (0, 1):
        sys.exit(f"{mutant}, lanes={lanes}, {glob}: {done.stderr}")
    cases = json.loads(done.stdout)["cases"]
    return [case["name"] for case in cases if case["outcome"] == "failed"], len(cases)


def main():
    conformance, library = sys.argv[1], os.path.abspath(sys.argv[2])
    faults = 0
    for stage, glob in CASES.items():
        for mutant, lanes in [("", 64), *((mutant, 32) for mutant in MUTANTS)]:
            failed, ran = run(conformance, library, mutant, lanes, glob)
            if failed or not ran:
                print(f"{mutant or 'none'}, lanes={lanes}, {stage}: {failed or 'no case'}")
                faults += 1
        for mutant in MUTANTS:
            failed, ran = run(conformance, library, mutant, 64, glob)
            print(f"{mutant}, lanes=64, {stage}: noticed by {len(failed)} of {ran} {failed[:1]}")
            if stage in FINDS[mutant] and not failed:
                print(f"{mutant}, {stage}: NOT NOTICED")
                faults += 1
    print(f"{len(MUTANTS)} mutants, {faults} complaints")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
