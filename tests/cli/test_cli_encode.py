"""pariskv encode: every kind of file gives the same index, whole files stay out of memory, options
reach the records."""

import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from cli_files import fvecs_bytes, npy_bytes, safetensors_bytes

RNG = np.random.default_rng(3)
KEYS = RNG.normal(size=(300, 32)).astype(np.float32)


def read_section(path, wanted):
    """Bytes of one section of a .pkv file, by docs/format.md."""
    content = path.read_bytes()
    (count,) = struct.unpack_from("<I", content, 24)
    for i in range(count):
        kind, _, offset, size = struct.unpack_from("<4sIQQ", content, 64 + 32 * i)
        if kind == wanted:
            return content[offset : offset + size]
    return None


@pytest.fixture
def encode(cli, tmp_path):
    """Encodes and returns the bytes of the index."""

    def run(path, *options):
        output = tmp_path / f"{path.name}.pkv"
        cli("encode", path, "--output", output, "--force", *options).succeeds()
        content = output.read_bytes()
        assert content[:8] == b"\x89PKV\r\n\x1a\n"
        return content

    return run


def write(path, content):
    path.write_bytes(content)
    return path


def test_every_kind_of_file_gives_the_same_index(encode, tmp_path):
    raw = KEYS.tobytes()
    wanted = encode(write(tmp_path / "k.npy", npy_bytes("<f4", KEYS.shape, raw)))
    for version in (2, 3):
        name = tmp_path / f"k{version}.npy"
        assert encode(write(name, npy_bytes("<f4", KEYS.shape, raw, version))) == wanted
    np.savez(tmp_path / "stored.npz", k=KEYS, other=KEYS[:1])
    np.savez_compressed(tmp_path / "deflated.npz", other=KEYS[:1], k=KEYS)
    assert encode(tmp_path / "stored.npz") == wanted
    assert encode(tmp_path / "deflated.npz") == wanted
    assert encode(write(tmp_path / "k.fvecs", fvecs_bytes(KEYS))) == wanted
    assert encode(write(tmp_path / "k.safetensors", safetensors_bytes({"k": KEYS}))) == wanted
    several = {"a": KEYS[:5], "k": KEYS + 1, "other": KEYS}
    path = write(tmp_path / "s.safetensors", safetensors_bytes(several))
    assert encode(path, "--tensor", "other") == wanted
    # One KV head may have an axis of its own.
    np.save(tmp_path / "k3.npy", KEYS[None])
    assert encode(tmp_path / "k3.npy") == wanted


