"""pariskv bench: rows, schema, bytes by formula, refusals. No time is judged."""

import datetime
import json
import os
import pty
import shlex
import signal
import time

import pytest
from test_cli_output import start

STAGES = ["encode", "vote", "select", "rerank", "fetch", "attend", "step", "full_attention"]
FIELDS = [
    "backend",
    "stage",
    "n",
    "batch",
    "kv_heads",
    "query_heads",
    "head_dim",
    "k",
    "candidates",
    "profile",
    "dtype",
    "tail",
    "rows",
    "cold",
    "threads",
    "min_us",
    "median_us",
    "max_us",
    "bytes",
]
N = 256
TINY = ("--n", N, "--kv-heads", 2, "--query-heads", 4, "--repeat", 2, "--warm")
DENSE = 128 + 768


@pytest.fixture
def bench(cli):
    def run(*options, shape=TINY, backend="cpu_ref"):
        return cli("bench", "--backend", backend, *shape, *options)

    return run


def stages_of(whole):
    return [row["stage"] for row in whole["results"]]


def bytes_of(whole):
    return {row["stage"]: row["bytes"] for row in whole["results"]}


def test_the_json_is_exactly_what_the_document_says(bench):
    whole = bench("--json").succeeds().json
    assert list(whole) == ["device", "command", "date", "results"]
    assert whole["device"]
    datetime.datetime.strptime(whole["date"], "%Y-%m-%dT%H:%M:%SZ")
    assert stages_of(whole) == ["read", *STAGES]
    for row in whole["results"]:
        assert list(row) == FIELDS
        times = [row["min_us"], row["median_us"], row["max_us"]]
        assert all(isinstance(us, float) and us > 0 for us in times)
        assert times == sorted(times)
        assert row["backend"] == "cpu_ref"
        assert (row["n"], row["batch"], row["kv_heads"], row["query_heads"]) == (N, 1, 2, 4)
        assert (row["head_dim"], row["k"], row["dtype"]) == (128, 100, "bf16")
        assert (row["profile"], row["tail"], row["rows"]) == ("default", "sampled", "host")
        assert (row["cold"], row["threads"]) == (False, 1)
        assert row["candidates"] == 100 / N  # 5 % are fewer than k


