"""bench/gpu_peers on the CPU, as far as it goes there: what its steps compute. PARISKV_LIBRARY
names the library, torch comes from bench/requirements.txt."""

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))

torch = pytest.importorskip("torch", reason="torch is not installed (bench/requirements.txt)")

from bench import gpu_peers  # noqa: E402
from bench.compare import capi  # noqa: E402


@pytest.fixture
def library(monkeypatch):
    path = capi.library_path()
    if not path.is_file():
        pytest.skip(f"{path} is not built (PARISKV_LIBRARY names the library)")
    monkeypatch.setattr(gpu_peers, "DEVICE", "cpu")
    opened = capi.Library(path, "cpu")
    yield opened
    opened.close()


# k = 100 of 96 keys: a step is full attention.
@pytest.mark.parametrize("batch, regions", [(1, 3), (2, 1)])
def test_steps_attend_to_the_tokens_of_their_layer(library, monkeypatch, batch, regions):
    n = 96
    monkeypatch.setattr(gpu_peers, "DEVICE_CACHE", 2 * batch * 8 * n * gpu_peers.VOTE_BYTES)
    layer_bytes = 2 * batch * gpu_peers.KV_HEADS * n * gpu_peers.ROW_BYTES
    zone = gpu_peers.Zone(regions * layer_bytes)
    steps = gpu_peers.Steps(library, zone, batch, n, 1.0, "mean")
    assert (len(steps.plans), len(steps.pairs)) == (3, regions)
    for call in steps.calls():
        call()
    for i in range(gpu_peers.CALLS):
        layer = i % 3
        parts = [*steps.dense[layer], steps.pairs[layer % regions]]
        keys, values = (torch.cat([part[which] for part in parts], 2).float() for which in (0, 1))
        wanted = gpu_peers.grouped(steps.queries[i].float(), keys, values).view_as(steps.output[i])
        assert (steps.output[i].float() - wanted).abs().max() < 0.01
    assert steps.describe()


def test_both_forms_of_full_attention_agree(monkeypatch):
    monkeypatch.setattr(gpu_peers, "DEVICE", "cpu")
    keys, values = (gpu_peers.randn(2, 8, 40, 128).float() for _ in "kv")
    query = gpu_peers.randn(2, 32, 128).float()
    rows = gpu_peers.grouped(query, keys, values).reshape(2, 32, 128)
    heads = gpu_peers.by_head(query, keys, values).reshape(2, 32, 128)
    assert (rows - heads).abs().max() < 1e-5


def test_a_shape_that_does_not_fit_is_said(library):
    zone = gpu_peers.Zone(1 << 20)
    with pytest.raises(RuntimeError, match="--memory"):
        gpu_peers.Steps(library, zone, 1, 4096, 0.05, "mean")