def test_every_element_type_is_read_as_its_value(encode, tmp_path):
    halves = KEYS.astype(np.float16)
    for name, array in {
        "f16": halves,
        "f32": halves.astype(np.float32),
        "f64": halves.astype(np.float64),
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    wanted = encode(tmp_path / "f32.npy")
    assert encode(tmp_path / "f16.npy") == wanted
    assert encode(tmp_path / "f64.npy") == wanted

    bits = (KEYS.view(np.uint32) >> 16).astype(np.uint16)
    np.save(tmp_path / "of_bf16.npy", (bits.astype(np.uint32) << 16).view(np.float32))
    content = safetensors_bytes({"k": bits.view(np.float16)})
    path = write(
        tmp_path / "bf16.safetensors",
        content.replace(b'"F16"', b'"BF16"').replace(
            content[:8], struct.pack("<Q", struct.unpack("<Q", content[:8])[0] + 1), 1
        ),
    )
    assert encode(path) == encode(tmp_path / "of_bf16.npy")

    bytes_ = RNG.integers(0, 256, size=(100, 16)).astype(np.uint8)
    np.save(tmp_path / "u8.npy", bytes_)
    np.save(tmp_path / "of_u8.npy", bytes_.astype(np.float32))
    wanted = encode(tmp_path / "of_u8.npy")
    assert encode(tmp_path / "u8.npy") == wanted
    assert encode(write(tmp_path / "k.bvecs", fvecs_bytes(bytes_))) == wanted


def test_several_chunks_and_heads_are_those_of_the_heads_alone(cli, tmp_path):
    # More than 2^20 elements are read in several chunks.
    keys = np.random.default_rng(5).normal(size=(3, 30_000, 16)).astype(np.float32)
    np.save(tmp_path / "all.npy", keys)
    cli("encode", tmp_path / "all.npy", "--output", tmp_path / "all.pkv").succeeds()
    for plane in (b"SIGN", b"VFAC", b"CODE", b"FACT"):
        alone = b""
        for head in range(3):
            np.save(tmp_path / "one.npy", keys[head])
            output = tmp_path / f"{head}.pkv"
            cli("encode", tmp_path / "one.npy", "--output", output, "--force").succeeds()
            alone += read_section(output, plane)
        assert read_section(tmp_path / "all.pkv", plane) == alone


def peak_bytes(command, **environment):
    """Largest resident set of a command that succeeds.

    A child starts with the resident set that its parent had at the fork, and keeps it as its
    maximum: so a small interpreter forks it, not the one that holds all the tests.
    """
    measure = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", measure, *map(str, command)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1]) * 1024


def test_memory_does_not_grow_with_the_file(cli, tmp_path):
    if cli.has_sanitizer:
        pytest.skip("a sanitizer needs memory of its own")
    shape = (1 << 20, 16)
    path = write(tmp_path / "k.npy", npy_bytes("<f8", shape, b""))
    os.truncate(path, path.stat().st_size + 8 * shape[0] * shape[1])  # 128 MiB of holes
    records = 12 * shape[0]  # 2 signs, 2 vote factor, 6 codes, 2 factor
    peak = peak_bytes([cli.path, "encode", path, "--output", tmp_path / "k.pkv"])
    assert peak < records + (80 << 20)


def test_a_member_of_a_zip_does_not_stay_in_memory_or_in_the_folder_for_it(cli, tmp_path):
    if cli.has_sanitizer:
        pytest.skip("a sanitizer needs memory of its own")
    shape = (1 << 20, 16)
    with zipfile.ZipFile(tmp_path / "k.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("k.npy", "w", force_zip64=True) as member:
            member.write(npy_bytes("<f8", shape, b""))
            for _ in range(128):
                member.write(bytes(1 << 20))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [cli.path, "encode", tmp_path / "k.npz", "--output", tmp_path / "k.pkv"]
    peak = peak_bytes(command, TMPDIR=str(scratch))
    assert peak < 12 * shape[0] + (80 << 20)
    assert list(scratch.iterdir()) == []


def test_an_unpacking_folder_that_is_not_there_is_named(cli, tmp_path):
    np.savez(tmp_path / "k.npz", k=KEYS)
    run = cli(
        "encode",
        tmp_path / "k.npz",
        "--output",
        tmp_path / "k.pkv",
        env={"TMPDIR": str(tmp_path / "gone")},
    )
    run.refuses(5, "gone", "TMPDIR")


def test_the_summary_as_json_and_as_text(cli, tmp_path):
    np.save(tmp_path / "k.npy", np.ones((2, 40, 64), np.float16) * np.arange(1, 41)[None, :, None])
    output = tmp_path / "k.pkv"
    summary = cli("encode", tmp_path / "k.npy", "--output", output, "--json").succeeds().json
    assert summary.pop("seconds") > 0
    assert summary == {
        "output": str(output),
        "backend": "cpu",
        "n": 40,
        "kv_heads": 2,
        "head_dim": 64,
        "bytes_per_key": 36,  # 8 signs, 2 vote factor, 24 codes, 2 factor
        "bad_keys": 0,
    }
    text = cli("encode", tmp_path / "k.npy", "--output", output, "--force").succeeds()
    assert "40 keys x 2 KV heads, head_dim 64, 36.0 bytes per key" in text.out
    assert "warning: codec fitted on 40 keys" in text.err


def geometry_of(cli, path):
    return cli("inspect", path, "--json").succeeds().json["geometry"]


def test_options_and_profiles_reach_the_file(cli, tmp_path):
    np.save(tmp_path / "k.npy", KEYS)
    output = tmp_path / "k.pkv"

    def encoded(*options):
        cli("encode", tmp_path / "k.npy", "--output", output, "--force", *options).succeeds()
        return geometry_of(cli, output)

    assert encoded()["codec"] == "scalar4"
    paper = encoded("--profile", "paper")
    assert (paper["codec"], paper["vote"], paper["center"], paper["balance"]) == (
        "polar4", "tier", "off", "off")  # fmt: skip
    mixed = encoded("--profile=paper", "--codec=scalar5", "--seed", "99", "--rounds", "2")
    assert (mixed["codec"], mixed["vote"], mixed["seed"], mixed["rounds"]) == (
        "scalar5", "tier", "99", "2")  # fmt: skip
    prefix = encoded("--v-source", "k_prefix", "--value-dim", "24", "--tail", "sketch2")
    assert (prefix["v_source"], prefix["value_dim"], prefix["tail"]) == (
        "k_prefix",
        "24",
        "sketch2",
    )
    assert encoded("--v_source", "none")["value_dim"] == "0"


def test_options_that_exclude_each_other_are_refused(cli, tmp_path):
    np.save(tmp_path / "k.npy", np.ones((4, 24), np.float32))
    output = tmp_path / "k.pkv"
    run = cli("encode", tmp_path / "k.npy", "--output", output, "--rounds", "2")
    assert run.code in (2, 3)
    assert "rounds" in run.err
    assert not output.exists()


def test_queries_and_values_reach_the_fit(cli, tmp_path):
    tensors = {
        "k": np.repeat(KEYS[None], 2, axis=0),
        "v": RNG.normal(size=(2, 300, 48)).astype(np.float16),
        "q": RNG.normal(size=(20, 6, 32)).astype(np.float16) * np.linspace(1, 9, 32),
    }
    tensors["q"] = tensors["q"].astype(np.float16)
    path = write(tmp_path / "t.safetensors", safetensors_bytes(tensors))

    def balance(*options):
        output = tmp_path / "t.pkv"
        cli("encode", path, "--output", output, "--force", *options).succeeds()
        index = cli("inspect", output, "--json").json
        return index, index["heads"][0]["balance_min"], index["heads"][0]["balance_max"]

    index, least, most = balance()
    assert (least, most) == (1, 1)
    index, least, most = balance("--queries", path, "--values", path, "--tail", "sketch4")
    assert least < 0.8 < 1.3 < most
    assert index["geometry"]["value_dim"] == "48"
    assert {"VSGN", "VCOD", "VWGT"} <= {section["type"] for section in index["sections"]}
    few = balance("--queries", f"{path}:q", "--fit-queries", "1", "--fit-keys", "7")
    assert few[1] < 1


def test_bad_keys_are_refused_or_isolated_as_asked(cli, tmp_path):
    keys = KEYS.copy()
    keys[[5, 200]] = np.inf
    np.save(tmp_path / "k.npy", keys)
    output = tmp_path / "k.pkv"
    cli("encode", tmp_path / "k.npy", "--output", output).refuses(3, "k.npy", "position 5")
    assert not output.exists()
    options = ("--nonfinite", "isolate", "--json")
    run = cli("encode", tmp_path / "k.npy", "--output", output, *options)
    assert run.succeeds().json["bad_keys"] == 2
    assert cli("inspect", output, "--json").json["heads"][0]["bad_keys"] == 2
    run = cli("retrieve", output, tmp_path / "k.npy", "--json", "--candidates", "1", "--k", "300")
    counts = [entry["count"] for entry in run.succeeds().json["results"]]
    assert set(counts) == {0, 298}  # two of the queries are bad as well
