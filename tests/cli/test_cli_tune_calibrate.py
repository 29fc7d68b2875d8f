"""pariskv tune --calibrate: a model of a step's time from results of bench."""

import json
from pathlib import Path

import pytest

L13 = next((Path(__file__).resolve().parents[2] / "data" / "traces").glob("*l13*"))
ROW = {"backend": "cpu", "stage": "step", "batch": 1, "head_dim": 128, "profile": "default",
       "dtype": "bf16", "tail": "sampled", "rows": "host", "cold": True, "threads": 2}  # fmt: skip


def work(n, heads, k, share):
    """Bytes of votes, scores, bytes of rows, bytes of the 896 dense tokens; docs/format.md."""
    read = max(k, -(-n * round(share * 1e6) // 10**6)) + min(512, -(-n // 16))
    return n * heads * 18, 4 * heads * read, heads * k * 512, heads * 896 * 512


def row(n, heads, k, share, factor=1.0, coefficients=(20, 1e-4, 2e-3, 3e-4, 1.5e-4)):
    terms = (1, *work(n, heads, k, share))
    us = factor * sum(c * term for c, term in zip(coefficients, terms))
    return {**ROW, "n": n, "kv_heads": heads, "query_heads": 4 * heads, "k": k,
            "candidates": share, "min_us": us, "median_us": us, "max_us": us}  # fmt: skip


def full(n, heads):
    us = 5e-5 * heads * (n + 896) * 512
    return {**ROW, "stage": "full_attention", "n": n, "kv_heads": heads, "query_heads": 4 * heads,
            "k": 100, "candidates": 0.02, "min_us": us, "median_us": us, "max_us": us}  # fmt: skip


FITTED = [row(n, heads, k, share) for n in (16384, 131072) for heads in (2, 8)
          for k, share in ((16, 0.01), (200, 0.1))] + [full(16384, 8)]  # fmt: skip
OTHERS = [row(65536, 4, 100, 0.02), row(262144, 8, 50, 0.05)]


def write(path, rows, **head):
    path.write_text(json.dumps({"device": "made up", "command": "bench", **head, "results": rows}))
    return path


def test_coefficients_are_found_and_other_sizes_predicted(cli, tmp_path):
    fitted = write(tmp_path / "a.json", FITTED)
    others = write(tmp_path / "b.json", OTHERS)
    run = cli("tune", "--calibrate", fitted, "--check", others, "--within", 0.01, "--json")
    whole = run.succeeds().json
    assert whole["device"] == "made up"
    assert whole["largest_error"] < 1e-3
    assert list(whole["model"].values()) == pytest.approx(
        [20, 1e-4, 2e-3, 3e-4, 1.5e-4, 5e-5], rel=0.02
    )
    assert [one["fitted"] for one in whole["rows"]] == [True] * 9 + [False] * 2
    for one in whole["rows"]:
        assert one["predicted_us"] == pytest.approx(one["measured_us"], rel=1e-3)


def test_a_model_that_is_off_is_below_what_was_asked_for(cli, tmp_path):
    fitted = write(tmp_path / "a.json", FITTED)
    slow = write(tmp_path / "b.json", [row(65536, 4, 100, 0.02, factor=1.25)])
    run = cli("tune", "--calibrate", fitted, "--check", slow, "--within", 0.15, "--json")
    assert run.code == 1
    assert run.json["largest_error"] == pytest.approx(0.2, abs=1e-3)
    cli("tune", "--calibrate", fitted, "--check", slow, "--within", 0.21).succeeds()


def test_rows_that_are_no_steps_are_left_alone(cli, tmp_path):
    extra = [{**ROW, "stage": "vote", "n": 5}, {**OTHERS[0], "row_cache": 512, "min_us": 1.0}]
    plain = cli("tune", "--calibrate", write(tmp_path / "a.json", FITTED), "--json").json
    more = cli("tune", "--calibrate", write(tmp_path / "b.json", FITTED + extra), "--json").json
    assert more["model"] == plain["model"]


def test_tune_takes_its_cost_from_the_model(cli, tmp_path):
    path = tmp_path / "model.json"
    fitted = write(tmp_path / "a.json", FITTED)
    cli("tune", "--calibrate", fitted, "--json", "-o", path).succeeds()
    run = cli("tune", L13, "--cost", path, "--n", 131072, "--codec", "scalar4", "--tail", "sampled",
              "--k", 100, "--candidates", 0.05, "--target-error", 1, "--json")  # fmt: skip
    whole = run.succeeds().json
    assert whole["cost_unit"] == "us"
    votes, scores, rows, _ = work(131072, 1, 100, 0.05)
    expected = 20 + 1e-4 * votes + 2e-3 * scores * 6 / 4 + 3e-4 * rows + 1.5e-4 * 640 * 512
    assert whole["chosen"]["cost"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"min_us": None}, "results[0].min_us: missing"),
        ({"min_us": 0}, "results[0].min_us: 0"),
        ({"n": 0}, "results[0].n: 0"),
        ({"n": 1e14}, "results[0].n"),
        ({"kv_heads": "8"}, 'results[0].kv_heads: "8"'),
        ({"head_dim": 4}, "results[0].head_dim: 4"),
        ({"stage": None}, "results[0].stage: missing"),
        ({"candidates": 2}, "results[0].candidates: 2"),
        ({"threads": 1}, "threads: 2: accepted is one number"),
        ({"tail": "half"}, "tail"),
    ],
)
def test_a_malformed_row_is_named(cli, tmp_path, no_leftovers, change, text):
    bad = write(tmp_path / "bad.json", [{**FITTED[0], **change}, *FITTED[1:]])
    run = cli("tune", "--calibrate", bad, "-o", tmp_path / "model.json")
    run.refuses(3 if text != "tail" else run.code, text)
    assert run.code in (2, 3)
    no_leftovers("bad.json")


def test_what_does_not_go_together_is_refused(cli, tmp_path):
    fitted = write(tmp_path / "a.json", FITTED)
    elsewhere = write(tmp_path / "b.json", OTHERS, device="another")
    run = cli("tune", "--calibrate", fitted, "--check", elsewhere)
    run.refuses(3, "b.json", "another", "made up")
    few = write(tmp_path / "c.json", FITTED[:4])
    cli("tune", "--calibrate", few).refuses(3, "c.json", "4 steps", "5 or more")
    cli("tune", L13, "--cost", fitted).refuses(3, "a.json", "model")
