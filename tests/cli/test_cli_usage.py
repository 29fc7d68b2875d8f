"""Verbs, options and their errors: exit code 2, with the option and what is accepted named."""

import pytest

DEVICE_VERBS = ("info", "encode", "retrieve", "eval", "bench", "inspect", "tune")
VERBS = (*DEVICE_VERBS, "report")


def test_without_a_verb_the_verbs_are_listed(cli):
    cli().refuses(2, *VERBS)


@pytest.mark.parametrize("name", ["evil", "benches", "EVAL", "", "--json"])
def test_an_unknown_verb_is_named_and_the_verbs_listed(cli, name):
    cli(name).refuses(2, f'"{name}"', *VERBS)


def test_a_misspelt_verb_is_guessed(cli):
    cli("evl").refuses(2, "did you mean eval?")


def test_version_is_that_of_the_library(cli):
    run = cli("--version").succeeds()
    assert run.out == f"pariskv {cli('info', '--json').json['version']}\n"
    assert run.err == ""


def test_help_lists_the_verbs(cli):
    text = cli("--help").succeeds().out
    assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize("verb", DEVICE_VERBS)
def test_help_of_a_verb_needs_nothing_else_and_shows_the_common_options(cli, verb):
    run = cli(verb, "--help").succeeds()
    assert run.out.startswith(f"usage: pariskv {verb} ")
    for option in ("--backend", "--device", "--json", "--log-level", "--verbose"):
        assert option in run.out


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_is_named(cli, verb):
    cli(verb, "--streams", "4").refuses(2, "--streams", f"pariskv {verb} --help")


def test_a_misspelt_option_is_guessed(cli):
    cli("eval", "--candidate", "0.1").refuses(2, "--candidate", "did you mean --candidates?")


def test_options_are_not_abbreviated(cli):
    cli("eval", "--cand", "0.1", "x.safetensors").refuses(2, "--cand")


def test_an_option_of_another_verb_is_refused(cli):
    cli("encode", "x.npy", "--output", "x.pkv", "--k", "7").refuses(2, "--k")
    cli("retrieve", "x.pkv", "x.npy", "--tail", "mean").refuses(2, "--tail")


def test_an_option_given_twice_is_refused(cli):
    cli("eval", "x.safetensors", "--k", "5", "--k", "6").refuses(2, "--k", "twice")


def test_a_value_that_is_missing_is_said(cli):
    cli("eval", "x.safetensors", "--k").refuses(2, "--k", "missing")


@pytest.mark.parametrize(
    "option, value, accepted",
    [
        ("--candidates", "0", "(0, 1]"),
        ("--candidates", "1.0001", "(0, 1]"),
        ("--candidates", "-0.1", "(0, 1]"),
        ("--candidates", "nan", "(0, 1]"),
        ("--candidates", "5%", "(0, 1]"),
        ("--k", "-1", "0..65536"),
        ("--k", "65537", "0..65536"),
        ("--k", "1e2", "0..65536"),
        ("--vote", "median", "tier, graded"),
        ("--codec", "scalar3", "polar4, scalar4, scalar5"),
        ("--rank", "best", "mean, group"),
        ("--tail", "sketch8", "drop, mean, sampled, sketch2, sketch4"),
        ("--vote-group", "none", "sum, heads"),
        ("--share", "2", "0..1"),
        ("--seed", "18446744073709551616", "0..18446744073709551615"),
        ("--sink", "-1", "0..2147483647"),
        ("--local", "x", "0..2147483647"),
        ("--fit-queries", "-5", "0..2147483647"),
        ("--min-recall", "1.5", "0..1"),
        ("--seeds", "8..1", "A..B"),
        ("--seeds", "0..1000", "1000"),
        ("--seeds", "1..", "A..B"),
        ("--log-level", "4", "0..3"),
        ("--device", "-1", "0..2147483647"),
        ("--methods", "fast", "paper, default, exact, full, streaming"),
        ("--methods", "full,", "paper, default, exact, full, streaming"),
        ("--methods", "full,full", "twice"),
    ],
)
def test_a_value_outside_its_range_is_named_with_the_range(cli, option, value, accepted):
    cli("eval", "x.safetensors", option, value).refuses(2, option, value, accepted)


def test_dashes_and_underscores_are_the_same(cli, tmp_path):
    for option in ("--vote-group", "--vote_group"):
        run = cli("eval", tmp_path / "gone.safetensors", f"{option}=heads")
        run.refuses(3, "gone.safetensors")


def test_nothing_asked_for_goes_without_effect(cli):
    run = cli("eval", "x.safetensors", "--methods", "paper,full", "--tail", "sketch2")
    run.refuses(2, "--tail", "default")
    cli("eval", "x.safetensors", "--methods", "full", "--min-recall", "0.5").refuses(2, "default")
    cli("eval", "x.safetensors", "--seed", "1", "--seeds", "1..2").refuses(2, "--seed")
    cli("eval", "x.safetensors", "--force").refuses(2, "--force")
    cli("inspect", "x.pkv", "--sink", "4").refuses(2, "--sink", "traces")
    cli("info", "leftover").refuses(2, "leftover")


def test_the_number_of_arguments_is_checked(cli):
    cli("eval").refuses(2, "at least 1")
    cli("encode").refuses(2, "1", "file of keys")
    cli("encode", "a.npy", "b.npy", "--output", "x.pkv").refuses(2, "b.npy")
    cli("retrieve", "a.pkv").refuses(2, "2", "index and queries")
    cli("encode", "a.npy").refuses(2, "--output")


@pytest.mark.parametrize("verb", ["eval", "encode", "retrieve", "inspect", "info"])
def test_an_unknown_backend_is_unavailable_and_those_there_are_listed(cli, verb):
    arguments = {
        "eval": ["x.safetensors"],
        "encode": ["x.npy", "--output", "x.pkv"],
        "retrieve": ["x.pkv", "q.npy"],
        "inspect": ["x.safetensors"],
        "info": [],
    }[verb]
    cli(verb, *arguments, "--backend", "abacus").refuses(4, "abacus", "cpu_ref")


def test_a_device_that_is_not_there_is_refused(cli):
    cli("eval", "x.safetensors", "--backend", "cpu_ref", "--device", "7").refuses(4, "7")
