"""The command line on a device with memory of its own: the executor gpu-host with its device memory
out of the host's reach (PKV_GPU_HOST_APART). Whoever touches it there is killed."""

import signal
import subprocess
import sys

import pytest

STAGES = ["encode", "vote", "select", "rerank", "fetch", "attend", "step", "full_attention"]
SHAPE = ("--n", 64, "--kv-heads", 1, "--query-heads", 2, "--head-dim", 32, "--repeat", 1, "--k", 8)
TOUCH = """
import ctypes as c, sys
lib = c.CDLL(sys.argv[1])
runtime, device, stream, memory = (c.c_void_p() for _ in range(4))
assert lib.pkv_runtime_create(None, c.byref(runtime)) == 0
assert lib.pkv_device_open(runtime, b"gpu-host", 0, c.byref(device)) == 0
assert lib.pkv_stream_create(device, c.byref(stream)) == 0
assert lib.pkv_device_alloc(device, int(sys.argv[2]), c.c_int64(5000), c.byref(memory)) == 0
source, target = (c.create_string_buffer(text, 5000) for text in (b"kept", b""))
assert lib.pkv_device_copy(stream, memory, source, c.c_int64(5000)) == 0
assert lib.pkv_device_copy(stream, target, memory, c.c_int64(5000)) == 0
print(target.value.decode(), flush=True)
print(c.string_at(memory).decode(), flush=True)
"""


@pytest.fixture
def folder(cli):
    path = cli.path.parents[1] / "lib"
    if not (path / "test_backends" / "pariskv_backend_gpu-host.so").is_file():
        pytest.skip(f"{path}/test_backends has no gpu-host")
    return path


@pytest.fixture
def apart(cli, folder):
    settings = {"PKV_BACKEND_PATH": str(folder / "test_backends"), "PKV_GPU_HOST_APART": "1"}

    def run(*arguments):
        return cli(*arguments, "--backend", "gpu-host", env=settings)

    run.settings = settings
    return run


@pytest.mark.parametrize("kind, dies", [(1, True), (2, False)])
def test_device_memory_is_out_of_reach(apart, folder, kind, dies):
    done = subprocess.run(
        [sys.executable, "-c", TOUCH, folder / "libpariskv.so", str(kind)],
        env=apart.settings,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (
        (-signal.SIGSEGV, "kept\n") if dies else (0, "kept\nkept\n")
    ), done.stderr


def test_info_says_what_memory_there_is(apart):
    text = apart("info").succeeds().out
    assert "device 0: kernel executor on the host, 4.0 GiB, 32 lanes" in text


@pytest.mark.parametrize("rows", ["host", "device"])
def test_every_stage_is_measured(apart, rows):
    whole = apart("bench", *SHAPE, "--rows", rows, "--json").succeeds().json
    assert [row["stage"] for row in whole["results"]] == STAGES  # nothing to hold against a read
    assert {row["rows"] for row in whole["results"]} == {rows}
    assert {row["cold"] for row in whole["results"]} == {False}


@pytest.mark.parametrize("options", [("--warm",), ("--calls", 3), ("--tail", "mean"), ("--k", 0)])
def test_steps_of_all_kinds(apart, options):
    shape = [word for word in SHAPE if options[0] != "--k" or word not in ("--k", 8)]
    whole = apart("bench", *shape, "--batch", 2, "--stages", "step", *options, "--json")
    assert [row["stage"] for row in whole.succeeds().json["results"]] == ["step"]


def test_what_a_device_cannot_hold_is_said(apart):
    run = apart("bench", "--n", 2000000, "--rows", "device", "--stages", "step")
    run.refuses(5, "MiB of device memory", "4096 MiB are available")
