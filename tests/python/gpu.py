"""What the tests on a CUDA device share."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")


@pytest.fixture(scope="session")
def cuda(pariskv):
    """The package, where backend cuda has a device that torch has too."""
    found = [backend for backend in pariskv.backends() if backend.name == "cuda"]
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    if not found or not found[0].is_usable:
        pytest.skip(found[0].reason if found else "the library has no backend cuda")
    return pariskv
