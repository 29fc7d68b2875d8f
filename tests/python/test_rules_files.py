"""What `python -m bench.quality` reads: traces and its own results, malformed or not."""

import json

import pytest
from rules_data import np, safetensors, trace_arrays

from bench import quality
from bench.rules import trace


@pytest.fixture
def results(tmp_path, capsys):
    """A document of two results."""
    path, target = tmp_path / "small.safetensors", tmp_path / "out.json"
    path.write_bytes(safetensors(**trace_arrays()))
    arguments = "--methods full,exact --k 8 --sink 4 --local 16 --fit-queries 4".split()
    assert quality.main([str(path), *arguments, "--json", str(target)]) == 0
    capsys.readouterr()
    return json.loads(target.read_text())


def changed(**changes):
    arrays = {**trace_arrays(), **changes}
    return safetensors(**{name: array for name, array in arrays.items() if array is not None})


def with_nan():
    k = trace_arrays()["k"]
    k[0, 0, 5] = np.nan
    return changed(k=k)


def damaged_offsets():
    raw = safetensors(**trace_arrays())
    return raw.replace(b'"data_offsets": [0, ', b'"data_offsets": [2, ')


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"1234", "header: 4 bytes"),
        (b"\xff" * 16, "header: a length of"),
        ((4).to_bytes(8, "little") + b"nope", "header: not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "header: accepted is a JSON object"),
        (changed(k=None), "tensor k: missing"),
        (changed(q_pos=np.zeros(12, np.float32)), "tensor q_pos: dtype F32, accepted: I64, I32"),
        (changed(v=np.zeros((2, 180), np.float16)), "tensor v: shape [2, 180], accepted: 3 axes"),
        (changed(v=np.zeros((2, 170, 16), np.float16)), "tensor v: shape [2, 170, 16], accepted"),
        (changed(q=np.zeros((12, 4, 8), np.float16)), "tensor q: d=8, accepted: 16"),
        (changed(q=np.zeros((12, 3, 16), np.float16)), "tensor q: 3 query heads"),
        (changed(q_pos=np.arange(11)), "tensor q_pos: shape [11], accepted: [12]"),
        (changed(q_pos=np.arange(170, 182)), "q_pos[10] is outside 0..179"),
        (with_nan(), "tensor k: element 5 is not finite"),
        (damaged_offsets(), "tensor k: data_offsets [2, 11520], needed are 11520 bytes"),
        (safetensors(**trace_arrays())[:-8], "tensor q_pos: data_offsets"),
        (safetensors({"scale": "big"}, **trace_arrays()), "metadata scale='big'"),
        (safetensors({"kv_heads": "[1]"}, **trace_arrays()), "metadata kv_heads='[1]'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_trace_names_file_and_field(raw, text, tmp_path, capsys):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    target = tmp_path / "out.json"
    assert quality.main([str(path), "--json", str(target)]) == 3
    captured = capsys.readouterr()
    assert f"bad.safetensors: {text}" in captured.err and captured.out == ""
    assert not target.exists()


def test_a_missing_trace_is_bad_input(tmp_path, capsys):
    assert quality.main([str(tmp_path / "none.safetensors")]) == 3
    assert "none.safetensors: No such file" in capsys.readouterr().err


def broken(document, path, value):
    *parents, last = path
    for part in parents:
        document = document[part]
    if value is None:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["results"], 5, "results: missing, accepted: a list"),
        (["results", 0], 5, "results[0]: accepted: an object"),
        (["results", 1, "error"], None, "results[1].error: missing"),
        (["results", 0, "k"], "8", "results[0].k: '8', accepted: a finite number"),
        (["results", 0, "trace"], 8, "results[0].trace: 8, accepted: a text"),
        (["results", 0, "mass"], [1], "results[0].mass: accepted: null, or mean, low and high"),
        (["results", 0, "kl", "low"], "x", "results[0].kl.low: 'x', accepted: a finite number"),
        (["left_out"], [{}], "left_out[0]: accepted: setting and reason"),
    ],
)
def test_a_malformed_results_file_names_file_and_field(
    results, tmp_path, path, value, text, capsys
):
    document = results
    broken(document, path, value)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert quality.main(["--show", str(tmp_path / "bad.json")]) == 3
    captured = capsys.readouterr()
    assert f"bad.json: {text}" in captured.err and captured.out == ""


def test_a_results_file_that_is_not_json_is_bad_input(tmp_path, capsys):
    (tmp_path / "bad.json").write_text("{")
    assert quality.main(["--show", str(tmp_path / "bad.json")]) == 3
    assert "bad.json: not JSON" in capsys.readouterr().err
    assert quality.main(["--show", str(tmp_path / "none.json")]) == 3
    capsys.readouterr()
    for runs, text in ((5, "runs: accepted: a list"), ([{}], "runs[0].results: missing")):
        (tmp_path / "bad.json").write_text(json.dumps({"runs": runs}))
        assert quality.main(["--show", str(tmp_path / "bad.json")]) == 3
        assert f"bad.json: {text}" in capsys.readouterr().err


def test_the_formats_of_numbers_are_read_alike(tmp_path):
    """bf16 is the upper half of a float32; row bytes are those of the stored form."""
    arrays = trace_arrays()
    k = arrays["k"].astype(np.float32)
    upper = (k.view(np.uint32) >> 16).astype(np.uint16)
    raw = safetensors(**{**arrays, "k": upper.view(np.float16)})
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b"F16", b"BF16", 1)
    (tmp_path / "bf16").write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    (tmp_path / "f32").write_bytes(safetensors(**{**arrays, "k": k}))
    one = trace.load(tmp_path / "bf16")
    assert np.array_equal(one.keys, (upper.astype(np.uint32) << 16).view(np.float32))
    assert np.array_equal(one.values, arrays["v"]) and one.row_bytes == (32, 32)
    two = trace.load(tmp_path / "f32")
    assert np.array_equal(two.keys, k) and two.row_bytes == (64, 32)
