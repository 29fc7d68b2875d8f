"""pariskv info: backends, places, shapes and options, for people and as JSON."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest


def test_json_has_backends_places_and_options(cli):
    info = cli("info", "--json").succeeds().json
    assert set(info) >= {"version", "places", "backends", "chosen", "options"}
    by_name = {backend["name"]: backend for backend in info["backends"]}
    assert by_name["cpu_ref"]["usable"] is True
    assert info["chosen"] in by_name


def test_shapes_and_dtypes_are_listed_per_backend(cli):
    info = cli("info", "--json", "--backend", "cpu_ref").succeeds().json
    (backend,) = info["backends"]
    (device,) = backend["devices"]
    assert device["head_dims"] == list(range(8, 577, 8))
    assert device["dtypes"] == ["f32", "f16", "bf16"]
    assert 100 not in device["head_dims"]


def test_every_option_of_the_library_is_an_option_of_a_verb(cli):
    offered = "".join(
        cli(verb, "--help").succeeds().out for verb in ("encode", "retrieve", "eval", "inspect")
    )
    for option in cli("info", "--json").json["options"]:
        if option["name"] == "head_dim":  # comes from the input
            continue
        assert f"--{option['name'].replace('_', '-')} " in offered, option["name"]


def test_the_options_table_shows_what_is_accepted_and_the_defaults(cli):
    text = cli("info", "--options").succeeds().out
    (line,) = [line for line in text.splitlines() if line.startswith("candidates ")]
    assert "(0, 1]" in line
    assert "auto" in line


def test_the_text_names_chosen_backend_and_places(cli):
    text = cli("info").succeeds().out
    assert "cpu_ref" in text
    assert "(chosen)" in text
    assert "pariskv/backends" in text
    assert "8..576 by 8" in text


def test_places_of_the_environment_are_shown(cli, tmp_path):
    info = cli("info", "--json", env={"PKV_BACKEND_PATH": str(tmp_path)}).succeeds().json
    assert str(tmp_path) in [place["folder"] for place in info["places"]]


@pytest.fixture
def open_folder():
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_raised_privileges_hide_the_environment(cli, open_folder):
    """A program with the set-user-ID bit: whoever starts it may not say what it loads."""
    if os.geteuid() != 0:
        pytest.skip("only root can make such a program for another user")
    program = open_folder / "pariskv"
    shutil.copy(cli.path, program)
    environment = {"PKV_BACKEND_PATH": str(open_folder), "PKV_BACKEND": "abacus"}
    asked = type(cli)(program)
    for mode, obeyed in ((0o755, True), (0o4755, False)):
        program.chmod(mode)
        try:
            done = asked("info", "--json", env=environment, user=65534, group=65534)
        except PermissionError:
            pytest.skip("another user cannot reach the program's folder")
        if done.code == 127:
            pytest.skip("another user cannot reach the library's folder")
        info = done.succeeds().json
        assert (str(open_folder) in [place["folder"] for place in info["places"]]) == obeyed
        assert (info["chosen"] is None) == obeyed


def test_the_backend_of_the_environment_is_obeyed(cli):
    cli("info", env={"PKV_BACKEND": "cpu_ref"}).succeeds()
    # Without a usable one there is still a list to show.
    info = cli("info", "--json", env={"PKV_BACKEND": "abacus"}).succeeds().json
    assert info["chosen"] is None


def test_the_library_s_messages_go_to_stderr(cli):
    run = cli("info", "--json", "--log-level", "3").succeeds()
    assert run.json
    assert run.err == "" or all(line.startswith("pariskv: ") for line in run.err.splitlines())
