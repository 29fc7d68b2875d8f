"""pariskv tune --calibrate: a model of a step's time from results of bench."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
L13 = next((ROOT / "data" / "traces").glob("*l13*"))
ROW = {"backend": "cpu", "stage": "step", "batch": 1, "head_dim": 128, "profile": "default",
       "dtype": "bf16", "tail": "sampled", "rows": "host", "cold": True, "threads": 2}  # fmt: skip


NAMES = ["fixed_us", "us_per_vote_byte", "us_per_estimate", "us_per_sample", "us_per_sketch2",
         "us_per_sketch4", "us_per_fetched_byte", "us_per_dense_byte"]  # fmt: skip
COEFFICIENTS = (20, 1e-4, 2e-3, 0.03, 0.008, 0.006, 3e-4, 1.5e-4)


def work(n, heads, k, share, tail="sampled", dense=896, group=4):
    """What the coefficients stand for; docs/format.md and docs/algorithm.md, 5 and 6.3."""
    candidates = max(k, -(-n * round(share * 1e6) // 10**6))
    stride = 16 if tail == "sampled" else 1
    samples = 0 if tail == "drop" else min(512, -(-n // stride))
    sketches = [group * heads * candidates * (tail == name) for name in ("sketch2", "sketch4")]
    return (1, n * heads * 18, group * heads * (candidates + samples), heads * samples, *sketches,
            heads * k * 512, heads * dense * 512)  # fmt: skip


def time_of(terms):
    return sum(c * term for c, term in zip(COEFFICIENTS, terms))


def row(n, heads, k, share, factor=1.0, tail="sampled"):
    us = factor * time_of(work(n, heads, k, share, tail))
    return {**ROW, "n": n, "kv_heads": heads, "query_heads": 4 * heads, "k": k, "tail": tail,
            "candidates": share, "min_us": us, "median_us": us, "max_us": us}  # fmt: skip


def full(n, heads):
    us = 5e-5 * heads * (n + 896) * 512
    return {**ROW, "stage": "full_attention", "n": n, "kv_heads": heads, "query_heads": 4 * heads,
            "k": 100, "candidates": 0.02, "min_us": us, "median_us": us, "max_us": us}  # fmt: skip


FITTED = [row(n, heads, k, share, tail=tail) for n in (16384, 131072) for heads in (2, 8)
          for k, share, tail in ((16, 0.01, "sampled"), (200, 0.1, "sampled"), (32, 0.05, "drop"),
                                 (32, 0.05, "sketch2"), (32, 0.05, "sketch4"))]  # fmt: skip
FITTED.append(full(16384, 8))
OTHERS = [row(65536, 4, 100, 0.02), row(262144, 8, 50, 0.05, tail="sketch2")]


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
    assert list(whole["model"]) == [*NAMES, "us_per_full_byte"]
    assert list(whole["model"].values()) == pytest.approx([*COEFFICIENTS, 5e-5], rel=0.02)
    assert [one["fitted"] for one in whole["rows"]] == [True] * len(FITTED) + [False] * 2
    for one in whole["rows"]:
        assert one["predicted_us"] == pytest.approx(one["measured_us"], rel=1e-3)


def test_a_model_that_is_off_is_below_what_was_asked_for(cli, tmp_path):
    fitted = write(tmp_path / "a.json", FITTED)
    slow = write(tmp_path / "b.json", [row(65536, 4, 100, 0.02, factor=1.25)])
    run = cli("tune", "--calibrate", fitted, "--check", slow, "--within", 0.15, "--json")
    assert run.code == 1
    assert run.json["largest_error"] == pytest.approx(0.2, abs=1e-3)
    cli("tune", "--calibrate", fitted, "--check", slow, "--within", 0.21).succeeds()


def test_steps_held_out_are_checked_and_not_fitted(cli, tmp_path):
    odd = [*FITTED[:5], row(65536, 4, 100, 0.02, factor=3), *FITTED[5:]]
    path = write(tmp_path / "a.json", odd)
    whole = cli("tune", "--calibrate", path, "--hold-out", "6,9", "--json").succeeds().json
    assert [one["fitted"] for one in whole["rows"]] == [True] * (len(odd) - 2) + [False] * 2
    held = {round(one["measured_us"]): one["predicted_us"] for one in whole["rows"][-2:]}
    assert held == {
        round(odd[5]["min_us"]): pytest.approx(odd[5]["min_us"] / 3, rel=1e-3),
        round(odd[8]["min_us"]): pytest.approx(odd[8]["min_us"], rel=1e-3),
    }
    cli("tune", "--calibrate", path, "--hold-out", "99").refuses(2, "--hold-out=99", "1..22")
    cli("tune", "--calibrate", path, "--hold-out", "0").refuses(2, "--hold-out=0")


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
    expected = time_of(work(131072, 1, 100, 0.05, dense=640, group=6))
    assert whole["chosen"]["cost"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    "arguments",
    [
        ("cpu-cost-fit", "--check", "cpu-cost-check"),
        ("cuda-peers-h200", "--hold-out", "5,6,13,14,25,26"),
    ],
    ids=["cpu", "cuda"],
)
def test_measured_steps_are_predicted_within_15_percent(cli, arguments):
    names = [RESULTS / f"{a}-2026-11-30.json" if a[0] == "c" else a for a in arguments]
    run = cli("tune", "--calibrate", *names, "--within", 0.15, "--json").succeeds()
    checked = [one for one in run.json["rows"] if not one["fitted"]]
    assert len(checked) >= 3
    for one in checked:
        assert one["predicted_us"] == pytest.approx(one["measured_us"], rel=0.15), one["what"]


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
        ({"tail": "half"}, 'results[0]: pkv_config_set: tail="half"'),
        ({"profile": "other"}, "results[0]: "),
    ],
)
def test_a_malformed_row_is_named(cli, tmp_path, no_leftovers, change, text):
    bad = write(tmp_path / "bad.json", [{**FITTED[0], **change}, *FITTED[1:]])
    run = cli("tune", "--calibrate", bad, "-o", tmp_path / "model.json")
    run.refuses(3, f"bad.json: {text}" if text[0] == "r" else text)
    no_leftovers("bad.json")


def test_what_does_not_go_together_is_refused(cli, tmp_path):
    fitted = write(tmp_path / "a.json", FITTED)
    elsewhere = write(tmp_path / "b.json", OTHERS, device="another")
    run = cli("tune", "--calibrate", fitted, "--check", elsewhere)
    run.refuses(3, "b.json", "another", "made up")
    few = write(tmp_path / "c.json", FITTED[:4])
    cli("tune", "--calibrate", few).refuses(3, "c.json", "4 steps", "5 or more")
    cli("tune", L13, "--cost", fitted).refuses(3, "a.json", "model")
