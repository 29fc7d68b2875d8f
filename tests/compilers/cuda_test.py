#!/usr/bin/env python3
"""Every kernel compiles for every architecture that the cuda backend is for, and as PTX.

cuda_test.py NVCC. Minutes on many cores, longer on few; without nvcc the test is skipped.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120"]
PTX = "compute_120"
SKIPPED = 77


def listed(nvcc, kind, plugin):
    command = [Path(nvcc).parent / "cuobjdump", f"--list-{kind}", plugin]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    nvcc = sys.argv[1] if len(sys.argv) > 1 else ""
    if not Path(nvcc).is_file():
        print("skipped: no nvcc")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "pariskv_backend_cuda.so"
        command = [ROOT / "tools/cuda_plugin", plugin, *ARCHITECTURES, PTX]
        subprocess.run(command, check=True, env={**os.environ, "NVCC": nvcc})
        elves, ptx = listed(nvcc, "elf", plugin), listed(nvcc, "ptx", plugin)
    sources = len([*ROOT.glob("backends/gpu/*.cu"), *ROOT.glob("backends/cuda/*.cu")])
    failures = 0
    for name, text in [(arch, elves) for arch in ARCHITECTURES] + [("sm_120", ptx)]:
        found = len(re.findall(rf"\b{name}\.(?:cubin|ptx)", text))
        kernels = "PTX" if text is ptx else "device code"
        print(f"{name}: {kernels} of {found} files")
        failures += found == 0 or found > sources
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
