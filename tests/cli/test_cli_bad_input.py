"""Files that are truncated, damaged or hostile: exit code 3, the file and the numbers named, and no
output. Sizes in headers must be refused before memory is taken for them."""

import io
import resource
import struct
import zipfile

import numpy as np
import pytest
from cli_files import fvecs_bytes, make_trace, npy_bytes, safetensors_bytes

KEYS = np.random.default_rng(7).normal(size=(50, 16)).astype(np.float32)
GIB = 1 << 30


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB))


@pytest.fixture
def refuses(cli, tmp_path):
    """Writes a file, encodes it, and holds the refusal against what is expected."""

    def check(name, content, *texts, code=3, options=()):
        path = tmp_path / name
        path.write_bytes(content)
        output = tmp_path / "out.pkv"
        limit = None if cli.has_sanitizer else limit_memory
        run = cli("encode", path, "--output", output, *options, preexec_fn=limit)
        run.refuses(code, name, *texts)
        assert [p.name for p in tmp_path.iterdir()] == [name]
        path.unlink()

    return check


# ---- What the issue of silent shapes is about ---------------------------------------------


def test_npy_with_fewer_bytes_than_promised(refuses):
    data = bytes(255_000)
    refuses("k.npy", npy_bytes("<f2", (1000, 128), data), "256000", "255000")


def test_fvecs_with_another_dimension_in_its_seventh_record(refuses):
    rows = fvecs_bytes(np.ones((6, 128), np.float32))
    other = fvecs_bytes(np.ones((1, 64), np.float32)) + bytes(4 * 64)
    refuses("k.fvecs", rows + other + rows, "record 6", "d=64", "d=128")


def test_head_dim_that_no_backend_takes(refuses):
    refuses("k.npy", npy_bytes("<f4", (4, 100), bytes(1600)), "head_dim=100", "8..576", "info")
    refuses("k.npy", npy_bytes("<f4", (4, 584), bytes(4 * 584 * 4)), "head_dim=584", "8..576")


# ---- Truncated at every kind of length -----------------------------------------------------------


def every_length(content):
    """All short lengths, then some in the middle, and the last one."""
    size = len(content)
    return sorted(
        {*range(0, min(size, 160), 7), 1, 4, 7, 8, 9, 10, *range(160, size, 331), size - 1}
    )


@pytest.mark.parametrize("kind", ["safetensors", "npy", "fvecs", "bvecs", "npz"])
def test_a_truncated_file_is_refused_at_every_length(cli, tmp_path, kind):
    packed = io.BytesIO()
    np.savez_compressed(packed, k=KEYS)
    content = {
        "safetensors": safetensors_bytes({"k": KEYS}),
        "npy": npy_bytes("<f4", KEYS.shape, KEYS.tobytes()),
        "fvecs": fvecs_bytes(KEYS),
        "bvecs": fvecs_bytes(np.ones((50, 16), np.uint8)),
        "npz": packed.getvalue(),
    }[kind]
    path, output = tmp_path / f"k.{kind}", tmp_path / "out.pkv"
    record = {"fvecs": 4 + 16 * 4, "bvecs": 4 + 16}.get(kind)
    for length in every_length(content):
        if record and length > 0 and length % record == 0:
            continue  # a shorter file that is whole
        path.write_bytes(content[:length])
        run = cli("encode", path, "--output", output)
        run.refuses(3, path.name)
        assert not output.exists(), length


def test_a_file_with_more_than_was_promised_is_refused(refuses):
    refuses("k.npy", npy_bytes("<f4", KEYS.shape, KEYS.tobytes() + b"x"), "3200", "3201")
    refuses("k.safetensors", safetensors_bytes({"k": KEYS}) + b"x", "3200", "3201")


# ---- Hostile numbers -----------------------------------------------------------------------------

HUGE = [2**31, 2**32 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]


