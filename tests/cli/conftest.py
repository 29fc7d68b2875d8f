"""Fixtures of the command line's tests. PARISKV_CLI names the program."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_CLI = REPOSITORY / "build" / "dev" / "bin" / "pariskv"


@dataclass
class Run:
    """What one run of the program left."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    def refuses(self, code, *texts):
        """The exit code, each text in the message, nothing on stdout, no crash."""
        assert self.code == code, f"exit code {self.code} instead of {code}: {self.err}"
        assert self.out == ""
        assert self.err.startswith("pariskv: ")
        for text in texts:
            assert str(text) in self.err, f"{text!r} is not in {self.err!r}"

    def succeeds(self):
        assert self.code == 0, f"exit code {self.code}: {self.err}"
        return self


class Program:
    def __init__(self, path):
        self.path = path
        # A sanitizer's shadow memory is far larger than what the program takes.
        self.has_sanitizer = b"__asan_" in path.read_bytes()

    def __call__(self, *arguments, cwd=None, env=None, timeout=300, **kwargs):
        done = subprocess.run(
            [str(self.path), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            timeout=timeout,
            **kwargs,
        )
        return Run(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def cli():
    path = Path(os.environ.get("PARISKV_CLI", DEFAULT_CLI))
    if not path.is_file():
        pytest.skip(f"{path} is not built (PARISKV_CLI names the program)")
    return Program(path)


@pytest.fixture
def no_leftovers(tmp_path):
    """Names the folder's files at the end: a refused or stopped run must add none."""

    def check(*expected):
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(expected)

    return check
