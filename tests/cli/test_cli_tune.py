"""pariskv tune: the search and its verdict. The model of cost is in test_cli_tune_calibrate.py."""

import json
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from cli_files import write_trace

TRACES = sorted((Path(__file__).resolve().parents[2] / "data" / "traces").glob("*.safetensors"))
L00, L13, SMOL = TRACES
FAST = ("--codec", "scalar4", "--tail", "sampled", "--json")
ONE = ("--codec", "scalar4", "--tail", "sampled", "--k", 100, "--candidates", 0.05, "--json")


def last_position(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))["q_pos"]["data_offsets"]
        file.seek(8 + length + begin)
        return int(np.frombuffer(file.read(end - begin), "<i8").max())


def tune(cli, *arguments, code=0):
    run = cli("tune", *arguments)
    assert run.code == code, run.err
    return run.json


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:12])
def test_the_target_is_reached_on_queries_that_did_not_search(cli, path):
    whole = tune(cli, path, "--target-error", 0.05, "--json")
    assert whole["reached"]
    (row,) = whole["results"]
    assert row["error"] <= 0.05
    assert whole["chosen"]["bound"] <= 0.05
    assert (row["searched_queries"], row["judged_queries"]) == (32, 32)
    # Together they are the queries that eval judges: none is missing, none counted twice.
    chosen = whole["chosen"]
    options = [
        x for name in ("candidates", "k", "codec", "tail") for x in (f"--{name}", chosen[name])
    ]
    (judged,) = cli("eval", path, "--methods", "default", "--json", *options).json["results"]
    assert judged["error"] == pytest.approx((row["error"] + chosen["error"]) / 2, rel=1e-6)
    assert row["error"] != chosen["error"]


def test_the_cheapest_of_all_that_reach_it_is_chosen(cli):
    shares = [0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1]
    fixed = ("--codec", "scalar4", "--tail", "sketch2", "--k", 16, "--max-dense", 0, "--json")
    target = ("--target-error", 0.03)
    alone = [cli("tune", L00, *target, *fixed, "--candidates", share) for share in shares]
    chosen = [run.json["chosen"] for run in alone]
    reached = [one["cost"] for one in chosen if one["reached"]]
    assert 0 < len(reached) < len(shares)
    assert [run.code for run in alone] == [0 if one["reached"] else 1 for one in chosen]
    assert [one["cost"] for one in chosen] == sorted(one["cost"] for one in chosen)
    whole = tune(cli, L00, *target, *fixed)
    assert whole["chosen"]["cost"] == min(reached)
    cheaper = [one["cost"] for one in chosen if not one["reached"]]
    assert whole["next_cheaper"]["cost"] == max(cheaper)
    assert not whole["next_cheaper"]["reached"]
    assert whole["next_cheaper"]["bound"] > 0.03 >= whole["chosen"]["bound"]


def test_every_trace_must_reach_it(cli):
    both = tune(cli, L00, L13, *ONE, "--target-error", 0.05)
    errors = {row["trace"]: row["error"] for row in both["results"]}
    assert len(set(errors.values())) == 2
    bounds = [tune(cli, path, *ONE, "--target-error", 1)["chosen"]["bound"] for path in (L00, L13)]
    assert both["chosen"]["bound"] == max(bounds)
    between = ("--target-error", sum(bounds) / 2)
    assert bounds[0] > bounds[1]
    # One of two may be attended in full: at the price of full attention there.
    dense = tune(cli, L00, L13, *ONE, *between)
    assert dense["chosen"]["dense"] == [L00.stem]
    assert [row["error"] == 0 for row in dense["results"]] == [True, False]
    assert dense["chosen"]["cost"] == sum(row["cost"] for row in dense["results"])
    assert dense["results"][0]["cost"] > both["results"][0]["cost"]
    assert not tune(cli, L00, L13, *ONE, *between, "--max-dense", 0, code=1)["reached"]


def test_out_of_reach_gives_the_best_found(cli):
    whole = tune(cli, SMOL, *FAST, "--target-error", 1e-5, code=1)
    assert not whole["reached"]
    best = whole["chosen"]
    assert (best["candidates"], best["k"]) == (1, 800)
    assert best["bound"] == min(one["bound"] for one in whole["frontier"])
    assert whole["results"][0]["error"] > 1e-5
    run = cli("tune", SMOL, *FAST[:-1], "--target-error", 1e-5)
    assert run.code == 1
    assert "best found" in run.out
    assert "out of reach" in run.out


