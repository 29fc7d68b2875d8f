#!/usr/bin/env python3
"""Kernels know no vendor: conditions on one stand in three files of backends/gpu and in the folders
of the vendors. docs/decisions/0010-gpu-source.md. Nor do they count bits by the standard library:
nvcc 13 turns std::countr_zero into a constant in device code, without a warning. HIP's runtime is
called by gpu_rt.h alone, which has what differs between its releases. And none registers memory
of the host: where a device does not read such memory, a fetch would find out too late.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAY = {"gpu_rt.h", "gpu_lanes.cuh", "gpu_vec.cuh"}
VENDOR = re.compile(
    r"__CUDA|__HIP|__AMD|__NVCC|PKV_GPU_(CUDA|HIP|HOST)\b|\b(cuda|hip)[A-Z]\w+|__shfl|__ballot"
)


BITS = re.compile(r"std::(count[lr]_|popcount|bit_width|bit_ceil|bit_floor|has_single_bit)")


def sources():
    return sorted(p for p in (ROOT / "backends/gpu").iterdir() if p.suffix in (".cu", ".cuh", ".h"))


def names_of_vendors(path):
    """Lines of code that name a vendor's macro, type or intrinsic."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if VENDOR.search(line.split("//")[0]):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def counts_of_bits(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if BITS.search(line.split("//")[0]):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def hip_calls():
    """Calls of HIP's runtime in its own folder: gpu_rt.h has them all, emu aside."""
    for path in sorted((ROOT / "backends/hip").iterdir()):
        if path.suffix not in (".h", ".cu", ".cpp"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = re.sub(r'"[^"]*"', "", line.split("//")[0])
            if re.search(r"\bhip[A-Z]\w+", code):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def registrations():
    """Calls that lock memory which somebody else allocated."""
    for path in sorted((ROOT / "backends").rglob("*")):
        if path.suffix not in (".h", ".cu", ".cuh", ".cpp"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"HostRegister\b", line.split("//")[0]):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def main():
    known = [path for path in sources() if path.name in MAY]
    if len(known) != len(MAY) or not all(list(names_of_vendors(path)) for path in known):
        sys.exit("the files that know vendors are not where they were")
    found = [text for path in sources() if path.name not in MAY for text in names_of_vendors(path)]
    # core/format is compiled into kernels too.
    shared = sorted((ROOT / "core/format").glob("*.h"))
    kernels = [path for path in sources() if path.name not in MAY]
    found += [text for path in kernels + shared for text in counts_of_bits(path)]
    found += hip_calls()
    found += registrations()
    print("\n".join(found))
    print(f"{len(sources())} files, {len(found)} lines that should not be there")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
