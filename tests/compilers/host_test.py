#!/usr/bin/env python3
"""host_test.py COMPILE_COMMANDS: the host code of library, backends and tools is accepted by every
other compiler that is here: each of its sources once more, as far as the syntax tree.

Skipped where there is no other compiler. Minutes.
"""

import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("api", "core", "backends/cpu", "backends/cpu_ref", "backends/host", "tools")
COMPILERS = ("g++-12", "g++-13", "g++-14", "g++-15")
COMPILERS += tuple(f"clang++-{version}" for version in range(14, 22))
# What one compiler warns of and another has no name for.
OPTIONS = ["-fsyntax-only", "-Wno-unknown-warning-option", "-Wno-error"]
SKIPPED = 77


def version(compiler):
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def sources(commands):
    """(file, folder, arguments without compiler, object and dependencies)"""
    found = {}
    for entry in json.loads(Path(commands).read_text()):
        path = Path(entry["directory"], entry["file"]).resolve()
        if path.suffix != ".cpp" or ROOT not in path.parents:
            continue
        if not any(ROOT / folder in path.parents for folder in FOLDERS):
            continue
        words = shlex.split(entry["command"])
        while not words[0].startswith("-"):  # a launcher, the compiler
            words.pop(0)
        kept, skip = [], False
        for word in words:
            takes_value = word in ("-o", "-MF", "-MT", "-c")
            if not (skip or takes_value or word == "-MD" or word.startswith("-Wno-error")):
                kept.append(word)
            skip = takes_value and word != "-c"
        found[path] = (entry["directory"], [w for w in kept if not w.endswith(".cpp")])
    return found


def main():
    found = sources(sys.argv[1])
    own = {version(name) for name in ("c++", os.environ.get("CXX", "c++")) if shutil.which(name)}
    names = [name for name in COMPILERS if shutil.which(name) and version(name) not in own]
    if not names or not found:
        print(f"skipped: {len(found)} sources, no other compiler")
        return SKIPPED
    failed = 0

    def compiled(job):
        name, path = job
        folder, words = found[path]
        command = [name, *words, *OPTIONS, str(path)]
        return job, subprocess.run(command, cwd=folder, capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for (name, path), done in pool.map(compiled, [(n, p) for n in names for p in found]):
            if done.returncode != 0:
                failed += 1
                print(f"{name}: {path.relative_to(ROOT)}\n{done.stderr[-2000:]}")
    print(f"{len(found)} sources, {', '.join(names)}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
