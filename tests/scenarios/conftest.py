"""Fixtures of the scenarios. PARISKV_LIBRARY names the library, PARISKV_CLI the program."""

import ctypes
import importlib.util
import json
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
for folder in ("oracle", "cli"):
    sys.path.append(str(TESTS / folder))

from capi import LIBRARY, Machine  # noqa: E402

spec = importlib.util.spec_from_file_location("cli_fixtures", TESTS / "cli" / "conftest.py")
cli_fixtures = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = cli_fixtures
spec.loader.exec_module(cli_fixtures)
cli = cli_fixtures.cli


def host_backends():
    """Names of the usable backends whose memory the host can touch."""
    library, runtime, text = ctypes.CDLL(str(LIBRARY)), ctypes.c_void_p(), ctypes.c_char_p()
    assert library.pkv_runtime_create(None, ctypes.byref(runtime)) == 0
    assert library.pkv_runtime_describe(runtime, ctypes.byref(text)) == 0
    backends = json.loads(text.value)["backends"]
    library.pkv_runtime_destroy(runtime)
    return [
        backend["name"]
        for backend in backends
        if backend["usable"] and backend["devices"][0].get("device_type") == "cpu"
    ]


def pytest_generate_tests(metafunc):
    names = host_backends() if LIBRARY.is_file() else ["no library"]
    for fixture in ("machine", "other_machine"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, names, indirect=True, scope="session")


def open_machine(request):
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} is not built (PARISKV_LIBRARY names the library)")
    opened = Machine(LIBRARY, request.param)
    yield opened
    opened.close()


# The library on one device, for every backend there is; two of them for pairs.
machine = pytest.fixture(scope="session")(open_machine)
other_machine = pytest.fixture(scope="session")(open_machine)
