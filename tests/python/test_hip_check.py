"""tools/hip_check: its verdict, with programs that answer what a device might."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "hip_check"
LACKS = "FAILED_PRECONDITION: host_memory=shared: device 0 does not report hipDeviceAttribute.."


def load():
    loader = importlib.machinery.SourceFileLoader("hip_check", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("hip_check", loader))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes
    return module


class Machine:
    """Answers commands by the first key that is in one: (exit code, stdout, stderr)."""

    def __init__(self, folder, **answers):
        self.folder, self.commands = folder, []
        self.answers = {
            "gpu_check": (0, "conformance  ok  9 passed", ""),
            "host_memory=shared --filter": (4, "", LACKS),
            "pkv-conformance": (0, "30 passed, 0 failed, 0 skipped", ""),
            "bench.gpu_rows": (0, '{"launched": 0, "replayed": 0}', ""),
            "amdgpu-arch": (0, "gfx90a\ngfx90a\n", ""),
            "rocm_agent_enumerator": (0, "gfx000\ngfx1100\n", ""),
        }
        self.answers = {**answers, **{k: v for k, v in self.answers.items() if k not in answers}}
        self.passed = 9

    def __call__(self, *command, **more):
        text = " ".join(map(str, command))
        self.commands.append(text)
        if "gpu_check" in text:
            (self.folder / "conformance.json").write_text(json.dumps({"passed": self.passed}))
        code, out, err = next((a for key, a in self.answers.items() if key in text), (0, "", ""))
        return subprocess.CompletedProcess(command, code, out, err)


@pytest.fixture
def check(tmp_path, monkeypatch):
    def run(prefix=True, passed=9, **answers):
        module, machine = load(), Machine(tmp_path, **answers)
        machine.passed = passed
        monkeypatch.setattr(module, "run", machine)
        monkeypatch.setattr(module.shutil, "which", lambda name, **more: name)
        words = ["--prefix", str(tmp_path)] if prefix else []
        monkeypatch.setattr(sys, "argv", ["hip_check", str(tmp_path), *words])
        code = module.main()
        return code, (tmp_path / "verdict.txt").read_text(), machine.commands

    return run


def test_a_device_that_does_all_passes(check):
    code, verdict, commands = check()
    assert code == 0 and verdict.startswith("pariskv hip_check: PASSED\n"), verdict
    assert "conformance  ok  9 passed" in verdict and LACKS in verdict
    rows = [text for text in commands if "gpu_rows" in text]
    assert [text.rpartition("=")[2] for text in rows] == ["fine", "coarse", "managed"]


@pytest.mark.parametrize(
    "answers",
    [
        {"gpu_check": (1, "conformance  FAILED", "")},
        {"bench.gpu_rows": (1, '{"launched": 0, "replayed": 3}', "")},
        {"host_memory=coarse --filter": (1, "29 passed, 1 failed, 0 skipped", "")},
        {"host_memory=shared --filter": (4, "", "UNAVAILABLE: out of order")},
        {"host_memory=fine --filter": (-11, "", "")},
    ],
    ids=["conformance", "stale", "kind", "other_refusal", "crash"],
)
def test_anything_wrong_fails(check, answers):
    code, verdict, _ = check(**answers)
    assert code == 1 and verdict.startswith("pariskv hip_check: FAILED\n"), verdict


def test_a_conformance_without_cases_is_no_pass(check):
    assert check(passed=0)[0] == 1


def test_no_device_is_said(check):
    code, verdict, commands = check(gpu_check=(4, "info  FAILED  hip: no device", ""))
    assert code == 4 and verdict.startswith("pariskv hip_check: NO DEVICE\n")
    assert "hip: no device" in verdict and not any("host_memory" in text for text in commands)


def test_it_builds_for_the_devices_that_are_there(check):
    code, _, commands = check(prefix=False)
    assert code == 0
    assert "cmake --preset hip -DPARISKV_HIP_ARCHITECTURES=gfx90a" in commands
    code, _, commands = check(prefix=False, **{"amdgpu-arch": (1, "", "no driver")})
    assert "cmake --preset hip -DPARISKV_HIP_ARCHITECTURES=gfx1100" in commands


def test_a_failed_build_is_said(check):
    code, verdict, _ = check(prefix=False, **{"--build": (1, "", "x.cu: error: y")})
    assert code == 4 and verdict.startswith("pariskv hip_check: NOT BUILT\n")
    assert "x.cu: error: y" in verdict
