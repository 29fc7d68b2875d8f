"""What the built library and programs ask of a machine."""

import platform
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from capi import LIBRARY

ROOT = Path(__file__).resolve().parents[2]

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has these")

# What plain x86-64 lacks: by the encoding's first letter, by name. (tzcnt is left out: compilers
# write it where bsf will do.)
WIDE = re.compile(r"v(?!err|erw)|k(mov|or|and|xor|not|add|shift|unpck)")
NARROW = re.compile(
    r"pshufb|pabs|palignr|ph(add|sub)|pmaddubsw|pmulhrsw|psign|pmul(ld|dq)|p(min|max)(sb|uw|sd|ud)"
    r"|pmov[sz]x|ptest|round[ps][sd]|p(insr|extr)[bdq]|extractps|insertps|p?blend|pcmp(eq|gt)q"
    r"|pcmp[ei]str|packusdw|crc32|aes|pclmul|mov(d|sh|sl)dup|h(add|sub)p|addsubp|lddqu|dpp[sd]"
    r"|andn$|bextr|bls|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|popcnt"
)


def users_of(pattern, file):
    """Functions of `file` in which an instruction matches."""
    command = ["objdump", "-d", "-C", "--no-show-raw-insn", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    users, function = set(), None
    for line in text.splitlines():
        head = re.fullmatch(r"[0-9a-f]+ <(.*)>:", line)
        if head:
            function = head[1]
        elif pattern.match(line.partition("\t")[2]):
            users.add(function)
    return users


def within(users, *sets):
    return {name for name in users if any(f"::N_{one}::" in name for one in sets)}


@x86_64
def test_wide_instructions_stand_in_kernels_alone(cli):
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    wide, narrow = users_of(WIDE, LIBRARY), users_of(NARROW, LIBRARY)
    for one in ("AVX2", "AVX3"):  # or the search would be blind
        assert len(within(wide, one)) > 20
    assert len(within(narrow, "SSE4")) > 20
    assert wide - within(wide, "AVX2", "AVX3") == set()
    assert narrow - within(narrow, "SSE4", "AVX2", "AVX3") == set()
    for program in (cli.path, cli.path.with_name("pkv-conformance")):
        assert users_of(WIDE, program) | users_of(NARROW, program) == set()


@x86_64
@pytest.mark.parametrize(
    "processor, backend", [("qemu64", "cpu_ref"), ("Nehalem", "cpu_ref"), ("Westmere", "cpu")]
)
def test_programs_run_without_avx(cli, processor, backend):
    """qemu64: x86-64 as it first was. Westmere: SSE4.2 and AES, which the sse4 kernels ask for."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("qemu-x86_64 is not installed")

    def run(*command):
        emulated = ["qemu-x86_64", "-cpu", processor, *map(str, command)]
        return subprocess.run(emulated, capture_output=True, text=True, check=True).stdout

    assert "cpu_ref" in run(cli.path, "info")
    conformance = cli.path.with_name("pkv-conformance")
    out = run(conformance, "--backend", "auto", "--shard", "1/40")
    assert f": {backend} (" in out.splitlines()[0]
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed, \d+ skipped", out.splitlines()[-1])


def test_kernel_instances_are_bounded_and_documented():
    """Compiled for HIP all kernels are listed, one row each (ctest hip.kernels holds the list
    against the code objects); cuda has the same sources, and the instances of the fused step."""
    rows = (ROOT / "docs" / "hip_kernels.txt").read_text().splitlines()
    kernels = Counter(row.split()[0] for row in rows if row.strip().startswith("gfx"))
    assert len(kernels) > 1 and len(set(kernels.values())) == 1
    shared = next(iter(kernels.values()))
    sources = "".join(f.read_text() for f in (ROOT / "backends" / "cuda").glob("fused_step_*.cu"))
    fused = re.findall(r"^template gpuError_t launch_fused_shaped<([^>]*)>", sources, re.MULTILINE)
    assert len(set(fused)) == len(fused) > 0
    assert shared + len(fused) <= 100  # each is compiled for every architecture
    text = " ".join((ROOT / "docs" / "gpu.md").read_text().split())
    assert f"{shared} kernels, and {len(fused)} instances of the fused step" in text
