"""bench.ablations on the committed traces. PARISKV_CLI names the program."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench import ablations  # noqa: E402
from bench.rules import trace  # noqa: E402

CLI = Path(os.environ.get("PARISKV_CLI", ROOT / "build" / "dev" / "bin" / "pariskv"))
TRACES = sorted((ROOT / "data" / "traces").glob("*.safetensors"))


@pytest.fixture(scope="module")
def program():
    if not CLI.is_file():
        pytest.skip(f"{CLI} is not built (PARISKV_CLI names the program)")
    return str(CLI)


def test_one_option_at_a_time(program, tmp_path, capsys):
    out = tmp_path / "out.json"
    knobs = "center,fit queries,without rows,candidates"
    code = ablations.main(
        [*map(str, TRACES), "--program", program, "--knobs", knobs, "--shares", "0.05",
         "--seeds", "1,2", "--json", str(out)])  # fmt: skip
    table = capsys.readouterr().out
    assert code == 0
    found = json.loads(out.read_text())
    rows = {(row["label"], row["candidates"]): row for row in found["results"]}
    on, off = rows["center = on", 0.05], rows["center = off", 0.05]
    assert on["is_default"] and not off["is_default"] and "change" not in on
    assert off["change"]["candidate_recall"]["high"] < -0.1, "centring matters on these traces"
    change = off["candidate_recall"]["mean"] - on["candidate_recall"]["mean"]
    assert off["change"]["candidate_recall"]["mean"] == pytest.approx(change)
    assert len(on["error"]["traces"]) == 3 and on["error"]["low"] <= on["error"]["mean"]
    assert rows["fit_queries = 64", 0.05] | {"knob": 0} == rows["center = on", 0.05] | {
        "knob": 0, "options": {"fit_queries": 64}, "label": "fit_queries = 64"}  # fmt: skip
    none = rows["fit_queries = 0", 0.05]["candidate_recall"]["mean"]
    assert none < rows["fit_queries = 16", 0.05]["candidate_recall"]["mean"]
    assert "candidate_recall" not in rows["k = 0", 0.05] and "error" in rows["k = 0", 0.05]
    assert rows["candidates = 0.2", 0.2]["change"]["error"]["high"] < 0
    assert len([row for row in found["results"] if row["knob"] == "candidates"]) == 4
    assert ablations.main(["--show", str(out)]) == 0
    assert capsys.readouterr().out == table


def test_traces_lose_their_first_queries_alone(tmp_path):
    before = trace.load(str(TRACES[0]))
    path = tmp_path / "cut.safetensors"
    path.write_bytes(ablations.without_queries(TRACES[0], 5))
    after = trace.load(str(path))
    assert len(after.queries) == len(before.queries) - 5
    assert (after.queries == before.queries[5:]).all()
    assert (after.positions == before.positions[5:]).all() and after.scale == before.scale
    for name in ("keys", "values"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    with pytest.raises(ablations.AblationError, match="queries, more than"):
        ablations.without_queries(TRACES[0], 100000)


def test_a_map_finds_more(program, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed (bench/requirements.txt)")
    out = tmp_path / "out.json"
    code = ablations.main(
        [*map(str, TRACES), "--program", program, "--knobs", "map", "--shares", "0.05",
         "--seeds", "1", "--json", str(out)])  # fmt: skip
    assert code == 0
    plain, mapped = json.loads(out.read_text())["results"]
    pairs = zip(plain["candidate_recall"]["traces"], mapped["candidate_recall"]["traces"])
    assert all(before + 0.01 < after for before, after in pairs)
    assert mapped["change"]["error"]["high"] < 0


def test_bad_input_is_named(program, tmp_path, capsys):
    bad = tmp_path / "bad.json"
    for text, wanted in (
        ("{", "bad.json"),
        ("[]", "field 'results'"),
        ('{"results": [{"knob": "k"}]}', "results[0] has no field 'label'"),
    ):
        bad.write_text(text)
        assert ablations.main(["--show", str(bad)]) == 3
        error = capsys.readouterr().err
        assert wanted in error and "bad.json" in error
    arguments = [str(tmp_path / "none.safetensors"), "--program", program, "--knobs", "center"]
    assert ablations.main(arguments) == 3
    assert "none.safetensors" in capsys.readouterr().err
    for arguments in ([], ["a", "--knobs", "colour"], ["a", "--seeds", "x"]):
        with pytest.raises(SystemExit):
            ablations.main(arguments)
