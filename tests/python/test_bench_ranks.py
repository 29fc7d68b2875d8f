"""bench.ranks with gloo: its figures have the form it says, its outputs are one device's."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))


def test_two_ranks_beside_one(pariskv, tmp_path, monkeypatch, capsys):
    from bench import ranks

    monkeypatch.chdir(REPOSITORY)
    path = f"{Path(pariskv.__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)
    output = tmp_path / "ranks.json"
    options = "--device cpu --ranks 2 --n 4096 --repeat 2 --calls 3 --candidates 0.05 --output"
    assert ranks.main([*options.split(), str(output)]) == 0
    found = json.loads(output.read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["n"], found["device"]) == (2, 4096, "cpu")
    sent = {name: row["bytes"] for name, row in found["exchanges"].items()}
    assert sent == {
        "histogram": 8 * 2048 * 4,
        "sums": 4 * 32 * 8,
        "hits": 2 * 8 * 100 * 8,
        "outputs": 32 * 129 * 4,
        "nothing": 4,
    }
    steps = found["steps"]
    assert set(steps) == {"rank", "global", "one"}
    for row in [*steps.values(), *found["exchanges"].values()]:
        assert 0 < row["min_us"] <= row["median_us"]
    # float32; the samples' sums are made in another order.
    assert steps["global"]["error"] < 1e-5 < steps["rank"]["error"]
    assert steps["rank"]["own_keys"] == 2048


def test_a_rank_that_fails_is_told(monkeypatch):
    from bench import ranks

    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("PARISKV_LIBRARY", "/none")
    options = ranks.parse(["--device", "cpu", "--ranks", "1", "--n", "64"])
    with pytest.raises(RuntimeError, match="rank 0 ended with"):
        ranks.start(["--device", "cpu", "--ranks", "1", "--n", "64"], options)
    with pytest.raises(SystemExit):
        ranks.parse(["--ranks", "0"])
