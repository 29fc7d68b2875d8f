"""pariskv report: what it reads, what it refuses, and the numbers behind the page. The page in a
browser is in test_cli_report_page.py."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
QUALITY = {"trace": "t", "method": "default", "n": 1000, "k": 10, "error": 0.5, "recall": 0.25}
SPEED = {"stage": "step", "n": 1024, "min_us": 1.0, "median_us": 2.0, "max_us": 3.0}


def write(path, *rows, **head):
    path.write_text(json.dumps({**head, "results": list(rows)}))
    return path


def report(cli, *arguments):
    return cli("report", *arguments, "--json").succeeds().json


def means_of(whole):
    return {(row["side"], row["setting"], row["k"]): row for row in whole["quality"]}


def test_means_over_traces_are_those_of_the_committed_rows(cli):
    path = RESULTS / "quality-rules-2026-11-30.json"
    rows = [row for run in json.loads(path.read_text())["runs"] for row in run["results"]]
    rows = [row for row in rows if (row["setting"], row["k"]) == ("default", 100)]
    assert len(rows) == 4
    mean = means_of(report(cli, path))["A", "default", 100]
    assert mean["traces"] == 4
    for figure in ("error", "recall", "candidate_recall"):
        expected = sum(row[figure]["mean"] for row in rows) / 4
        assert mean[figure] == pytest.approx(expected, rel=1e-12)
    read = [(row["device_bytes"]["mean"] + row["host_bytes"]["mean"]) / row["n"] for row in rows]
    assert mean["read_bytes_per_key"] == pytest.approx(sum(read) / 4, rel=1e-12)
    kept = [row["device_bytes_per_key"] + row["host_bytes_per_key"] for row in rows]
    assert mean["kept_bytes_per_key"] == pytest.approx(sum(kept) / 4, rel=1e-12)


def test_rows_of_eval_are_told_apart_by_the_options_of_their_command(cli, tmp_path):
    path = write(tmp_path / "r.json", QUALITY, {**QUALITY, "method": "exact"},
                 command="pariskv eval t --candidates=0.02 --tail sketch2 --json")  # fmt: skip
    names = [row["setting"] for row in report(cli, path)["quality"]]
    assert names == ["default:candidates=0.02:tail=sketch2", "exact"]


def test_what_eval_prints_is_read(cli, tmp_path):
    from cli_files import write_trace

    write_trace(tmp_path / "t.safetensors", n=1400, queries=12)
    path = tmp_path / "r.json"
    cli("eval", tmp_path / "t.safetensors", "--decode", "--prefill", 500, "--fit-queries", 4,
        "--local", 40, "--k", 12, "--json", "-o", path).succeeds()  # fmt: skip
    page = cli("report", path).succeeds().out
    assert "Recall while decoding: t" in page
    assert "default, decoding" in page


def test_what_bench_prints_is_read(cli, tmp_path):
    path = tmp_path / "r.json"
    cli("bench", "--n", "2048,4096", "--repeat", 2, "--kv-heads", 1, "--query-heads", 2,
        "--head-dim", 64, "--json", "-o", path).succeeds()  # fmt: skip
    rows = json.loads(path.read_text())["results"]
    page = cli("report", path).succeeds().out
    assert "roofline: bytes of step" in page
    assert "Stages at n = 4,096" in page
    shown = report(cli, path)["speed"]
    assert len(shown) == len(rows)
    for stage in ("step", "full_attention", "vote"):
        assert {row["n"]: row["median_us"] for row in shown if row["what"] == stage} == {
            row["n"]: row["median_us"] for row in rows if row["stage"] == stage
        }


def test_lines_are_named_by_what_differs(cli, tmp_path):
    path = write(tmp_path / "r.json", {**SPEED, "threads": 1, "batch": 4},
                 {**SPEED, "threads": 2, "batch": 4})  # fmt: skip
    assert [row["what"] for row in report(cli, path)["speed"]] == [
        "step, threads 1", "step, threads 2"]  # fmt: skip


def test_differences_are_over_what_both_sides_have(cli, tmp_path):
    a = write(tmp_path / "a.json", QUALITY, {**QUALITY, "trace": "u", "error": 0.9}, SPEED)
    b = write(tmp_path / "b.json", {**QUALITY, "error": 0.4, "recall": 0.5},
              {**QUALITY, "method": "paper"}, {**SPEED, "n": 2048},
              {**SPEED, "min_us": 2.0, "median_us": 3.0})  # fmt: skip
    whole = report(cli, a, "--compare", b)
    assert [(d["what"], d["figure"], d["a"], d["b"]) for d in whole["differences"]] == [
        ("default, k = 10, 1 trace", "error", 0.5, 0.4),
        ("default, k = 10, 1 trace", "recall", 0.25, 0.5),
        ("step, n = 1024", "median µs", 2.0, 3.0),
    ]
    assert [d["change"] for d in whole["differences"]] == pytest.approx([-0.2, 1.0, 0.5])
    page = cli("report", a, "--compare", b).succeeds().out
    assert "3 figures are on both sides: 2 better in B, 1 worse, 0 the same" in page


def test_texts_of_a_file_are_escaped(cli, tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror='alert(2)'>\"&"
    path = write(tmp_path / "r.json", {**QUALITY, "trace": evil, "method": evil, "setting": evil,
                 "heads": [{"kv_head": 0, "recall": 0.5}], "device_bytes": 5,
                 "windows": [{"end": 10, "error": 0.1, "recall": 0.5}]},
                 {**SPEED, "stage": evil, "backend": evil, "bytes": 100}, device=evil,
                 date=evil, command=evil)  # fmt: skip
    page = cli("report", path, "--title", evil).succeeds().out
    assert "<script" not in page
    assert "<img" not in page
    assert "onerror='" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10


BAD = {
    "results: missing": {"result": []},
    "results: none": {"results": []},
    "results: 5": {"results": 5},
    "results[0]: 7": {"results": [7]},
    "runs[1].results": {"runs": [{"results": [QUALITY]}, {}]},
    "results[1]: neither": {"results": [QUALITY, {"n": 5}]},
    "results[0].trace: missing": {"results": [{**QUALITY, "trace": None}]},
    "results[0].trace: 5": {"results": [{**QUALITY, "trace": 5}]},
    "results[0].method: an array": {"results": [{**QUALITY, "method": [1]}]},
    "results[0].error: missing": {"results": [{**QUALITY, "error": None}]},
    'results[0].error: "0.1"': {"results": [{**QUALITY, "error": "0.1"}]},
    "results[0].error: -1": {"results": [{**QUALITY, "error": -1}]},
    "results[0].error.mean: missing": {"results": [{**QUALITY, "error": {"low": 1}}]},
    "results[0].error: 1e+300": {"results": [{**QUALITY, "error": 1e300}]},
    "results[0].n: 1.5": {"results": [{**QUALITY, "n": 1.5}]},
    "results[0].k: missing": {"results": [{**QUALITY, "k": None}]},
    "results[0].recall: 1.5": {"results": [{**QUALITY, "recall": 1.5}]},
    "results[0].heads[1].kv_head: missing": {
        "results": [{**QUALITY, "heads": [{"kv_head": 0}, {"recall": 1}]}]
    },
    "results[0].windows[0].end: true": {
        "results": [{**QUALITY, "windows": [{"end": True, "error": 1}]}]
    },
    "results[0].kv_heads": {"results": [{**QUALITY, "kv_heads": ["a"]}]},
    "results[0].n: 0": {"results": [{**SPEED, "n": 0}]},
    "results[0].median_us: missing": {"results": [{**SPEED, "median_us": None}]},
    "results[0].median_us: 9": {"results": [{**SPEED, "median_us": 9}]},
    "device: 5": {"device": 5, "results": [SPEED]},
    "no object": [],
}


@pytest.mark.parametrize("field", BAD)
def test_a_malformed_file_is_named_with_the_field(cli, tmp_path, no_leftovers, field):
    good = write(tmp_path / "good.json", QUALITY)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(BAD[field]))
    cli("report", good, bad, "-o", tmp_path / "page.html").refuses(3, f"bad.json: {field}")
    cli("report", good, "--compare", bad).refuses(3, f"bad.json: {field}")
    no_leftovers("good.json", "bad.json")


@pytest.mark.parametrize("text", ["", "{", '{"results": [NaN]}', "\xff", '{"results": [1e999]}'])
def test_what_is_no_json_is_refused(cli, tmp_path, text):
    (tmp_path / "bad.json").write_bytes(text.encode("latin-1"))
    cli("report", tmp_path / "bad.json").refuses(3, "bad.json: no JSON")


def test_a_missing_file_is_named(cli, tmp_path):
    cli("report", tmp_path / "gone.json").refuses(3, "gone.json")


def test_outputs_are_not_replaced_unasked(cli, tmp_path):
    path = write(tmp_path / "r.json", QUALITY)
    page = tmp_path / "page.html"
    page.write_text("mine")
    cli("report", path, "-o", page).refuses(2, "--force")
    cli("report", path, "-o", path, "--force").refuses(2, "input as well")
    cli("report", path, "--compare", page, "-o", page, "--force").refuses(2, "input as well")
    cli("report", path, "--pdf", page).refuses(2, "--force")
    assert page.read_text() == "mine"
    cli("report", path, "-o", page, "--force").succeeds()
    assert page.read_text().startswith("<!doctype html>")


def test_options_are_checked(cli, tmp_path):
    path = write(tmp_path / "r.json", QUALITY)
    cli("report").refuses(2, "at least 1")
    cli("report", path, "--compare", "").refuses(2, "--compare")
    cli("report", path, "--bandwidth", "0").refuses(2, "--bandwidth")
    cli("report", path, "--json", "--pdf", tmp_path / "x.pdf").refuses(2, "--pdf")
    cli("report", path, "--pdf", tmp_path / "x", "-o", tmp_path / "x").refuses(2, "--pdf")


def test_without_a_browser_there_is_no_pdf(cli, tmp_path, no_leftovers):
    path = write(tmp_path / "r.json", QUALITY)
    nowhere = {"PATH": str(tmp_path), "PARISKV_BROWSER": ""}
    run = cli("report", path, "--pdf", tmp_path / "x.pdf", env=nowhere)
    run.refuses(5, "chromium", "PARISKV_BROWSER")
    named = {"PARISKV_BROWSER": str(tmp_path / "gone")}
    cli("report", path, "--pdf", tmp_path / "x.pdf", env=named).refuses(5, "gone")
    no_leftovers("r.json")


def test_a_browser_that_fails_leaves_nothing(cli, tmp_path, no_leftovers):
    path = write(tmp_path / "r.json", QUALITY)
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    browser.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    named = {"PARISKV_BROWSER": str(browser), "TMPDIR": str(temporary)}
    run = cli("report", path, "--pdf", tmp_path / "x.pdf", env=named)
    run.refuses(5, "code 3", "no display")
    assert list(temporary.iterdir()) == []
    no_leftovers("r.json", "browser", "tmp")
