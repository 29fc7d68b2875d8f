#!/usr/bin/env python3
"""kernels_test.py PLUG-IN TABLE

tools/hip_kernels --check against tables that are wrong in one thing each: every rule is seen to
fire. And what the plug-in has code for: gfx90a of 64 lanes and gfx1030 of 32.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tool():
    loader = importlib.machinery.SourceFileLoader("hip_kernels", str(ROOT / "tools/hip_kernels"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("hip_kernels", loader))
    loader.exec_module(module)
    return module


def changed(table, key, **columns):
    return {**table, key: {**table[key], **columns}}


def main():
    hip_kernels = tool()
    rows, compiler = hip_kernels.read_files([sys.argv[1]])
    assert compiler.count(".") == 2, compiler
    table = hip_kernels.read_table(sys.argv[2])
    widths = {row["arch"]: row["lanes"] for row in rows.values()}
    print(widths)
    assert widths["gfx90a"] == 64 and widths["gfx1030"] == 32
    names = {arch: {kernel for a, kernel in rows if a == arch} for arch in widths}
    assert len({frozenset(kernels) for kernels in names.values()}) == 1, "not the same kernels"

    key = next(iter(rows))
    row = rows[key]
    others = {k: r for k, r in rows.items() if k != key}
    worse = [
        (rows, {k: r for k, r in rows.items() if k != key}, "not in the table"),
        (others, rows, "not in the code"),
        (changed(rows, key, lds=row["lds"] + 4), rows, "lds="),
        (changed(rows, key, scratch=row["scratch"] + 4), rows, "scratch="),
        (changed(rows, key, spills=row["spills"] + 1), rows, "spills="),
        (changed(rows, key, sspills=row["sspills"] + 1), rows, "sspills="),
        (changed(rows, key, waves=row["waves"] - 1), rows, "lane groups fit"),
    ]
    for found, against, text in worse:
        said = list(hip_kernels.complaints(found, against))
        assert len(said) == 1 and text in said[0], (text, said)
    assert not list(hip_kernels.complaints(rows, rows))
    assert not list(hip_kernels.beyond_limits(rows))
    said = list(hip_kernels.beyond_limits(changed(rows, key, lds=(64 << 10) + 4)))
    assert len(said) == 1 and "65540 bytes of LDS" in said[0], said
    assert table, "the table is empty"


if __name__ == "__main__":
    main()
