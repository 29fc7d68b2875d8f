"""Fixtures for the package. It is taken from python/, over the library that PARISKV_LIBRARY names;
with PARISKV_INSTALLED=1 as it is installed, over the library that it brings."""

import os
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = Path(
    os.environ.get("PARISKV_LIBRARY", REPOSITORY / "build" / "dev" / "lib" / "libpariskv.so")
)
if not os.environ.get("PARISKV_INSTALLED"):
    sys.path.insert(0, str(REPOSITORY / "python"))


@pytest.fixture(scope="session")
def pariskv():
    if not os.environ.get("PARISKV_INSTALLED"):
        if not LIBRARY.is_file():
            pytest.skip(f"{LIBRARY} is not built (PARISKV_LIBRARY names the library)")
        os.environ["PARISKV_LIBRARY"] = str(LIBRARY)
    import pariskv

    return pariskv
