#!/usr/bin/env python3
"""load_test.py PARISKV PLUG-IN

The hip plug-in on a machine without an AMD device or driver: the library loads, hip is absent with
a reason, everything else works. Where there is a device that the build has no code for, the reason
names it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def main():
    program, plugin = sys.argv[1], Path(sys.argv[2])
    environment = dict(os.environ, PKV_BACKEND_PATH=str(plugin.parent))
    done = subprocess.run(
        [program, "info", "--json"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
    ours = [b for b in whole["backends"] if b.get("path", "").endswith(f"/{plugin.name}")]
    assert len(ours) == 1, whole
    print(ours[0])
    if not ours[0]["usable"]:
        assert len(ours[0]["reason"]) > len("hip: "), ours[0]
    assert whole["chosen"] in ("cpu", ours[0].get("name")), whole["chosen"]

    asked = subprocess.run(
        [program, "bench", "--backend", "hip", "--n", "64", "--stages", "vote"],
        env=environment,
        capture_output=True,
        text=True,
    )
    print(asked.stderr)
    assert ours[0]["usable"] or asked.returncode == 4, (asked.returncode, asked.stderr)


if __name__ == "__main__":
    main()