@pytest.mark.parametrize("n", HUGE)
def test_huge_extents_in_npy(refuses, n):
    refuses("k.npy", npy_bytes("<f4", (n, 16), KEYS.tobytes()))
    refuses("k.npy", npy_bytes("<f4", (n, 0), b""))


@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("field", ["shape", "begin", "end", "both"])
def test_huge_numbers_in_safetensors(refuses, n, field):
    def edit(header):
        if field in ("shape", "both"):
            header["k"]["shape"] = [n, 16]
        if field in ("begin", "both"):
            header["k"]["data_offsets"][0] = n
        if field in ("end", "both"):
            header["k"]["data_offsets"][1] = n

    refuses("k.safetensors", safetensors_bytes({"k": KEYS}, edit=edit), "tensor k")


@pytest.mark.parametrize("n", [0, 1, 2**31 - 1, 2**32, 2**63, 2**64 - 1])
def test_any_header_length_of_safetensors(refuses, n):
    content = struct.pack("<Q", n) + safetensors_bytes({"k": KEYS})[8:]
    refuses("k.safetensors", content)


@pytest.mark.parametrize("n", [0, -1, 65537, 2**31 - 1, -(2**31)])
def test_any_dimension_of_fvecs(refuses, n):
    refuses("k.fvecs", struct.pack("<i", n) + bytes(64), f"d={n}", "1..65536")


def test_an_fvecs_of_a_few_bytes_that_promises_much(refuses):
    refuses("k.fvecs", struct.pack("<i", 65536) + bytes(64), "68 bytes", "262148")


def test_a_zip_that_promises_more_than_deflate_can_give(refuses, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("k.npy", npy_bytes("<f4", KEYS.shape, KEYS.tobytes()))
    content = bytearray(packed.getvalue())
    for signature, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = content.index(signature) + at
        content[start : start + 4] = struct.pack("<I", 2**32 - 2)
    refuses("k.npz", bytes(content), "k.npz")


# ---- Headers that are no headers -----------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        "nonsense",
        "{'descr': '<f4', 'shape': (50, 16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (50, 16), 'more': 1}",
        "{'descr': '<f4', 'descr': '<f2', 'fortran_order': False, 'shape': (50, 16)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (50, 16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (50, -16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [50, 16]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (50, 16)} + 1",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (50, 16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 50, 16)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (50, 16)",
        "(" * 5000,
    ],
    ids=range(15),
)
def test_npy_headers_that_are_none(refuses, header):
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    refuses("k.npy", head + KEYS.tobytes())


def test_npy_of_another_type_order_or_version(refuses):
    raw = KEYS.tobytes()
    refuses("k.npy", npy_bytes(">f4", (50, 16), raw), ">f4", "<f4")
    refuses("k.npy", npy_bytes("<i4", (50, 16), raw), "i32", "f32")
    refuses("k.npy", npy_bytes("<c8", (25, 16), raw), "<c8")
    refuses("k.npy", npy_bytes("|O", (50, 16), raw), "|O")
    refuses("k.npy", npy_bytes("<f4", (50, 16), raw, order="True"), "fortran_order")
    refuses("k.npy", b"\x93NUMPY\x04\x00" + bytes(100), "version 4", "1, 2, 3")
    refuses("k.npy", b"\x94NUMPY\x01\x00" + bytes(100), "NUMPY")


def test_shapes_of_too_few_or_too_many_axes(refuses):
    raw = KEYS.tobytes()
    refuses("k.npy", npy_bytes("<f4", (800,), raw), "[800]", "2 axes", "3 axes")
    refuses("k.npy", npy_bytes("<f4", (1, 1, 50, 16), raw), "[1, 1, 50, 16]")
    refuses("k.npy", npy_bytes("<f4", (0, 16), b""), "axis 0 is 0", "1..2147483647")


def edited(change):
    """A sound file whose header was changed."""
    return safetensors_bytes({"a": KEYS, "k": KEYS}, edit=change)


def set_field(tensor, **fields):
    return lambda header: header[tensor].update(fields)


