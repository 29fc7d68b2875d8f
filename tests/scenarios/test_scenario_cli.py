"""The program on traces of the size that a user brings."""

import numpy as np
from cli_files import make_trace, safetensors_bytes


def test_inspect_explains_a_trace_head_by_head(cli, tmp_path):
    """8 KV heads, 16,384 tokens, k = 100; the fourth head repeats each key 64 times."""
    tensors, metadata = make_trace(kv_heads=8, group=2, n=16_384, d=64, queries=8)
    tensors["k"][3] = np.repeat(tensors["k"][3, ::64], 64, axis=0)
    path = tmp_path / "t.safetensors"
    path.write_bytes(safetensors_bytes(tensors, metadata))
    run = cli("inspect", path, "--json", "--k", 100, "--fit-queries", 4, "--sink", 4, "--local", 64)
    heads = run.succeeds().json["heads"]
    assert [head["kv_head"] for head in heads] == list(range(3, 11))
    for head in heads:
        assert head["n"] > 8000
        # The hits are among the candidates, and better than a draw of k.
        assert 100 / head["n"] < head["recall"] <= head["candidate_recall"] <= 1
    # Of some 800 candidates the cut goes through 64 equal votes, half of them on average.
    ties = [head["tied_votes"] for head in heads]
    assert 0.01 < ties[3] < 0.1
    assert max(ties[:3] + ties[4:]) < 0.005
