"""bench/gpu_rows: rows in host memory that the CPU rewrites, on every backend that is there; a
graph is replayed where the vendor's runtime is. PARISKV_LIBRARY names the library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))

from bench import gpu_rows  # noqa: E402
from bench.compare import capi  # noqa: E402

BACKENDS = ("cpu_ref", "cpu", "gpu-host", "cuda", "hip", "hip-emu")


def library_path():
    path = capi.library_path()
    if not path.is_file():
        pytest.skip(f"{path} is not built (PARISKV_LIBRARY names the library)")
    return path


def opened(backend):
    path = library_path()
    plugin = path.parent / "test_backends" / f"pariskv_backend_{backend}.so"
    try:
        return capi.Library(path, backend, plugin=plugin if plugin.is_file() else None)
    except capi.PariskvError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rewritten_rows_are_fetched_as_they_are_now(backend):
    library = opened(backend)
    work = gpu_rows.Rewriting(library)
    work.retrieve()
    work.fetch()
    library.sync()
    assert work.stale() == 0
    work.rewrite(3)
    assert work.stale() == 2 * gpu_rows.DIM  # K and V of the row, until it is fetched again
    work.fetch()
    library.sync()
    assert work.stale() == 0
    del work
    library.close()


@pytest.mark.parametrize("backend", ["cuda", "hip", "hip-emu"])
def test_a_replayed_graph_brings_the_new_bytes(backend):
    path = library_path()
    opened(backend).close()
    command = [sys.executable, "-m", "bench.gpu_rows", "--backend", backend]
    command += ["--prefix", path.parents[1]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["launched"], result["replayed"]) == (0, 0)
