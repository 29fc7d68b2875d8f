"""The traces that ship in data/traces, and tools/cut_trace.py, which made them.

Files are read by hand (8 bytes of length, a JSON header, raw tensors), so numpy is all that is
needed, and the writer is held against a reader that is not the safetensors package.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="trace tests need numpy: pip install numpy")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import cut_trace  # noqa: E402

FOLDER = ROOT / "data" / "traces"
DTYPES = {"F16": np.dtype("<f2"), "I64": np.dtype("<i8")}
README = (FOLDER / "README.md").read_text(encoding="utf-8")
SUMS = dict(
    reversed(line.split("  ", 1))
    for line in (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
)
FIGURES = [json.loads(line) for line in README.splitlines() if line.startswith('{"trace"')]
# (KV heads, keys, queries, query heads, head_dim)
SHAPES = {
    "qwen2.5-coder-1.5b_l00_n3072.safetensors": (1, 3072, 128, 6, 128),
    "qwen2.5-coder-1.5b_l13_n4096.safetensors": (1, 4096, 128, 6, 128),
    "smollm2-135m_l15_n3328.safetensors": (1, 3328, 128, 3, 64),
}


def parse(raw):
    """Bytes of a safetensors file -> cut_trace.Trace; every byte belongs to exactly one tensor."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert set(header) == {"k", "v", "q", "q_pos"}
    body, end, tensors = raw[8 + length :], 0, {}
    assert length % 8 == 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end
        values = np.frombuffer(body[start:stop], DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
        end = stop
    assert end == len(body)
    return cut_trace.Trace(**tensors, metadata=metadata)


def load(name):
    return parse((FOLDER / name).read_bytes())


def small_trace(heads=2, n=40, queries=6, group=3, d=8):
    """A trace whose every value tells where it came from: the last queries are at n-2, n-4 .."""
    rng = np.random.default_rng(5)
    return cut_trace.Trace(
        k=rng.standard_normal((heads, n, d)).astype(np.float16),
        v=rng.standard_normal((heads, n, d)).astype(np.float16),
        q=rng.standard_normal((queries, heads * group, d)).astype(np.float16),
        q_pos=np.arange(n - 2 * queries, n, 2, dtype=np.int64),
        metadata={
            "scale": "0.353553390593273762",
            "kv_heads": "[4, 7]" if heads == 2 else json.dumps(list(range(heads))),
            "n_prompt": str(n - 2 * queries),
            "layer": "3",
            "model": "none",
        },
    )


def test_every_trace_is_listed_in_sums_shapes_and_figures():
    present = {path.name for path in FOLDER.glob("*.safetensors")}
    assert present == set(SHAPES) == set(SUMS) == {figure["trace"] for figure in FIGURES}
    assert sum((FOLDER / name).stat().st_size for name in present) <= 5_000_000


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_bytes_are_those_of_sha256sums(name):
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SUMS[name]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_schema(name):
    trace = load(name)
    heads, n, queries, query_heads, d = SHAPES[name]
    assert trace.k.shape == trace.v.shape == (heads, n, d)
    assert trace.q.shape == (queries, query_heads, d)
    assert trace.q_pos.shape == (queries,)
    assert trace.k.dtype == trace.v.dtype == trace.q.dtype == np.float16
    for tensor in (trace.k, trace.v, trace.q):
        assert np.isfinite(tensor).all()
    assert trace.q_pos[0] >= 0
    assert trace.q_pos[-1] < n
    assert (np.diff(trace.q_pos) > 0).all()
    metadata = trace.metadata
    assert all(type(value) is str for value in metadata.values())
    assert float(metadata["scale"]) == pytest.approx(d**-0.5, rel=1e-12)
    assert len(json.loads(metadata["kv_heads"])) == heads
    assert 0 < int(metadata["n_prompt"]) <= trace.q_pos[0]
    assert f"_l{int(metadata['layer']):02d}_" in name
    assert "Apache-2.0" in metadata["model"]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["trace"])
