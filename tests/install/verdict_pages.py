#!/usr/bin/env python3
"""verdict_pages.py --build BUILD --prefix PREFIX --work FOLDER --pages FOLDER

Makes the pages of docs/conformance that need no GPU: of backends cpu and cpu_ref, and of the
finished skeleton (sample.py) built outside the tree, all by the copy installed in PREFIX.
"""

import argparse
import sys
from pathlib import Path

import sample
from outside import from_command_line, run


def write_page(outside, backend, page):
    command = [outside.program("pkv-conformance"), "--backend", backend, "--paths"]
    text = run(*command, "--html", page, cwd=outside.work)
    print(f"{page}: {text.strip().splitlines()[-1]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=Path, required=True)
    options, sys.argv[1:] = parser.parse_known_args()
    outside, _ = from_command_line()
    pages = options.pages.resolve()
    for backend in ("cpu", "cpu_ref"):
        write_page(outside, backend, pages / f"{backend}.html")
    folder = sample.finished(outside, outside.work / "tree", "sample")
    library = outside.cmake(folder) / "pariskv_backend_sample.so"
    write_page(outside, library, pages / "sample.html")


if __name__ == "__main__":
    main()
