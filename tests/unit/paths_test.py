#!/usr/bin/env python3
"""The lists of kernels that backends tell by the device option `paths` are those of the sources: a
kernel that is missing in a list would never be reported as left out."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def text_of(folder, *suffixes):
    files = sorted(f for f in (ROOT / folder).iterdir() if f.suffix in suffixes)
    return "\n".join(f.read_text() for f in files)


def listed(file):
    entries = re.search(r"kKernels\[\] = \{([^}]*)\}", (ROOT / file).read_text())[1]
    return re.findall(r'"(\w+)"', entries)


def launched(text):
    """Names in launch("name", ..), launch(choice ? "name" : "name", ..), then("name", ..)."""
    names = []
    for call in re.findall(r"\b(?:launch|then)\(([^,]*),", text):
        names += re.findall(r'"(\w+)"', call)
    return names


def main():
    cpu, gpu = text_of("backends/cpu", ".cpp"), text_of("backends/gpu", ".cu", ".cuh")
    own = re.search(r'kWholeStepKernel = "(\w+)"', (ROOT / "backends/cuda/vendor.h").read_text())
    pairs = {
        "cpu, exported": (listed("backends/cpu/isa.h"), re.findall(r"HWY_EXPORT\((\w+)\)", cpu)),
        "cpu, called": (
            listed("backends/cpu/isa.h"),
            re.findall(r"PKV_CPU_DISPATCH\([^,]+,\s*(\w+)\)", cpu),
        ),
        "gpu": (listed("backends/gpu/kernels.h"), launched(gpu)),
        "cuda": ([own[1]], launched(text_of("backends/cuda", ".cu", ".cuh", ".h"))),
    }
    faults = 0
    for what, (names, found) in pairs.items():
        repeated = {name for name in names if names.count(name) > 1}
        for name in sorted(set(names) ^ set(found) | repeated):
            print(f"{what}: {name}: in the list and in the sources must be the same, once")
            faults += 1
        print(f"{what}: {len(names)} kernels")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