def test_readme_figures_are_those_of_the_files(figure):
    measured = cut_trace.measure(load(figure["trace"]), sink=128, local=512, k=100)
    # One unit of the last printed digit, plus half a unit for float32 sums in another order.
    units = {"key_norm_max": 0.15, "pattern_bits": 0.015, "pattern_bits_centred": 0.015}
    for key, expected in figure.items():
        if isinstance(expected, float):
            assert measured[key] == pytest.approx(expected, abs=units.get(key, 1.5e-4), rel=0), key
        elif key != "trace":
            assert measured[key] == expected, key


def test_cut_keeps_sink_and_last_keys_and_moves_the_queries():
    trace = small_trace()
    result = cut_trace.cut(trace, tokens=20, sink=4, kv_heads=[7], name="t")
    positions = [*range(4), *range(24, 40)]
    assert np.array_equal(result.k, trace.k[1:, positions])
    assert np.array_equal(result.v, trace.v[1:, positions])
    assert np.array_equal(result.q, trace.q[:, 3:])
    assert result.q_pos.tolist() == [8, 10, 12, 14, 16, 18]
    assert result.metadata["kv_heads"] == "[7]"
    assert result.metadata["n_prompt"] == "8"  # 0..3 and 24..27 were prompt, 28..39 decoded
    assert result.metadata["cut"] == "keys 0..3 and 24..39 of 0..39"


def test_cut_drops_queries_at_dropped_positions():
    trace = small_trace()
    result = cut_trace.cut(trace, tokens=11, sink=4, kv_heads=None, name="t")  # keeps 33..39
    assert np.array_equal(result.q, trace.q[3:])  # of 28, 30, .., 38 those from 34 on
    assert result.q_pos.tolist() == [5, 7, 9]


def test_written_bytes_read_back_and_do_not_depend_on_the_run(tmp_path):
    trace = small_trace()
    cut_trace.write_trace(tmp_path / "a", trace)
    trace.metadata = dict(reversed(trace.metadata.items()))
    cut_trace.write_trace(tmp_path / "b", trace)
    raw = (tmp_path / "a").read_bytes()
    assert raw == (tmp_path / "b").read_bytes()
    back = parse(raw)
    for key in ("k", "v", "q", "q_pos"):
        assert np.array_equal(getattr(back, key), getattr(trace, key))
    assert back.metadata == trace.metadata


def test_an_existing_file_stays_without_force(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"mine")
    with pytest.raises(cut_trace.TraceError, match="exists; --force overwrites it"):
        cut_trace.write_trace(path, small_trace())
    assert path.read_bytes() == b"mine"
    cut_trace.write_trace(path, small_trace(), force=True)
    assert parse(path.read_bytes()).tokens == 40
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_neither_file_nor_remains(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(cut_trace.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        cut_trace.write_trace(tmp_path / "a", small_trace())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tokens": 41}, "--tokens 41 outside 5..40"),
        ({"tokens": 4}, "--tokens 4 outside 5..40"),
        ({"sink": 40}, "--sink 40 outside 0..39"),
        ({"sink": -1}, "--sink -1 outside 0..39"),
        ({"kv_heads": [4, 5]}, r"--kv-heads \[5\] not among \[4, 7\]"),
        ({"kv_heads": [4, 4]}, r"--kv-heads \[4, 4\] repeats one"),
        ({"tokens": 5}, "no query is at or after position 39, the last is at 38"),
    ],
)
def test_cut_names_what_it_refuses(arguments, text):
    defaults = {"tokens": 20, "sink": 4, "kv_heads": None, "name": "t"}
    with pytest.raises(cut_trace.TraceError, match=text):
        cut_trace.cut(small_trace(), **{**defaults, **arguments})


def broken(**changes):
    trace = small_trace()
    for key, value in changes.items():
        setattr(trace, key, value)
    return trace


def with_metadata(**changes):
    return broken(metadata={**small_trace().metadata, **changes})


