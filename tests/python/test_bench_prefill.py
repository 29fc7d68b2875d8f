"""bench.prefill on a tiny cache."""

import json

import pytest

pytest.importorskip("torch")

from bench import prefill


def test_every_layout_with_and_without_queries(tmp_path, capsys):
    out = tmp_path / "prefill.json"
    shape = ["--layers", "2", "--query-heads", "4", "--head-dim", "32"]
    assert (
        prefill.main(["--device", "cpu", "--tokens", "700,1200", *shape, "--json", str(out)]) == 0
    )
    report = json.loads(out.read_text())
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert report["results"] == printed
    seen = {(row["tokens"], row["layout"], row["queries"]) for row in printed}
    assert seen == {
        (n, layout, queries)
        for n in (700, 1200)
        for layout in ("heads", "tokens")
        for queries in (True, False)
    }
    assert all(0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"] for row in printed)


def test_a_prompt_is_the_same_in_every_layout():
    options = prefill.parse(["--device", "cpu", "--head-dim", "8"])
    heads, tokens = (prefill.prompt_of(options, 5, layout) for layout in ("heads", "tokens"))
    for a, b in zip(heads, tokens):
        assert a.shape == b.shape
        assert (a == b).all()
    assert not heads[2].is_contiguous()
    assert tokens[2].is_contiguous()


def test_no_tokens_are_refused(capsys):
    with pytest.raises(SystemExit):
        prefill.parse(["--tokens", "0"])
    assert "accepted are 1 and more" in capsys.readouterr().err