def test_the_command_can_be_typed_again(bench, cli, tmp_path):
    output = tmp_path / "it's here.json"
    bench("--stages", "vote", "--json", "--output", output).succeeds()
    words = shlex.split(json.loads(output.read_text())["command"])
    assert words[:4] == ["pariskv", "bench", "--backend", "cpu_ref"]
    assert words[-1] == str(output)
    cli(*words[1:], "--force").succeeds()
    again = json.loads(output.read_text())
    assert shlex.split(again["command"]) == [*words, "--force"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_may_stand_alone(bench, stage):
    assert stages_of(bench("--stages", stage, "--json").succeeds().json) == ["read", stage]


def test_stages_come_in_the_order_of_a_step(bench):
    whole = bench("--stages", "step,fetch,vote", "--json").succeeds().json
    assert stages_of(whole) == ["read", "vote", "fetch", "step"]


def test_lengths_come_in_the_order_asked_for(bench):
    shape = ("--n", "64,16", "--kv-heads", 1, "--query-heads", 1, "--repeat", 1, "--warm")
    whole = bench("--stages", "select,vote", "--json", shape=shape).succeeds().json
    rows = [(row["n"], row["stage"]) for row in whole["results"]]
    assert rows == [(n, stage) for n in (64, 16) for stage in ("read", "vote", "select")]


# Bytes per key and KV head at d = dv = 64, from docs/format.md: signs 8, vote factor 2, codes 24,
# factor 2, sketch of a value 34, one for 16 keys.
def test_bytes_are_what_each_stage_has_to_read(bench):
    options = ("--head-dim", 64, "--k", 8, "--candidates", 0.125, "--batch", 3, "--dtype", "f32")
    whole = bench(*options, "--json").succeeds().json
    rows, row = 3 * 2, 64 * 4
    candidates, samples = N // 8, N // 16
    rerank = rows * (candidates + samples) * (8 + 24 + 2)
    attend = rows * ((8 + DENSE) * 2 * row + samples * 34)
    assert bytes_of(whole) == {
        "read": rows * N * 10,
        "encode": rows * N * 2 * row,
        "vote": rows * N * 10,
        "select": rows * N * 4,
        "rerank": rerank,
        "fetch": rows * 8 * 2 * row,
        "attend": attend,
        "step": rows * N * 10 + rerank + attend,
        "full_attention": rows * (N + DENSE) * 2 * row,
    }
    assert all(r["candidates"] == 0.125 and r["batch"] == 3 for r in whole["results"])


# polar4 has a factor per 8 coordinates, the tier vote none; the tail drop has no samples and needs
# no values.
def test_the_profile_paper_has_its_own_records_and_schedule(bench):
    whole = bench("--profile", "paper", "--k", 4, "--head-dim", 64, "--json").succeeds().json
    candidates = 26  # 10 % of 256, rounded up
    found = bytes_of(whole)
    assert found["vote"] == 2 * N * 8
    assert found["rerank"] == 2 * candidates * (8 + 24 + 16)
    assert found["encode"] == 2 * N * 128
    assert found["attend"] == 2 * (4 + DENSE) * 2 * 128
    for row in whole["results"]:
        assert (row["profile"], row["tail"]) == ("paper", "drop")
        assert row["candidates"] == candidates / N


@pytest.mark.parametrize(
    "options",
    [
        ("--k", 0),
        ("--k", 300),
        ("--tail", "mean"),
        ("--tail", "sketch2", "--candidates", 1),
        ("--tail", "sketch4"),
        ("--profile", "paper", "--tail", "sampled"),
        ("--head-dim", 40, "--dtype", "f16"),
    ],
)
def test_every_kind_of_step_can_be_measured(bench, options):
    assert stages_of(bench(*options, "--json").succeeds().json) == ["read", *STAGES]


@pytest.mark.parametrize("n", [1, 7])
def test_fewer_keys_than_wanted(bench, n):
    shape = ("--n", n, "--kv-heads", 1, "--query-heads", 2, "--repeat", 1, "--warm")
    whole = bench("--json", shape=shape).succeeds().json
    assert stages_of(whole) == ["read", *STAGES]
    assert all(row["candidates"] == 1 for row in whole["results"])


def test_cold_is_the_default(bench):
    shape = ("--n", N, "--kv-heads", 1, "--query-heads", 1, "--repeat", 3)
    options = ("--stages", "vote,step", "--head-dim", 64)
    whole = bench(*options, "--json", shape=shape).succeeds().json
    assert [row["cold"] for row in whole["results"]] == [True] * 3
    text = bench(*options, shape=shape).succeeds().out
    assert text.count("cold, 4 layers") == 3  # one more than runs


def test_the_table_has_a_line_per_row(bench):
    lines = bench("--stages", "vote,step").succeeds().out.splitlines()
    assert "cpu_ref" in lines[0] and "2 KV heads" in lines[0]
    header = "stage n threads min us median us max us runs bytes GB/s of read caches"
    assert lines[1].split() == header.split()
    assert [line.split()[0] for line in lines[2:]] == ["read", "vote", "step"]
    assert lines[2].split()[-3:] == ["100.00", "%", "warm"]
    assert [line.split()[6] for line in lines[2:]] == ["2", "2", "2"]


def test_a_limit_of_time_leaves_runs_out_and_says_so(bench):
    options = ("--stages", "full_attention", "--seconds", 0.001, "--repeat", 1000000)
    shape = ("--n", N, "--warm")
    run = bench(*options, shape=shape).succeeds()
    assert "warning: full_attention at n=256: 1 of 1000000 runs within --seconds" in run.err
    assert bench(*options, "--log-level", 0, shape=shape).succeeds().err == ""


# Runs of several calls take turns over the layers all the same.
@pytest.mark.parametrize("calls", [1, 3])
def test_a_wait_may_be_for_several_calls(bench, calls):
    shape = ("--n", N, "--kv-heads", 1, "--query-heads", 1, "--repeat", 3, "--batch", 2)
    options = ("--stages", "vote,step,full_attention", "--calls", calls, "--memory", 1, "--json")
    whole = bench(*options, shape=shape).succeeds().json
    cold = {row["stage"]: row["cold"] for row in whole["results"]}
    together = calls == 1
    expected = {"read": True, "vote": True, "step": together, "full_attention": together}
    assert cold == expected


def test_rows_on_a_device_need_one_with_memory_of_its_own(bench):
    whole = bench("--stages", "step", "--rows", "host", "--json").succeeds().json
    assert {row["rows"] for row in whole["results"]} == {"host"}
    bench("--rows", "device").refuses(2, "--rows=device", "cpu_ref", "host")


def test_threads_and_instruction_sets_are_the_backends_to_refuse(bench):
    bench("--threads", 2).refuses(2, "--threads=2", "cpu_ref", "no options")
    bench("--isa", "avx2").refuses(2, "--isa=avx2", "cpu_ref", "no options")


def test_threads_of_a_backend_that_has_them(bench, cli):
    backends = cli("info", "--json").succeeds().json["backends"]
    if not any(backend["name"] == "cpu" and backend["usable"] for backend in backends):
        pytest.skip("the backend cpu is not in this build")
    options = ("--stages", "vote,full_attention", "--isa", "best", "--json")
    whole = bench("--threads", "1,2", *options, backend="cpu").succeeds().json
    assert whole["isa"] == "best"
    rows = [(row["threads"], row["stage"]) for row in whole["results"]]
    assert rows == [(t, stage) for t in (1, 2) for stage in ("read", "vote", "full_attention")]
    bench("--isa", "abacus", backend="cpu").refuses(2, "--isa=abacus", "best")


@pytest.mark.parametrize(
    "option, value, accepted",
    [
        ("--stages", "votes", "encode, vote, select, rerank, fetch, attend, step, full_attention"),
        ("--stages", "read", "encode, vote"),
        ("--stages", "vote,", "encode, vote"),
        ("--stages", "vote,vote", "twice"),
        ("--n", "0", "1..2147483647"),
        ("--n", "2147483648", "1..2147483647"),
        ("--n", "256,x", "1..2147483647"),
        ("--n", "256,256", "twice"),
        ("--batch", "0", "1..65535"),
        ("--batch", "65536", "1..65535"),
        ("--kv-heads", "0", "1..65535"),
        ("--query-heads", "12", "multiples of --kv-heads=8, up to 1024"),
        ("--query-heads", "1032", "multiples of --kv-heads=8, up to 1024"),
        ("--head-dim", "12", "a multiple of 8 in 8..576"),
        ("--head-dim", "584", "a multiple of 8 in 8..576"),
        ("--dtype", "f64", "bf16, f16, f32"),
        ("--profile", "fast", "default, paper"),
        ("--k", "65537", "0..65536"),
        ("--candidates", "1.5", "(0, 1]"),
        ("--tail", "head", "drop, mean, sampled, sketch2, sketch4"),
        ("--threads", "0", "1..1024"),
        ("--threads", "1,1025", "1..1024"),
        ("--repeat", "0", "1..1000000"),
        ("--rows", "disk", "host, device"),
        ("--memory", "0", "1..4096"),
        ("--calls", "0", "1..1024"),
        ("--seconds", "0", "0.001..86400"),
        ("--seconds", "nan", "0.001..86400"),
        ("--device", "-1", "0..2147483647"),
    ],
)
def test_a_value_outside_its_range_is_named_with_the_range(cli, option, value, accepted):
    cli("bench", option, value).refuses(2, option, value.split(",")[-1], accepted)


def test_nothing_asked_for_goes_without_effect(bench):
    bench("--stages", "encode,vote", "--k", 5).refuses(2, "--k=5", "select")
    bench("--stages", "full_attention", "--candidates", 0.5).refuses(2, "--candidates=0.5")
    bench("--stages", "full_attention", "--tail", "mean").refuses(2, "--tail=mean")
    bench("--stages", "full_attention", "--profile", "paper").refuses(2, "--profile=paper")
    bench("--force").refuses(2, "--force")
    bench("leftover").refuses(2, "leftover")


def test_backends_and_devices_that_are_not_there(cli):
    cli("bench", "--backend", "abacus").refuses(4, "abacus", "cpu_ref")
    cli("bench", "--backend", "cpu_ref", "--device", "7").refuses(4, "7")


def test_more_than_memory_holds_is_said_before_anything_is_taken(cli):
    run = cli("bench", "--backend", "cpu_ref", "--n", 2147483647, "--batch", 65535)
    run.refuses(5, "--n=2147483647", "--batch=65535", "MiB")


def test_results_go_to_a_file_that_is_replaced_only_with_force(bench, tmp_path, no_leftovers):
    output = tmp_path / "bench.json"
    options = ("--stages", "vote", "--json", "--output", output)
    assert bench(*options).succeeds().out == ""
    before = output.read_bytes()
    assert stages_of(json.loads(before)) == ["read", "vote"]
    bench(*options).refuses(2, "bench.json", "--force")
    assert output.read_bytes() == before
    output.write_bytes(b"old")
    bench(*options, "--force").succeeds()
    assert stages_of(json.loads(output.read_bytes())) == ["read", "vote"]
    bench("--output", tmp_path / "gone" / "x").refuses(5, "gone")
    no_leftovers("bench.json")


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_file(cli, tmp_path, number, code):
    output = tmp_path / "bench.json"
    options = ("--n", N, "--repeat", 1000000, "--seconds", 600, "--json", "--output", output)
    child = start(cli, "bench", *options)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert (out, err) == ("", "pariskv: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_progress_is_for_terminals(cli):
    terminal, end = pty.openpty()
    options = ("--n", N, "--repeat", 1000000, "--seconds", 600, "--stages", "vote", "--warm")
    child = start(cli, "bench", *options, stderr=end)
    os.close(end)
    seen = b""
    deadline = time.monotonic() + 60
    while b"bench [" not in seen and time.monotonic() < deadline:
        seen += os.read(terminal, 1024)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    os.close(terminal)
    assert child.returncode == 130
    assert b"bench [" in seen and b"%" in seen
    assert out == ""


def test_it_needs_no_arguments_no_files_and_no_gpu(cli):
    lines = cli("bench").succeeds().out.splitlines()
    assert {line.split()[0] for line in lines[2:]} >= {"step", "full_attention", "encode"}


def test_a_row_cache_finds_nothing_where_rows_are_read_in_place(bench):
    whole = bench("--stages", "step", "--row-cache", "64", "--json").succeeds().json
    step = whole["results"][-1]
    assert list(step) == [*FIELDS, "row_cache", "repeats"]
    assert (step["stage"], step["row_cache"], step["repeats"]) == ("step", 64, 0.0)


def test_a_row_cache_is_for_steps(bench):
    bench("--stages", "vote", "--row-cache", "64").refuses(2, "--row-cache=64", "step")
