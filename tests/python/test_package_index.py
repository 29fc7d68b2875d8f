"""pariskv.Codec, Index and merge; the package as such."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

H, HQ, D, N = 2, 8, 64, 2048


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.fixture(scope="module")
def rows():
    """queries [hq, m, d], keys and values [h, n, d]."""
    return numbers(0, HQ, 64, D), numbers(1, H, N, D) + 1, numbers(2, H, N, D)


@pytest.fixture(scope="module")
def index(pariskv, rows):
    queries, keys, values = rows
    made = pariskv.Index(pariskv.Codec.fit(keys, queries, values), N + 100)
    made.append(keys, values)
    return made


def attention(query, keys, values):
    """[hq, dv] of query [hq, d]."""
    out = []
    for head in range(HQ):
        k, v = keys[head * H // HQ].astype(float), values[head * H // HQ]
        weights = np.exp(k @ query[head] / np.sqrt(D))
        out.append(weights @ v / weights.sum())
    return np.array(out)


def test_a_fit_finds_the_centre(pariskv, rows):
    queries, keys, values = rows
    codec = pariskv.Codec.fit(keys, queries, values, fit="keys")
    assert np.abs(codec.center - keys.mean(1)).max() < 1e-5
    geometry = codec.geometry
    assert (geometry.kv_heads, geometry.head_dim, geometry.value_dim) == (H, D, D)
    again = pariskv.Codec.from_arrays(codec.center, codec.balance, codec.value_center)
    assert np.array_equal(again.balance, codec.balance)
    with pytest.raises(ValueError, match="do not agree"):
        pariskv.Codec.from_arrays(codec.center, codec.balance[:1])
    with pytest.raises(LookupError, match="senter"):
        pariskv.Codec.fit(keys, senter=False)
    assert not pariskv.Codec.fit(keys, center=False, tail="drop").center.any()


def test_a_step_is_its_parts(pariskv, index, rows):
    queries, keys, values = rows
    query = queries[:, 0][None]
    hits = pariskv.retrieve(index, query, k=50, candidates=0.1)
    assert hits.positions.shape == (1, H, 50) and (hits.counts == 50).all()
    assert (np.diff(hits.scores[0, 0]) <= 0).all()
    source = keys[None], values[None]
    fetched = index.fetch(hits, *source, query_heads=HQ, k=50, candidates=0.1)
    assert np.array_equal(fetched[0][0, 1], keys[1, hits.positions[0, 1]])
    sink = numbers(5, 1, H, 16, D), numbers(6, 1, H, 16, D)
    options = dict(k=50, candidates=0.1, dense=[sink])
    lse = np.empty((1, HQ), np.float32)
    parts = index.attend(query, hits, fetched, **options)
    whole = pariskv.attend(index, query, *source, lse=lse, **options)
    assert np.array_equal(parts, whole) and np.isfinite(lse).all()
    every = index.step(query, *source, k=N, candidates=1.0)
    assert np.abs(every[0] - attention(query[0], keys, values)).max() < 1e-4
    assert np.abs(every - whole).max() > 1e-3
    with pytest.raises(ValueError, match="5 dense parts"):
        index.step(query, *source, dense=[sink] * 5)


@pytest.mark.parametrize("tail", ["drop", "mean", "sampled", "sketch2", "sketch4"])
def test_every_tail_takes_the_parts(pariskv, rows, tail):
    queries, keys, values = rows
    made = pariskv.Index(pariskv.Codec.fit(keys, queries, values, tail=tail), N)
    made.append(keys, values)
    query, source = queries[:, 0][None], (keys[None], values[None])
    hits = made.retrieve(query, k=50)
    assert (hits.sample_estimates is None) == (tail == "drop")
    fetched = made.fetch(hits, *source, query_heads=HQ, k=50)
    parts = made.attend(query, hits, fetched, k=50)
    assert np.array_equal(parts, made.step(query, *source, k=50))
    without_rows = made.retrieve(query, k=0)
    assert np.isfinite(made.attend(query, without_rows, None, k=0)).all()


def test_indices_of_several_sequences(pariskv, rows):
    queries, keys, values = rows
    made = pariskv.Index(pariskv.Codec.fit(keys, queries, values), N, sequences=2)
    made.append(keys[:, :100], values[:, :100], sequence=1)
    assert (made.length(0), made.length(1)) == (0, 100)
    query = queries[:, :2].transpose(1, 0, 2)
    hits = made.retrieve(query, sequences=[1, 1], k=10)
    assert hits.positions.shape == (2, H, 10) and hits.positions.max() < 100
    made.reset(1)
    assert made.length(1) == 0 and made.stats().tokens == 0
    with pytest.raises(MemoryError, match="2049"):
        made.append(numbers(0, H, N + 1, D), numbers(1, H, N + 1, D))


def test_files(pariskv, index, rows, tmp_path):
    query = rows[0][:, 3][None]
    index.save(tmp_path / "x.pkv")
    loaded = pariskv.Index.load(tmp_path / "x.pkv")
    a, b = index.retrieve(query), loaded.retrieve(query)
    assert np.array_equal(a.positions, b.positions)
    with pytest.raises(pariskv.AlreadyExistsError):
        index.save(tmp_path / "x.pkv")
    index.save(tmp_path / "x.pkv", overwrite=True)
    (tmp_path / "y.pkv").write_bytes((tmp_path / "x.pkv").read_bytes()[:1000])
    with pytest.raises(pariskv.DataLossError):
        pariskv.Index.load(tmp_path / "y.pkv")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_merged_parts_are_the_whole(pariskv, rows, dtype):
    queries, keys, values = rows
    query = queries[:, 0][None]
    options = dict(sink=64, local=64, interval=64, dense_below=4096, page_tokens=64)
    outputs, lses = [], []
    for begin in (0, 700, N):  # the last part is empty
        cache = pariskv.Cache(1, H, HQ, D, dtype="float32", **options)
        cache.add()
        end = {0: 700, 700: N, N: N}[begin]
        cache.append(
            0, keys[:, begin:end].transpose(1, 0, 2), values[:, begin:end].transpose(1, 0, 2)
        )
        lse = np.full((1, HQ), -np.inf, np.float32)
        empty = begin == end
        out = np.zeros((1, HQ, D), np.float32) if empty else cache.attend(0, query, lse=lse)
        outputs.append(out.astype(dtype))
        lses.append(lse)
    out, lse = pariskv.merge(outputs, lses)
    assert out.dtype == dtype
    bound = 1e-5 if dtype == "float32" else 2e-3
    assert np.abs(out[0] - attention(query[0], keys, values)).max() < bound
    with pytest.raises(ValueError, match="1 outputs, 2 lses"):
        pariskv.merge(outputs[:1], lses[:2])
    with pytest.raises(ValueError, match="contiguous"):
        pariskv.merge(outputs, [*lses[:2], np.zeros((HQ, 1), np.float32)])


def test_backends_devices_and_options(pariskv):
    names = {backend.name for backend in pariskv.backends() if backend.is_usable}
    assert {"cpu_ref", "cpu"} <= names
    assert {found["backend"] for found in pariskv.devices()} == names
    options = {option.name: option for option in pariskv.options()}
    assert options["k"].default == "100" and options["vote"].paper == "tier"
    assert re.fullmatch(r"\d+\.\d+\.\d+", pariskv.version())
    with pytest.raises(LookupError, match="cpu_ref"):
        pariskv.Device("abacus")
    with pytest.raises(pariskv.OutOfRangeError, match="ordinal"):
        pariskv.Device("cpu", 99)
    device = pariskv.Device("cpu")
    device.set("threads", 1)
    with pytest.raises(ValueError, match="threads"):
        device.set("threads", -1)
    assert device.describe()["backend"] == "cpu"


def test_structs_are_those_of_the_header(pariskv):
    """struct_size of each mirror is accepted as the library's own: _init fills it back."""
    import ctypes

    from pariskv import _library, _structs

    inits = {
        "pkv_cache_desc_init": _structs.CacheDesc,
        "pkv_cache_layer_init": _structs.CacheLayer,
        "pkv_cache_usage_init": _structs.CacheUsage,
        "pkv_cache_regions_init": _structs.CacheRegions,
        "pkv_cache_batch_init": _structs.CacheBatch,
        "pkv_cache_hits_init": _structs.CacheHits,
        "pkv_cache_attention_init": _structs.CacheAttention,
        "pkv_cache_stats_init": _structs.CacheStats,
        "pkv_cache_pool_init": _structs.CachePool,
        "pkv_cache_blocks_init": _structs.CacheBlocks,
        "pkv_attention_init": _structs.Attention,
        "pkv_step_init": _structs.Step,
        "pkv_plan_desc_init": _structs.PlanDesc,
        "pkv_hits_init": _structs.Hits,
        "pkv_rows_init": _structs.Rows,
        "pkv_index_stats_init": _structs.IndexStats,
        "pkv_backend_info_init": _structs.BackendInfo,
        "pkv_option_info_init": _structs.OptionInfo,
        "pkv_codec_data_init": _structs.CodecData,
        "pkv_geometry_init": _structs.Geometry,
    }
    for name, kind in inits.items():
        room = 4096
        buffer = (ctypes.c_ubyte * room)(*[0xEE] * room)
        _library.call(name, buffer, ctypes.c_size_t(room))
        # Zeroed are all fields the library knows, and what the caller's larger struct has beyond.
        filled = kind()
        _library.call(name, ctypes.byref(filled), ctypes.c_size_t(ctypes.sizeof(kind)))
        assert filled.struct_size == ctypes.sizeof(kind)
        # The defaults lie where the mirror has its fields.
        theirs = bytes(buffer)[4 : ctypes.sizeof(kind)]
        assert theirs == bytes(filled)[4:], name