def test_cost_is_the_bytes_that_a_step_reads(cli):
    (row,) = tune(cli, L13, *ONE, "--target-error", 1)["results"]
    n = last_position(L13) + 1 - 128 - 512

    def read(n):
        # docs/format.md, d = 128: signs 16, vote factor 2, codes 48, factor 2; a sketch of V every
        # 16th position, signs 16, codes 48, factor 2, of 512 samples at most; K and V of 16 bits.
        candidates, samples = -(-n * 5 // 100), min(512, -(-n // 16))
        return n * 18 + (candidates + samples) * 66 + samples * 66 + 100 * 512

    assert row["cost"] == read(n)
    assert row["read_bytes_per_key"] == row["cost"] / 4096
    (longer,) = tune(cli, L13, *ONE, "--target-error", 1, "--n", 100_000)["results"]
    assert longer["cost"] == read(100_000)
    assert longer["read_bytes_per_key"] == row["read_bytes_per_key"]


def test_at_another_length_rows_are_no_more_than_the_share_of_candidates(cli):
    def chosen(*more):
        return cli("tune", L13, "--target-error", 0.1, *FAST, *more).succeeds().json["chosen"]

    keys = last_position(L13) + 1 - 128 - 512
    here, there = chosen("--k", 100), chosen("--k", 100, "--n", 10 * keys)
    assert here["candidates"] * keys < 100 <= there["candidates"] * keys + 1
    run = cli("tune", L13, "--k", 400, "--candidates", 0.01, "--n", 5000)
    run.refuses(2, "--n=5000", "candidates")


def test_the_table_says_why(cli):
    text = cli("tune", L00, *FAST[:-1], "--target-error", 0.05).succeeds().out
    for part in ("Cost: bytes", "chosen", "next cheaper", "at most", "reached: --candidates"):
        assert part in text


def test_report_shows_what_tune_prints(cli, tmp_path):
    cli("tune", L13, *FAST, "--target-error", 0.1, "-o", tmp_path / "t.json").succeeds()
    page = cli("report", tmp_path / "t.json").succeeds().out
    assert "Error of the output against bytes read" in page
    assert "default:candidates=" in page


def test_options_are_checked(cli, tmp_path):
    write_trace(tmp_path / "t.safetensors", n=900, queries=12)
    path = tmp_path / "t.safetensors"
    cli("tune").refuses(2, "traces", "--calibrate")
    cli("tune", path).refuses(2, "--fit-queries=64", "0..4", "12 queries")
    cli("tune", path, "--fit-queries", 5).refuses(2, "0..4")
    cli("tune", path, "--target-error", 2).refuses(2, "--target-error")
    cli("tune", path, "--max-dense", 1).refuses(2, "--max-dense=1", "0..0")
    cli("tune", path, "--candidates", "auto").refuses(2, "--candidates")
    cli("tune", path, "--tail", "drop", "--k", 0).refuses(2, "--k=0")
    cli("tune", path, "--within", 0.1).refuses(2, "--within", "--calibrate")
    cli("tune", path, "--check", "x.json").refuses(2, "--check", "--calibrate")
    cli("tune", path, "--calibrate", "x.json").refuses(2, "--calibrate")
    cli("tune", "--calibrate", "x.json", "--n", 5).refuses(2, "--calibrate")
    cli("tune", "--calibrate", "").refuses(2, "--calibrate")
    cli("tune", tmp_path / "gone.safetensors").refuses(3, "gone")
    cli("tune", path, "-o", path, "--force").refuses(2, "input as well")
    cli("tune", path, "--fit-queries", 4, "--cost", tmp_path / "gone.json").refuses(3, "gone.json")


def test_ctrl_c_ends_it_and_leaves_nothing(cli, tmp_path, no_leftovers):
    run = subprocess.Popen([str(cli.path), "tune", *map(str, TRACES), "--target-error", "1e-6",
                            "-o", str(tmp_path / "t.txt")], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)  # fmt: skip
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert out == ""
    no_leftovers()
