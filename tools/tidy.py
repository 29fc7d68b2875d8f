#!/usr/bin/env python3
"""clang-tidy over the sources of the dev preset; part of `tools/lint --tidy`.

A source is read again only when its object was built after its last clean verdict, so run this
after `cmake --build --preset dev`. Fails too if a source of ours is in no CMakeLists.txt: nobody
would notice that a test does not run. `--lists` looks for that alone.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/dev"
TIDIED = ("api/src/", "core/", "backends/", "tools/")
BUILT = (*TIDIED, "tests/conformance/", "tests/unit/", "tests/abi/")


def parts(path):
    """The source, or with PARISKV_UNITY those that are compiled as one."""
    if not path.name.startswith("unity_"):
        return [path]
    return [Path(name) for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)]


def sources():
    """Relative path -> object file, of what the dev preset builds."""
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])  # older CMakes leave out "output"
        made = Path(entry["directory"]) / command[command.index("-o") + 1]
        for path in parts(Path(entry["file"])):
            found[path.resolve().relative_to(ROOT).as_posix()] = made
    return found


def unlisted(built):
    for folder in BUILT:
        for path in sorted((ROOT / folder).rglob("*.c*")):
            relative = path.relative_to(ROOT).as_posix()
            if path.suffix in (".c", ".cpp") and relative not in built:
                yield relative


def tidy(source, object_file):
    """True if clang-tidy has nothing to say."""
    verdict = BUILD / "tidy" / source
    newest = max(object_file.stat().st_mtime, (ROOT / ".clang-tidy").stat().st_mtime)
    if verdict.exists() and verdict.stat().st_mtime > newest:
        return True
    command = ["clang-tidy-14", "-p", str(BUILD), "--quiet", source]
    command += ["--extra-arg=-Wno-unknown-warning-option"]  # the flags are another compiler's
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout + result.stderr, flush=True)
        return False
    verdict.parent.mkdir(parents=True, exist_ok=True)
    verdict.touch()
    return True


def main():
    if not (BUILD / "compile_commands.json").exists():
        sys.exit("no build/dev: run cmake --preset dev && cmake --build --preset dev")
    built = sources()
    missing = sorted(set(unlisted(built)))
    for path in missing:
        print(f"{path}: in no CMakeLists.txt")
    if sys.argv[1:] == ["--lists"]:
        sys.exit(bool(missing) or not built)
    wanted = sorted(path for path in built if path.startswith(TIDIED))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        clean = list(pool.map(lambda path: tidy(path, built[path]), wanted))
    sys.exit(bool(missing) or not clean or not all(clean))


if __name__ == "__main__":
    main()
