"""The shared library: found and loaded at the first call, each call checked.

The environment variable PARISKV_LIBRARY names another file than the one in the package. Calls go
through ctypes.CDLL, which releases the interpreter lock."""

from __future__ import annotations

import ctypes as c
import os
import threading
from pathlib import Path
from typing import Any

_TEXTS = ("pkv_version", "pkv_status_name", "pkv_last_error", "pkv_device_backend")


class Error(RuntimeError):
    """What the library refused. str() is its text; `status` its number, `name` that one's name."""

    status = 0
    name = ""


class InvalidArgumentError(Error, ValueError):
    """A shape, dtype, stride or option that is not accepted."""


class NotFoundError(Error, LookupError):
    """No such file, backend or option."""


class AlreadyExistsError(Error, FileExistsError):
    """The output file is there, and overwriting was not asked for."""


class ResourceExhaustedError(Error, MemoryError):
    """Memory, capacity, or a limit."""


class FailedPreconditionError(Error):
    """A stale result, another codec, a sequence that is not in use."""


class OutOfRangeError(Error, IndexError):
    """A sequence, layer or position outside its range."""


class UnimplementedError(Error, NotImplementedError):
    """A shape or feature that no backend here has."""


class UnavailableError(Error):
    """A driver or device is missing or was lost."""


class DataLossError(Error):
    """A damaged file."""


class CancelledError(Error):
    """Stopped by the caller."""


class AbortedError(Error):
    """Another call holds the object."""


class InternalError(Error):
    """A bug of the library's."""


_ERRORS: dict[int, type[Error]] = {
    1: CancelledError,
    3: InvalidArgumentError,
    5: NotFoundError,
    6: AlreadyExistsError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    11: OutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: DataLossError,
}
_lock = threading.Lock()
_library: c.CDLL | None = None


def library_path() -> Path:
    """The file that is loaded. ImportError: there is none."""
    named = os.environ.get("PARISKV_LIBRARY")
    path = Path(named) if named else Path(__file__).parent / "lib" / "libpariskv.so"
    if not path.is_file():
        raise ImportError(
            f"no pariskv library at {path}: install the package with `pip install .`, or set "
            "PARISKV_LIBRARY to a libpariskv.so"
        )
    return path


def library() -> c.CDLL:
    global _library
    with _lock:
        if _library is None:
            loaded = c.CDLL(str(library_path()))
            for name in _TEXTS:
                getattr(loaded, name).restype = c.c_char_p
            _library = loaded
        return _library


def check(status: int) -> None:
    if status == 0:
        return
    lib = library()
    error = _ERRORS.get(status, Error)(lib.pkv_last_error().decode())
    error.status = status
    error.name = lib.pkv_status_name(c.c_int32(status)).decode()
    raise error


def call(name: str, *arguments: Any) -> None:
    """A function that returns a status; raises what it says. The loaded library is kept."""
    status = getattr(_library or library(), name)(*arguments)
    if status:
        check(status)


def version() -> str:
    """Version of the library, "0.1.0"."""
    return str(library().pkv_version().decode())


class Handle:
    """Owns an opaque object of the library. `keep` are those it was made from."""

    def __init__(self, destroy: str, *keep: Any) -> None:
        self._as_parameter_ = c.c_void_p()
        self._destroy = destroy
        self._keep = keep

    @property
    def out(self) -> Any:
        return c.byref(self._as_parameter_)

    def close(self) -> None:
        """Gives it back now; the object cannot be used afterwards."""
        if self._as_parameter_ and _library is not None:
            getattr(_library, self._destroy)(self._as_parameter_)
        self._as_parameter_ = c.c_void_p()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down
            pass