@pytest.mark.parametrize(
    "change, text",
    [
        (set_field("k", shape=[50, -16]), "shape"),
        (set_field("k", shape=[50.0, 16]), "shape"),
        (set_field("k", shape="50"), "shape"),
        (set_field("k", shape=[51, 16]), "3264"),
        (set_field("k", dtype="F16"), "1600"),
        (set_field("k", dtype="Q4"), "Q4"),
        (set_field("k", dtype=4), "dtype"),
        (set_field("k", data_offsets=[3200]), "data_offsets"),
        (set_field("k", data_offsets=[6400, 3200]), "data_offsets"),
        (set_field("k", data_offsets=[0, 3200]), "overlap"),
        (set_field("k", data_offsets=[3201, 6401]), "data_offsets"),
        (lambda header: header.pop("a"), "gap"),
        (lambda header: header["k"].pop("shape"), "shape"),
        (lambda header: header.update(k=5), "tensor k"),
        (lambda header: header.update(__metadata__={"a": 1}), "__metadata__"),
        (lambda header: header.update(__metadata__=[]), "__metadata__"),
    ],
)
def test_safetensors_headers_that_do_not_fit(refuses, change, text):
    refuses("k.safetensors", edited(change), text)


@pytest.mark.parametrize(
    "header, text",
    [
        (b"", "JSON"),
        (b"null", "JSON"),
        (b"[1]", "JSON"),
        (b'{"k": ', "JSON"),
        (b'{"k": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}} x', "JSON"),
        (b'{"k": "\xff"}', "JSON"),
        (b"[" * 100_000, "header"),
        (b'{"a":' * 50_000, "header"),
        (b'{"k": {}, "k": {}}', "twice"),
        (b'{"k": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}', "twice"),
        (b'{"k": {"dtype": "F32", "shape": [[[1]]], "data_offsets": [0, 4]}}', "deeper"),
    ],
    ids=range(11),
)
def test_safetensors_headers_that_are_none(refuses, header, text):
    refuses("k.safetensors", struct.pack("<Q", len(header)) + header + bytes(4), text)


def test_a_missing_tensor_is_named_with_those_there_are(refuses):
    refuses("k.safetensors", safetensors_bytes({"key": KEYS, "v": KEYS}), '"k"', "key, v")
    packed = io.BytesIO()
    np.savez(packed, keys=KEYS)
    refuses("k.npz", packed.getvalue(), '"k"', "keys")


