"""What the tests of an installed copy share: programs that run, builds by CMake and by cargo."""

import argparse
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"


def run(*command, **kwargs):
    """stdout; an exception with all that was printed if the exit code is not 0."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass
class Outside:
    """An installed copy in `prefix`, and an empty folder to work in, outside the tree."""

    prefix: Path
    work: Path
    generator: str

    @property
    def library(self):
        return next(self.prefix.glob("lib*/**/libpariskv.so"))

    @property
    def backends(self):
        """Skeleton and reference, as installed."""
        return self.prefix / "share" / "pariskv" / "backends"

    def program(self, name):
        return self.prefix / "bin" / name

    def copy(self, source, name=None):
        """A copy of a folder of the sources: what is built stands beside nothing of ours."""
        target = self.work / (name or source.name)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("target", "build"))
        return target

    def cmake(self, source):
        """The folder in which `source` was built against the installed package."""
        cmake, build = os.environ.get("CMAKE", "cmake"), self.work / f"build_{source.name}"
        options = ("-G", self.generator, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(cmake, "-S", source, "-B", build, *options)
        run(cmake, "--build", build)
        return build

    def cargo(self, source):
        """The folder with what cargo made of `source`, without a network; None without cargo."""
        cargo = shutil.which("cargo", path="/usr/bin") or shutil.which("cargo")
        if cargo is None:
            print(f"skipped: {source.name}: cargo is not installed")
            return None
        environment = dict(os.environ, PARISKV_PREFIX=str(self.prefix))
        target = self.work / f"target_{source.name}"
        manifest = source / "Cargo.toml"
        run(cargo, "build", "--quiet", "--offline", "--release", "--manifest-path", manifest,
            "--target-dir", target, env=environment)  # fmt: skip
        return target / "release"


def from_command_line():
    """(the installed copy, the build that it is of)"""
    parser = argparse.ArgumentParser()
    for name in ("build", "prefix", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    cache = (options.build / "CMakeCache.txt").read_text()
    generator = re.search(r"^CMAKE_GENERATOR:INTERNAL=(.+)$", cache, re.MULTILINE)[1]
    return Outside(options.prefix, options.work, generator), options.build  # there may be no make
