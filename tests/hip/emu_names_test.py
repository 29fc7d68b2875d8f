#!/usr/bin/env python3
"""HIP's names on CUDA (backends/hip/emu) are all that the sources use: that layer is compiled only
where nvcc is, so a name that is missing would be found late."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMU = ROOT / "backends/hip/emu/hip/hip_runtime.h"
# Written through the macro of backends/gpu/gpu_rt.h, or as they are.
NAME = re.compile(r"PKV_VENDOR\((\w+)\)|\b(hip[A-Z]\w*)")


def names(text):
    code = re.sub(r"//.*|#define PKV_VENDOR.*", "", text)
    return {"hip" + short if short else whole for short, whole in NAME.findall(code)}


def main():
    used = {}
    for folder in ("backends/gpu", "backends/hip"):
        for file in sorted((ROOT / folder).iterdir()):
            if file.suffix in (".h", ".cuh", ".cu", ".cpp"):
                used.update(dict.fromkeys(names(file.read_text()), file))
    assert len(used) > 30, used
    missing = {name: str(file) for name, file in used.items() if name not in names(EMU.read_text())}
    assert not missing, f"not in {EMU.relative_to(ROOT)}: {missing}"


if __name__ == "__main__":
    main()
