"""Fixtures of the comparison. PARISKV_LIBRARY names the shared library to compare."""

import pytest
from binding import Library
from special_cases import CASES
from steps import Steps


@pytest.fixture(scope="session")
def library():
    opened = Library()
    yield opened
    opened.close()


@pytest.fixture(scope="session", params=CASES, ids=lambda case: case.name)
def run(request, library):
    """The stages of one case; all tests of a case share it."""
    return Steps(request.param, library)
