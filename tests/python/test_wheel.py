"""The wheel, from the library that has been built: what it holds, and that it works alone."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import numpy as np, pariskv
assert "site-packages" in str(pariskv.library_path()), pariskv.library_path()
cache = pariskv.Cache(1, 1, 2, 64, dtype="float32")
cache.add()
rows = np.ones((3, 1, 64), np.float32)
print(cache.step(0, np.ones((3, 2, 64), np.float32), rows, rows, exact=True).sum())
"""


def test_a_wheel_works_in_a_fresh_environment(pariskv, tmp_path):
    pytest.importorskip("scikit_build_core", reason="not installed: tools/test_python")
    library = pariskv.library_path()
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
        + ["-w", tmp_path, REPOSITORY, "-C", f"cmake.define.PARISKV_PREBUILT={library}"],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"pariskv-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert {"pariskv/py.typed", "pariskv/lib/libpariskv.so", "pariskv/hf/__init__.py"} <= set(names)
    foreign = [name for name in names if not re.match(r"pariskv(-[\d.]+\.dist-info)?/", name)]
    assert foreign == []
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
    python = venv / "bin" / "python"
    # numpy comes from the environment that runs this; nothing is downloaded.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PARISKV", "PYTHON"))}
    import numpy

    environment["PYTHONPATH"] = str(Path(numpy.__file__).parents[1])
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, env=environment)
    done = subprocess.run(
        [python, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "384.0\n"


def test_types_are_strict():
    pytest.importorskip("mypy", reason="mypy is not installed: tools/test_python")
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
