#!/usr/bin/env python3
"""Includes point one way: tools -> api/include <- core <- api/src, backends beside them. A source
includes its own header first, which shows that the header compiles alone.

Reads every C and C++ file below the root (default: this repository) and reports each include that
its folder may not have. `--self-test`, which always runs first, holds the rules against small trees
that break one each, so that a rule which no longer fires is seen.
"""

import re
import sys
import tempfile
from pathlib import Path

SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
API = "api/include/"

# Folder -> folders of ours that it may include, itself aside. The longest match rules. Folders that
# are not here may include anything: tests, but not tests/conformance.
ALLOWED = {
    API: (),
    "api/src/": ("core/", API),
    "core/": (API,),
    "core/format/": (API,),
    "backends/": (API, "core/format/"),
    "backends/cpu/": (API, "core/format/", "backends/host/"),
    "backends/cpu_ref/": (API, "core/format/", "backends/host/"),
    "backends/cuda/": (API, "core/format/", "backends/gpu/"),
    "backends/hip/": (API, "core/format/", "backends/gpu/"),
    "tools/": (API,),
    "bench/": (API,),
    "python/": (API,),
    "examples/": (API,),
    "tests/conformance/": (API,),
}
# Each backend stands alone: the folder below backends/ counts, not backends/ itself.
STANDS_ALONE = "backends/"
# Its folders are copied elsewhere, so its files name each other from where they are.
STANDS_OUTSIDE = "examples/"

# Of what is not ours: beginning of the include -> the only places that may have it.
THIRD_PARTY = {
    "absl/log/": (),
    "absl/": ("api/src/", "core/", "tools/", "tests/"),
    "xxh": ("core/",),
    "boost/program_options": ("tools/",),
    "boost/context": ("backends/",),
    "hwy/": ("backends/cpu/", "tests/unit/cpu/"),
    "tbb/": ("backends/cpu/pool.cpp",),
    "oneapi/": ("backends/cpu/pool.cpp",),
    "doctest/": ("tests/",),
    "fmt/": ("tools/", "bench/", "tests/"),
    "nlohmann/": ("tools/", "bench/", "tests/"),
    "zip": ("tools/", "tests/fuzz/"),  # a fuzz target stands in front of its zip_open
}
NEVER_HERE = {"core/format/": ("absl/", "xxh")}

# The C headers include two standard ones. core/format includes those C headers and what a
# freestanding C++ has (array since C++26), so that device compilers take it.
C_HEADERS = {"stdint.h", "stddef.h"}
FREESTANDING = set(
    "array atomic bit cfloat climits compare concepts coroutine cstdarg cstddef cstdint cstdlib"
    " exception initializer_list limits new source_location type_traits typeinfo version".split()
)


def folder_of(path, table):
    """The longest key of table that path lies in, or None."""
    return max((key for key in table if path.startswith(key)), key=len, default=None)


def find_ours(root, source, name):
    """The file of ours that the include names, relative to root, or None."""
    for candidate in (name, API + name, str(Path(source).parent / name)):
        if (root / candidate).is_file():
            return candidate
    return None


def home_of(path, folder):
    """What counts as the same folder as path."""
    if folder == STANDS_ALONE:
        return "/".join(path.split("/")[:2]) + "/"
    return folder


def complaint(root, source, is_quoted, name):
    """Why source may not include name, or None."""
    folder = folder_of(source, ALLOWED)
    target = find_ours(root, source, name)
    if target is not None:
        if folder == STANDS_OUTSIDE:
            here = target.startswith((STANDS_OUTSIDE, API)) and not name.startswith(STANDS_OUTSIDE)
            return None if here else f"is out of reach of {folder}"
        if target != name and target != API + name:
            return "is not a path from the root"
        if folder is None or target.startswith(home_of(source, folder)):
            return None
        if not target.startswith(ALLOWED[folder]):
            return f"is out of reach of {folder}"
        if folder == "core/format/" and target.endswith(".hpp"):
            return "is no C header"
        return None
    if is_quoted and not name.startswith(tuple(THIRD_PARTY)):
        return "is no file of this repository"
    for start in sorted(THIRD_PARTY, key=len, reverse=True):
        if name.startswith(start):
            if not source.startswith(THIRD_PARTY[start] or ("nowhere",)):
                return f"belongs to {' '.join(THIRD_PARTY[start]) or 'no file of ours'}"
            if name.startswith(NEVER_HERE.get(folder, ("nowhere",))):
                return f"has no place in {folder}"
            return None
    if folder == "core/format/" and name not in FREESTANDING:
        return "is not freestanding"
    if folder == API and source.endswith(".h") and name not in C_HEADERS:
        return "is more than stdint.h and stddef.h"
    return None


