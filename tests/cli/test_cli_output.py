"""Outputs appear whole or not at all: refusals, full disks, signals."""

import errno
import os
import pty
import signal
import subprocess
import time

import numpy as np
import pytest
from cli_files import npy_bytes, write_trace

KEYS = np.random.default_rng(3).normal(size=(200, 32)).astype(np.float32)


@pytest.fixture
def keys(tmp_path):
    np.save(tmp_path / "k.npy", KEYS)
    return tmp_path / "k.npy"


@pytest.fixture
def large(tmp_path):
    """Keys that take long to encode: 512 MiB, all holes."""
    path = tmp_path / "large.npy"
    path.write_bytes(npy_bytes("<f4", (1 << 21, 64), b""))
    os.truncate(path, path.stat().st_size + (1 << 29))
    return path


def start(cli, *arguments, stderr=subprocess.PIPE):
    """The slow backend at work, past the point where it watches signals."""
    command = [str(cli.path), *map(str, arguments), "--backend", "cpu_ref"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    deadline = time.monotonic() + 30
    while not watches_interrupts(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    assert child.poll() is None
    return child


def watches_interrupts(pid):
    with open(f"/proc/{pid}/status") as status:
        (caught,) = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


def test_an_output_that_is_there_stays_without_force(cli, keys, tmp_path):
    output = tmp_path / "k.pkv"
    output.write_bytes(b"precious")
    cli("encode", keys, "--output", output).refuses(2, "k.pkv", "--force")
    assert output.read_bytes() == b"precious"
    cli("encode", keys, "--output", output, "--force").succeeds()
    assert output.read_bytes().startswith(b"\x89PKV")


@pytest.mark.parametrize("verb", ["info", "retrieve", "eval", "inspect"])
def test_results_go_to_a_file_the_same_way(cli, keys, tmp_path, verb):
    write_trace(tmp_path / "t.safetensors")
    cli("encode", keys, "--output", tmp_path / "k.pkv").succeeds()
    arguments = {
        "info": ["info"],
        "retrieve": ["retrieve", tmp_path / "k.pkv", keys],
        "eval": [
            "eval",
            tmp_path / "t.safetensors",
            "--fit-queries",
            "3",
            "--methods",
            "streaming",
        ],
        "inspect": ["inspect", tmp_path / "k.pkv"],
    }[verb]
    output = tmp_path / "out.txt"
    printed = cli(*arguments).succeeds().out
    assert cli(*arguments, "--output", output).succeeds().out == ""
    if verb != "eval":  # times differ
        assert output.read_text() == printed
    before = output.read_text()
    cli(*arguments, "--output", output).refuses(2, "out.txt", "--force")
    assert output.read_text() == before
    cli(*arguments, "--output", output, "--force").succeeds()
    names = ["k.npy", "k.pkv", "out.txt", "t.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_an_input_is_not_replaced_by_the_output(cli, keys, tmp_path):
    cli("encode", keys, "--output", keys, "--force").refuses(2, "input")
    os.link(keys, tmp_path / "same.npy")
    cli("encode", keys, "--output", tmp_path / "same.npy", "--force").refuses(2, "input")
    assert np.array_equal(np.load(keys), KEYS)


def test_outputs_that_cannot_be_written(cli, keys, tmp_path, no_leftovers):
    cli("encode", keys, "--output", tmp_path / "gone" / "k.pkv").refuses(5, "gone", "No such file")
    cli("encode", keys, "--output", keys / "k.pkv").refuses(5, "k.npy is not a folder")
    (tmp_path / "folder").mkdir()
    cli("encode", keys, "--output", tmp_path / "folder", "--force").refuses(2, "folder")
    cli("encode", keys, "--output", "/dev/null", "--force").refuses(2, "/dev/null")
    cli("encode", keys, "--output", "/proc/k.pkv").refuses(5, "/proc/k.pkv")
    cli("info", "--output", tmp_path / "gone" / "x").refuses(5, "gone")
    no_leftovers("folder", "k.npy")


def test_a_folder_without_the_right_to_write(cli, keys, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    cli("encode", keys, "--output", folder / "k.pkv").refuses(5, "locked", "Permission denied")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"no mount: {error}")
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_nothing(cli, small_disk, tmp_path):
    np.save(tmp_path / "many.npy", np.random.default_rng(1).normal(size=(80_000, 32)))
    output = small_disk / "k.pkv"
    run = cli("encode", tmp_path / "many.npy", "--output", output)
    run.refuses(5, os.strerror(errno.ENOSPC))
    assert list(small_disk.iterdir()) == []
    output.write_bytes(b"precious")
    run = cli("encode", tmp_path / "many.npy", "--output", output, "--force")
    run.refuses(5, os.strerror(errno.ENOSPC))
    assert [p.name for p in small_disk.iterdir()] == ["k.pkv"]
    assert output.read_bytes() == b"precious"


def test_a_full_disk_for_results_leaves_nothing(cli, keys, small_disk, tmp_path):
    cli("encode", keys, "--output", tmp_path / "k.pkv").succeeds()
    np.save(tmp_path / "q.npy", np.ones((1500, 32), np.float32))
    run = cli(
        "retrieve",
        tmp_path / "k.pkv",
        tmp_path / "q.npy",
        "--json",
        "--output",
        small_disk / "hits.json",
    )
    run.refuses(5, "hits.json", os.strerror(errno.ENOSPC))
    assert list(small_disk.iterdir()) == []


def test_a_full_disk_for_unpacking_is_named(cli, small_disk, tmp_path):
    np.savez_compressed(tmp_path / "k.npz", k=np.zeros((40_000, 32), np.float32))
    run = cli(
        "encode",
        tmp_path / "k.npz",
        "--output",
        tmp_path / "k.pkv",
        env={"TMPDIR": str(small_disk)},
    )
    run.refuses(5, os.strerror(errno.ENOSPC), "TMPDIR")
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["--version"], ["eval", "--help"]])
def test_a_stdout_that_takes_nothing_is_a_failure(cli, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [cli.path, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 5
    assert "stdout" in done.stderr


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_encode_without_half_a_file(cli, large, tmp_path, number, code):
    child = start(cli, "encode", large, "--output", tmp_path / "k.pkv")
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert (out, err) == ("", "pariskv: interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["large.npy"]


def test_a_signal_leaves_what_was_there(cli, large, tmp_path):
    output = tmp_path / "k.pkv"
    output.write_bytes(b"precious")
    child = start(cli, "encode", large, "--output", output, "--force")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert output.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["k.pkv", "large.npy"]


def test_a_signal_stops_eval(cli, tmp_path):
    trace = tmp_path / "t.safetensors"
    write_trace(trace, n=6000, d=64, queries=400)
    options = ("--seeds", "1..20", "--fit-queries", "3", "--output", tmp_path / "out.json")
    child = start(cli, "eval", trace, *options)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]


def test_progress_is_for_terminals_only(cli, large, tmp_path):
    terminal, end = pty.openpty()
    child = start(cli, "encode", large, "--output", tmp_path / "k.pkv", stderr=end)
    os.close(end)
    seen = b""
    deadline = time.monotonic() + 60
    while b"encode [" not in seen and time.monotonic() < deadline:
        seen += os.read(terminal, 1024)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    os.close(terminal)
    assert child.returncode == 130
    assert b"%" in seen
    assert out == ""