def test_a_bare_import_needs_numpy_alone(pariskv):
    """No torch, no transformers, no library at import; what needs them names the extra."""
    code = """
import importlib.abc, os, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError("No module named " + repr(name))
sys.meta_path.insert(0, Missing())
sys.path[:0] = %r
os.environ["PARISKV_LIBRARY"] = "/nonexistent/libpariskv.so"
import pariskv
for name in ("pariskv.hf", "pariskv.distributed"):
    try:
        __import__(name)
    except ImportError as error:
        assert "pip install 'pariskv[" in str(error), error
    else:
        raise SystemExit(name + " imports without torch")
try:
    pariskv.version()
except ImportError as error:
    assert "pip install ." in str(error)
else:
    raise SystemExit("no library, and no error")
"""
    done = subprocess.run(
        [sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("lengths", [(N,), (N, 700)])
def test_votes_and_rerank_are_the_halves_of_a_retrieve(pariskv, rows, lengths):
    queries, keys, values = rows
    codec = pariskv.Codec.fit(keys, queries, values, candidates=0.1, k=30, tail="mean")
    index = pariskv.Index(codec, N + 64, len(lengths))
    for sequence, length in enumerate(lengths):
        index.append(keys[:, :length], values[:, :length], sequence)
    query = np.stack([queries[:, 0], queries[:, 1], queries[:, 2]])[: 2 * len(lengths) - 1]
    named = [0, len(lengths) - 1, 0][: len(query)]
    wanted = index.retrieve(query, sequences=named)
    votes = index.votes(query, sequences=named)
    assert votes.shape == (len(query), H, N)
    candidates = np.full((len(query), H, index.room(query, sequences=named)), -1, np.int32)
    for entry, sequence in enumerate(named):
        assert np.isneginf(votes[entry, :, lengths[sequence] :]).all()
        for head in range(H):
            count = wanted.candidate_counts[entry, head]
            best = np.argsort(-votes[entry, head], kind="stable")[:count]
            candidates[entry, head, :count] = np.sort(best)
    assert np.array_equal(candidates, wanted.candidates)
    found = index.rerank(query, candidates, wanted.candidate_counts, sequences=named)
    assert np.array_equal(found.positions, wanted.positions)
    assert np.array_equal(found.counts, wanted.counts)
    assert np.allclose(found.rest_lse, wanted.rest_lse, atol=1e-5)
    used = np.repeat(candidates >= 0, HQ // H, 1)
    assert np.array_equal(found.estimates[used], wanted.estimates[used])  # integers, scaled
    few = index.rerank(query, candidates[..., :5], np.full((len(query), H), 5), sequences=named)
    assert (few.counts == 5).all()
    assert np.array_equal(np.sort(few.positions[..., :5]), candidates[..., :5])
    with pytest.raises(ValueError, match="room for"):
        index.rerank(query, np.zeros((len(query), H, N + 1), np.int32), 1, sequences=named)
    with pytest.raises(IndexError, match=r"candidates\[0, 1\]"):
        index.rerank(query, candidates[..., ::-1][..., -5:], 5, sequences=named)


def test_a_row_cache_changes_no_bit(pariskv, index, rows):
    queries, keys, values = rows
    options = dict(k=50, candidates=0.1)
    cache = index.row_cache(64, "float32")
    plain = index.step(queries[:, 0][None], keys[None], values[None], **options)
    cached = index.step(queries[:, 0][None], keys[None], values[None], row_cache=cache, **options)
    assert np.array_equal(plain, cached)
    assert cache.stats()._replace(looked_up=0) == (0, 0, 0, 0)  # a CPU reads rows in place
    cache.drop()
    with pytest.raises(ValueError, match="rows=4, accepted: 8"):
        index.row_cache(4, "float32")
    with pytest.raises(IndexError):
        cache.drop(1)
    cache.close()
    assert index.device_bytes(index.codec, N + 100) == index.stats().device_bytes


ON_KERNELS = """
import numpy as np
import pariskv
make = lambda seed, *shape: np.random.default_rng(seed).standard_normal(shape, np.float32)
keys, values, query = make(1, 2, 512, 64), make(2, 2, 512, 64), make(3, 1, 8, 64)
codec = pariskv.Codec.fit(keys, None, values, k=16, candidates=0.2)
index = pariskv.Index(codec, 512)
index.append(keys, values)
cache, seen = index.row_cache(64, "float32"), []
for turn in range(2):
    plain, cached = (
        index.step(query, keys[None], values[None], row_cache=one) for one in (None, cache)
    )
    assert np.array_equal(plain, cached)
    seen.append(cache.stats())
rows = 2 * 16
assert [(one.looked_up, one.found) for one in seen] == [(rows, 0), (2 * rows, rows)], seen
assert seen[0].rows == 64 and seen[0].device_bytes > 2 * 64 * 2 * 64 * 4
cache.drop()
index.step(query, keys[None], values[None], row_cache=cache)
assert cache.stats().found == rows
"""


def test_a_row_cache_on_kernels_of_a_gpu(pariskv):
    plugins = pariskv.library_path().parent / "test_backends"
    if not (plugins / "pariskv_backend_gpu-host.so").is_file():
        pytest.skip("the test backend gpu-host is not built")
    root = Path(pariskv.__file__).parents[1]
    environment = {**os.environ, "PKV_BACKEND_PATH": str(plugins), "PKV_BACKEND": "gpu-host",
                   "PYTHONPATH": str(root)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", ON_KERNELS], env=environment, text=True,
                          capture_output=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