def check(root):
    """(number of includes read, list of complaints)"""
    read, complaints = 0, []
    folders = [f for f in root.iterdir() if f.name != "build" and not f.name.startswith(".")]
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        source = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        own, first = source.rsplit(".", 1)[0] + ".h", INCLUDE.search(text)
        if (
            path.suffix in (".c", ".cpp", ".cu")
            and (root / own).is_file()
            and first
            and first[2] != (own.rsplit("/", 1)[1] if source.startswith(STANDS_OUTSIDE) else own)
        ):
            complaints.append(f"{source}: {first[2]} is included before its own header")
        for match in INCLUDE.finditer(text):
            read += 1
            why = complaint(root, source, match[1] == '"', match[2])
            if why:
                complaints.append(f"{source}: {match[2]} {why}")
    return read, complaints


def self_test():
    targets = (
        "api/include/pariskv/pariskv.h api/include/pariskv/b.hpp core/base/status.h"
        " core/format/layout.h backends/cpu_ref/vote.h backends/gpu/stages.h tools/table.h"
        " tests/unit/helper.h examples/c/trace.h"
    ).split()
    good = {
        "api/include/pariskv/a.h": "<stdint.h> <pariskv/pariskv.h>",
        "api/include/pariskv/a.hpp": "<memory>",
        "api/src/a.cpp": '"core/base/status.h" "absl/status/status.h" "pariskv/pariskv.h"',
        "core/base/a.cpp": '"core/format/layout.h" "pariskv/pariskv.h" <vector> <xxhash.h>',
        "core/format/a.h": '"core/format/layout.h" "pariskv/pariskv.h" <cstdint>',
        "backends/cpu_ref/a.cpp": '"backends/cpu_ref/vote.h" "core/format/layout.h" <vector>',
        "backends/cuda/a.cu": '"backends/gpu/stages.h" <cuda_runtime.h>',
        "tools/a.cpp": '"tools/table.h" <boost/program_options.hpp> <zip.h> <fmt/core.h>',
        "examples/c/a.c": '"trace.h" "../c/trace.h" <pariskv/pariskv.h> <stdio.h>',
        "tests/unit/a.cpp": '"core/base/status.h" "tools/table.h" "backends/cpu_ref/vote.h"',
    }
    bad = {
        "api/include/pariskv/a.h": "<string.h> <vector> <core/base/status.h>",
        "api/include/pariskv/a.hpp": '"core/base/status.h" <absl/types/span.h>',
        "api/src/a.cpp": '"backends/cpu_ref/vote.h" "tools/table.h" "absl/log/log.h"',
        "core/base/status.cpp": "<vector>",
        "core/base/a.cpp": '"backends/cpu_ref/vote.h" "status.h" "gone.h" <tbb/parallel_for.h>',
        "core/format/a.h": '"core/base/status.h" "pariskv/b.hpp" <vector> "absl/types/span.h"',
        "backends/cpu_ref/a.cpp": '"core/base/status.h" "backends/gpu/stages.h" <absl/base/call.h>',
        "backends/cpu/a.cpp": "<tbb/parallel_for.h>",
        "backends/cuda/a.cu": '"backends/cpu_ref/vote.h"',
        "tools/a.cpp": '"core/base/status.h" "core/format/layout.h" "tests/unit/helper.h"',
        "tests/conformance/a.cpp": '"core/format/layout.h" "tests/unit/helper.h"',
        "examples/c/a.c": '"examples/c/trace.h" "core/base/status.h" "tools/table.h"',
        "examples/c/trace.c": "<stdio.h>",
        "bench/a.cpp": '"tools/table.h" <doctest/doctest.h>',
    }
    for files, is_good in ((good, True), (bad, False)):
        for source, includes in files.items():
            for include in includes.split():
                with tempfile.TemporaryDirectory() as folder:
                    root = Path(folder)
                    for path, text in [(t, "") for t in targets] + [(source, include)]:
                        (root / path).parent.mkdir(parents=True, exist_ok=True)
                        (root / path).write_text(f"#include {text}\n" if text else "")
                    read, complaints = check(root)
                    if read != 1 or (not complaints) != is_good:
                        sys.exit(f"self-test: {source} with {include}: {complaints}")


def main():
    self_test()
    if sys.argv[1:] == ["--self-test"]:
        return
    root = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parents[2]
    read, complaints = check(root)
    print("\n".join(complaints))
    print(f"{read} includes, {len(complaints)} that may not be")
    sys.exit(bool(complaints) or read == 0)


if __name__ == "__main__":
    main()
