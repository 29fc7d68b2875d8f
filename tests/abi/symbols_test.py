#!/usr/bin/env python3
"""Exported names: those of the headers, of the version script and of the library are the same.

symbols_test.py SOURCE_FOLDER LIBRARY
"""

import re
import subprocess
import sys
from pathlib import Path

HEADERS = ("pariskv.h", "pariskv_cache.h", "pariskv_stages.h")
VERSION = "PARISKV_0.1"


def declared(root):
    names = set()
    for header in HEADERS:
        text = (root / "api/include/pariskv" / header).read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        names |= set(re.findall(r"\bPKV_API\b[^;(]*?\b(pkv_\w+)\(", text))
    return names


def listed(root):
    text = (root / "api/pariskv.map").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return set(re.findall(r"\b(pkv_\w+);", text))


def exported(library):
    output = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    symbols = {line.split()[-1] for line in output.splitlines()}
    return symbols - {VERSION}


def main():
    root, library = Path(sys.argv[1]), sys.argv[2]
    wanted = declared(root)
    failures = 0
    for what, names in (
        ("version script", {f"{name}@@{VERSION}" for name in listed(root)}),
        ("library", exported(library)),
    ):
        for name in sorted({f"{name}@@{VERSION}" for name in wanted} ^ names):
            failures += 1
            side = "in the headers only" if name not in names else "not in the headers"
            print(f"{what}: {name} is {side}")
    print(f"{len(wanted)} functions, {failures} differences")
    return 1 if failures or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