def test_npz_members_that_are_damaged_or_of_another_kind(refuses):
    packed = io.BytesIO()
    np.savez(packed, k=KEYS)
    content = bytearray(packed.getvalue())
    content[len(content) // 2] ^= 1  # within the data: the CRC does not match
    refuses("k.npz", bytes(content), "tensor k")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("k.npy", npy_bytes("<f4", KEYS.shape, KEYS.tobytes()))
    refuses("k.npz", packed.getvalue(), "compression method 14")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("k.npy", b"no array")
    refuses("k.npz", packed.getvalue(), "tensor k")


def test_a_key_that_is_not_finite_is_named_by_position(refuses):
    keys = KEYS.copy()
    keys[37, 3] = np.nan
    refuses("k.fvecs", fvecs_bytes(keys), "position 37", "finite")


# ---- Files that are no files ---------------------------------------------------------------------


def test_paths_that_are_no_regular_files(cli, tmp_path):
    output = tmp_path / "out.pkv"
    cli("encode", tmp_path / "gone.npy", "--output", output).refuses(3, "gone.npy", "No such file")
    (tmp_path / "folder.npy").mkdir()
    cli("encode", tmp_path / "folder.npy", "--output", output).refuses(3, "folder.npy")
    cli("encode", "/dev/zero", "--output", output).refuses(3, "/dev/zero", ".npy")
    import os

    os.mkfifo(tmp_path / "pipe.fvecs")
    cli("encode", tmp_path / "pipe.fvecs", "--output", output, timeout=20).refuses(3, "regular")
    assert not output.exists()


def test_an_extension_that_is_not_known(refuses):
    refuses("k.bin", KEYS.tobytes(), ".safetensors, .npy, .npz, .fvecs, .bvecs")


def test_a_tensor_name_for_a_file_without_names(refuses):
    refuses(
        "k.npy",
        npy_bytes("<f4", KEYS.shape, KEYS.tobytes()),
        '"x"',
        code=2,
        options=("--tensor", "x"),
    )


# ---- Traces --------------------------------------------------------------------------------------


def change_tensor(name, change):
    def apply(tensors, metadata):
        tensors[name] = change(tensors[name])

    return apply


def set_metadata(**fields):
    return lambda tensors, metadata: metadata.update(fields)


def put(array, index, value):
    array = array.copy()
    array[index] = value
    return array


TRACE_FAULTS = [
    (lambda t, m: t.pop("k"), ['"k"', "q, q_pos, v"]),
    (lambda t, m: t.pop("v"), ['"v"']),
    (lambda t, m: t.pop("q"), ['"q"']),
    (lambda t, m: t.pop("q_pos"), ['"q_pos"']),
    (change_tensor("q", lambda q: q[:, :5]), ["5 query heads", "multiples of the 2 KV heads"]),
    (change_tensor("q", lambda q: q[:, :1]), ["1 query heads", "multiples of the 2"]),
    (change_tensor("q", lambda q: q[:, :, :8]), ["d=8", "16"]),
    (change_tensor("q", lambda q: q[0]), ["3 axes"]),
    (change_tensor("v", lambda v: v[:, :-1]), ["[2, 899, 16]", "n=900"]),
    (change_tensor("v", lambda v: v[:1]), ["[1, 900, 16]", "2 KV heads"]),
    (change_tensor("k", lambda k: k[0]), ["3 axes", "[900, 16]"]),
    (change_tensor("k", lambda k: k.astype(np.int64)), ["i64", "f32, f16, bf16"]),
    (change_tensor("k", lambda k: put(k, (1, 30, 2), np.nan)), ["nan", "finite"]),
    (change_tensor("v", lambda v: put(v, (0, 899, 0), np.inf)), ["inf", "finite"]),
    (change_tensor("q", lambda q: put(q, (0, 0, 0), -np.inf)), ["-inf", "finite"]),
    (change_tensor("q_pos", lambda p: put(p, 11, 900)), ["q_pos[11]=900", "0..899"]),
    (change_tensor("q_pos", lambda p: put(p, 0, -1)), ["q_pos[0]=-1", "0..899"]),
    (change_tensor("q_pos", lambda p: put(p, 3, 2**62)), ["q_pos[3]", "0..899"]),
    (change_tensor("q_pos", lambda p: p[:-1]), ["[11]", "[12]"]),
    (change_tensor("q_pos", lambda p: p.astype(np.float32)), ["f32", "i64"]),
    (set_metadata(scale="0,125"), ["0,125"]),
    (set_metadata(scale="-1"), ["-1", "above 0"]),
    (set_metadata(scale="nan"), ["nan"]),
    (set_metadata(scale="1e7"), ["1e7", "1e6"]),
    (set_metadata(kv_heads="[3]"), ["kv_heads", "2"]),
    (set_metadata(kv_heads="3, 4"), ["kv_heads"]),
]


@pytest.mark.parametrize("verb", ["eval", "inspect"])
@pytest.mark.parametrize("fault, texts", TRACE_FAULTS, ids=range(len(TRACE_FAULTS)))
def test_traces_that_do_not_fit(cli, tmp_path, verb, fault, texts):
    tensors, metadata = make_trace()
    fault(tensors, metadata)
    path = tmp_path / "t.safetensors"
    path.write_bytes(safetensors_bytes(tensors, metadata))
    run = cli(verb, path, "--fit-queries", "4", "--output", tmp_path / "out.json")
    run.refuses(3, "t.safetensors", *texts)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("verb", ["eval", "inspect"])
@pytest.mark.parametrize("count", [12, 13, 64, 2**31 - 1])
def test_fit_queries_not_below_the_number_of_queries(cli, tmp_path, verb, count):
    tensors, metadata = make_trace()
    path = tmp_path / "t.safetensors"
    path.write_bytes(safetensors_bytes(tensors, metadata))
    cli(verb, path, "--fit-queries", count).refuses(
        2, f"--fit-queries={count}", "0..11", "12 queries"
    )


def test_a_truncated_trace_is_refused_at_every_length(cli, tmp_path):
    tensors, metadata = make_trace(n=60, queries=4)
    content = safetensors_bytes(tensors, metadata)
    path = tmp_path / "t.safetensors"
    for length in [*range(0, 40, 3), *range(40, len(content), 997), len(content) - 1]:
        path.write_bytes(content[:length])
        cli("eval", path, "--fit-queries", "1").refuses(3, "t.safetensors")


def test_a_fault_in_the_second_trace_prints_nothing_of_the_first(cli, tmp_path):
    tensors, metadata = make_trace()
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    good.write_bytes(safetensors_bytes(tensors, metadata))
    bad.write_bytes(good.read_bytes()[:-1])
    run = cli("eval", good, bad, "--fit-queries", "4", "--json")
    run.refuses(3, "bad.safetensors")


# ---- Index files ---------------------------------------------------------------------------------


@pytest.fixture
def index(cli, tmp_path):
    path = tmp_path / "k.fvecs"
    path.write_bytes(fvecs_bytes(KEYS))
    cli("encode", path, "--output", tmp_path / "i.pkv").succeeds()
    return tmp_path / "i.pkv"


@pytest.mark.parametrize("verb", ["inspect", "retrieve"])
def test_a_damaged_index_is_refused(cli, index, tmp_path, verb):
    queries = [tmp_path / "k.fvecs"] if verb == "retrieve" else []
    content = index.read_bytes()
    damaged = tmp_path / "damaged.pkv"
    for length in [0, 1, 63, 64, 100, len(content) // 2, len(content) - 1]:
        damaged.write_bytes(content[:length])
        cli(verb, damaged, *queries).refuses(3, "damaged.pkv")
    for at in range(0, len(content), max(1, len(content) // 40)):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        cli(verb, damaged, *queries).refuses(3, "damaged.pkv")
    cli(verb, tmp_path / "gone.pkv", *queries).refuses(3, "gone.pkv")


def test_queries_that_do_not_fit_the_index(cli, index, tmp_path):
    path = tmp_path / "q.npy"
    np.save(path, np.ones((3, 24), np.float32))
    cli("retrieve", index, path).refuses(3, "d=24", "d=16")
    np.save(path, np.ones((3, 129, 16), np.float32))
    cli("retrieve", index, path).refuses(3, "129 query heads", "128 times")
    np.save(path, np.ones((3, 16), np.float32))
    cli("retrieve", index, path, "--sequence", "1").refuses(2, "--sequence=1", "0..0")


def test_values_and_queries_that_do_not_fit_the_keys(cli, tmp_path):
    keys, output = tmp_path / "k.npy", tmp_path / "out.pkv"
    np.save(keys, np.ones((2, 50, 16), np.float32) * np.arange(50)[None, :, None])
    other = tmp_path / "x.npy"
    np.save(other, np.ones((2, 49, 16), np.float32))
    cli("encode", keys, "--values", other, "--output", output).refuses(3, "n=49", "n=50")
    np.save(other, np.ones((5, 3, 16), np.float32))
    cli("encode", keys, "--queries", other, "--output", output).refuses(3, "3 query heads", "2 KV")
    cli("encode", keys, "--tail", "sketch2", "--output", output).refuses(2, "--values")
    assert not output.exists()
