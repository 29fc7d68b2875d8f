#!/usr/bin/env python3
"""abidiff_test.py SOURCE_FOLDER LIBRARY [--update]

The functions that the library exports, and the structs they take, against those of
tests/abi/baseline.abi: functions may be added, nothing else. A struct that grew at its end is a
change too: look at it, then --update, which writes the baseline anew.
Exit code 77: skipped.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.abi"


def describe(root, library, target):
    words = "--exported-interfaces-only --drop-private-types --no-corpus-path --no-comp-dir-path"
    words += " --no-show-locs --no-architecture --no-elf-needed"
    subprocess.run(
        [
            "abidw",
            *words.split(),
            "--headers-dir",
            root / "api" / "include",
            "--out-file",
            target,
            library,
        ],
        check=True,
    )
    if "<class-decl" not in Path(target).read_text():
        skip(f"{library} has no debug information")


def compare(before, after):
    """What abidiff says of a change that callers would notice; "" for none."""
    command = ["abidiff", "--no-added-syms", before, after]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{done.returncode}: {done.stdout}{done.stderr}"


def self_test(folder):
    """A function less, another type of a field: seen. So the comparison is not blind."""
    text = BASELINE.read_text()
    lines = text.splitlines(keepends=True)
    other_type = re.search(r"<type-decl name='double' [^>]* id='([\w-]+)'", text)[1]
    less = [line for line in lines if "elf-symbol name='pkv_attend'" not in line]
    assert len(less) == len(lines) - 1
    for name, other in (
        ("less", "".join(less)),
        ("field", re.sub(r"(name='owns_scratch' type-id=)'[\w-]+'", rf"\1'{other_type}'", text)),
    ):
        path = folder / f"{name}.abi"
        path.write_text(other)
        assert compare(BASELINE, path) != "", name
    assert compare(BASELINE, BASELINE) == ""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def main():
    root, library = Path(sys.argv[1]), sys.argv[2]
    if shutil.which("abidiff") is None:
        skip("abidiff is not installed")
    if sys.argv[3:] == ["--update"]:
        describe(root, library, BASELINE)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        self_test(folder)
        now = folder / "now.abi"
        describe(root, library, now)
        difference = compare(BASELINE, now)
    print(difference or "the interface is that of the baseline, or more")
    sys.exit(bool(difference))


if __name__ == "__main__":
    main()