def with_nan():
    k = small_trace().k
    k[1, 3, 5] = np.nan
    return broken(k=k)


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        (with_nan(), "k holds 1 values that are not finite"),
        (broken(k=np.zeros((2, 40, 8), np.float32)), "k has dtype float32"),
        (broken(v=np.zeros((2, 39, 8), np.float16)), r"v has shape \[2, 39, 8\], k \[2, 40, 8\]"),
        (broken(q=np.zeros((6, 5, 8), np.float16)), "5 query heads, k 2 KV heads: not a multiple"),
        (broken(q=np.zeros((6, 6, 4), np.float16)), "q has head_dim 4, k 8"),
        (broken(q=np.zeros((0, 6, 8), np.float16)), "it is empty"),
        (
            broken(q_pos=np.arange(5)),
            r"q_pos has dtype int64 and shape \[5\], needed: int64, \[6\]",
        ),
        (broken(q_pos=np.arange(35, 41)), r"q_pos 35\.\.40 outside 0\.\.39"),
        (broken(q_pos=np.array([1, 2, 3, 3, 4, 5])), "q_pos is not strictly ascending"),
        (with_metadata(scale="none"), "scale='none' is not a positive number"),
        (with_metadata(scale="-1"), "scale='-1' is not a positive number"),
        (with_metadata(n_prompt="41"), r"n_prompt=41 outside 0\.\.40"),
        (with_metadata(layer="x"), "layer='x' is not an integer"),
        (with_metadata(kv_heads="[1]"), r"kv_heads=\[1\]: k has 2 distinct KV heads"),
        (with_metadata(kv_heads="1,2"), "kv_heads='1,2' is not a list"),
        (broken(metadata={}), "metadata lacks scale, kv_heads, n_prompt, layer, model"),
    ],
)
def test_check_names_what_it_refuses(trace, text, tmp_path):
    with pytest.raises(cut_trace.TraceError, match=text):
        cut_trace.write_trace(tmp_path / "a", trace)
    assert not list(tmp_path.iterdir())


def test_measure_on_keys_with_a_known_answer():
    """All scores are 0, weights uniform: 4 sink, 10 local, 15..25 zone keys, 5 of them kept."""
    trace = small_trace()
    trace.q = np.zeros_like(trace.q)
    trace.k[:] = np.float16(1)
    trace.v[:] = np.float16(1)
    trace.v[:, 9:] = np.float16(3)  # kept: sink 0..3, zone 4..8 (ties: smaller position), local
    figures = cut_trace.measure(trace, sink=4, local=10, k=5)
    seen = trace.q_pos + 1
    assert figures["zone"] == [15, 25]
    assert figures["zone_mass"] == pytest.approx(np.mean((seen - 14) / seen), abs=1e-4)
    full = (9 * 1 + (seen - 9) * 3) / seen
    part = (9 * 1 + 10 * 3) / 19
    assert figures["error"] == pytest.approx(np.mean(np.abs(part - full) / full), abs=1e-4)
    assert figures["key_cosine"] == pytest.approx(1, abs=1e-4)
    assert figures["pattern_bits"] == 0


def test_command_line_cuts_and_refuses(tmp_path, capsys):
    pytest.importorskip("safetensors", reason="the command reads with the safetensors package")
    source, target = tmp_path / "s.safetensors", tmp_path / "t.safetensors"
    cut_trace.write_trace(source, small_trace())
    arguments = [str(source), str(target), "--tokens=20", "--sink=4", "--kv-heads=7"]
    assert cut_trace.main(arguments) == 0
    assert parse(target.read_bytes()).k.shape == (1, 20, 8)
    assert cut_trace.main(arguments) == 3
    assert "--force" in capsys.readouterr().err
    source.write_bytes(source.read_bytes()[:-1])
    assert cut_trace.main([*arguments, "--force"]) == 3
    assert "s.safetensors: not a readable safetensors file" in capsys.readouterr().err
    assert cut_trace.main([str(tmp_path / "none"), "--measure"]) == 3
    with pytest.raises(SystemExit) as stop:
        cut_trace.main([str(source), str(target)])
    assert stop.value.code == 2
