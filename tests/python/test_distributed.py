"""pariskv.distributed on gloo: several processes give what one cache gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
WORKER = Path(__file__).with_name("distributed_worker.py")


def run(ranks, what, folder, pariskv):
    """[(exit code, output)] of each rank."""
    root = str(Path(pariskv.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, WORKER]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), folder / "meeting", what],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, output) for process, output in zip(started, outputs)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_what_one_gives(pariskv, tmp_path, ranks):
    for code, output in run(ranks, "equality", tmp_path, pariskv):
        assert code == 0, output


@pytest.mark.parametrize("ranks", [2, 4])
def test_budgets_of_one_device(pariskv, tmp_path, ranks):
    for code, output in run(ranks, "budgets", tmp_path, pariskv):
        assert code == 0, output


def test_a_rank_that_dies_in_a_step_with_budgets_of_one_device(pariskv, tmp_path):
    *others, last = run(2, "budgets_death", tmp_path, pariskv)
    assert last[0] == 7, last[1]
    for code, output in others:
        assert code == 0 and "the others are told" in output, output


def test_a_rank_that_dies_is_an_error_on_the_others(pariskv, tmp_path):
    *others, last = run(2, "death", tmp_path, pariskv)
    assert last[0] == 7, last[1]
    for code, output in others:
        assert code == 0 and "the others are told" in output, output
