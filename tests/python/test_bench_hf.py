"""bench.hf_gpu on the CPU, with a tiny random model."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
for package in ("transformers", "tqdm"):
    pytest.importorskip(package, reason=f"{package} is not installed: tools/test_python")
sys.path.append(str(Path(__file__).resolve().parents[2]))


def test_rows_of_every_method(pariskv, capsys):
    from bench import hf_gpu

    options = "--geometry tiny --device cpu --dtype float32 --lengths 2500 --tokens 12 --json"
    hf_gpu.main([*options.split(), "--set", "k=50", "--batch", "2"])
    found = json.loads(capsys.readouterr().out)
    loops = [(row["method"], row.get("loop")) for row in found["results"]]
    assert loops == [
        ("full", "generate"),
        ("full", "forward"),
        ("full-captured", None),
        ("pariskv", "generate"),
        ("pariskv", "forward"),
        ("pariskv-captured", None),
    ]
    for row in found["results"]:
        if row.get("loop"):
            assert 0 < row["min_ms"] <= row["median_ms"]
            rate = 2e3 / row["median_ms"]  # a token of each of the two rows
            assert abs(row["tokens_per_second"] - rate) <= 0.06 + 1e-2 * rate
        else:
            assert "GPU" in row["trouble"]
    full, sparse = found["results"][1], found["results"][4]
    rows = 2 * 2 * 2 * 16 * 4  # of a token: layers, K and V, KV heads, head_dim, float32
    tokens = 2 * (2500 + 12)
    assert full["device_bytes"] >= tokens * rows and sparse["host_bytes"] > full["device_bytes"]


def test_kernels_are_told_apart():
    from bench.kernels import kind_of

    assert kind_of("void pkv::cuda::vote_keys<16>(Args)") == "library"
    assert kind_of("nvjet_tst_64x8_64x16_1x1_v_bz_TNN") == "products"
    assert kind_of("flash_fwd_splitkv_kernel") == "attention"
    assert kind_of("vectorized_elementwise_kernel") == "others"
