"""Backends, devices, streams and configurations."""

from __future__ import annotations

import ctypes as c
import json
import os
import threading
from typing import Any, NamedTuple

from . import _structs as s
from ._library import Handle, call, library
from ._tensors import (
    CPU,
    CUDA,
    CUDA_HOST,
    ROCM,
    ROCM_HOST,
    current_stream,
    dlpack_place,
    is_torch,
)


class Backend(NamedTuple):
    """A backend that the library has or found. `reason` says why one is not usable."""

    name: str
    version: str
    path: str
    score: int
    is_usable: bool
    reason: str
    devices: int


class Option(NamedTuple):
    """An option of codecs, plans and caches: what it accepts, and its value in both profiles."""

    name: str
    accepts: str
    default: str
    paper: str
    about: str


_READS = {"cuda": (CUDA, CUDA_HOST), "hip": (ROCM, ROCM_HOST)}
_runtime: Handle | None = None
_devices: dict[tuple[str, int], Device] = {}
_lock = threading.RLock()


def _forget() -> None:
    """In the child of a fork, which is refused by its parent's objects: it makes its own."""
    global _runtime, _lock
    _lock = threading.RLock()
    _runtime = None
    _devices.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def runtime() -> Handle:
    """One for the process, made at first use."""
    global _runtime
    with _lock:
        if _runtime is None:
            made = Handle("pkv_runtime_destroy")
            call("pkv_runtime_create", None, made.out)
            _runtime = made
        return _runtime


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def backends() -> list[Backend]:
    """All backends, usable or not, in the order in which they were found."""
    count = s.I32()
    call("pkv_runtime_backend_count", runtime(), c.byref(count))
    found = []
    for index in range(count.value):
        info = s.BackendInfo()
        call("pkv_runtime_backend_info", runtime(), s.I32(index), c.byref(info))
        found.append(
            Backend(
                name=_text(info.name),
                version=_text(info.version),
                path=_text(info.path),
                score=info.score,
                is_usable=bool(info.is_usable),
                reason=_text(info.reason),
                devices=info.device_count,
            )
        )
    return found


def options() -> list[Option]:
    """All options that `Codec.fit`, `Index` and `Cache` take by name."""
    count = s.I32()
    call("pkv_config_option_count", c.byref(count))
    found = []
    for index in range(count.value):
        info = s.OptionInfo()
        call("pkv_config_option_info", s.I32(index), c.byref(info))
        names = ("name", "accepts", "default_value", "paper_value", "about")
        found.append(Option(*(_text(getattr(info, name)) for name in names)))
    return found


class Device(Handle):
    """Device `ordinal` of a backend: "auto", "cpu", "cpu_ref", "cuda", .. (`backends()`).

    Raises NotFoundError (lists the names), UnavailableError (says why), OutOfRangeError."""

    def __init__(self, backend: str = "auto", ordinal: int = 0) -> None:
        super().__init__("pkv_device_close", runtime())
        call("pkv_device_open", runtime(), backend.encode(), s.I32(ordinal), self.out)
        self.ordinal = ordinal
        self.backend = _text(library().pkv_device_backend(self))
        self._streams = threading.local()

    def __repr__(self) -> str:
        return f"Device({self.backend!r}, {self.ordinal})"

    def describe(self) -> dict[str, Any]:
        """Name, type, memory, dtypes, head_dims, codecs, votes, tails, layouts."""
        out = c.c_char_p()
        call("pkv_device_describe", self, c.byref(out))
        described: dict[str, Any] = json.loads(_text(out.value))
        return described

    def set(self, name: str, value: str | int) -> None:
        """An option of the backend; of "cpu": threads (0: all), isa. Not during calls."""
        call("pkv_device_set", self, name.encode(), str(value).encode())

    @property
    def tensor_types(self) -> tuple[int, ...]:
        """Where tensors of calls may lie."""
        return _READS.get(self.backend, (CPU, CUDA_HOST, ROCM_HOST))

    @property
    def is_gpu(self) -> bool:
        return self.backend in _READS

    def stream(self, *tensors: Any) -> Handle:
        """The caller's: cupy's current stream for its tensors, else torch's, where these are in
        use; else the device's default."""
        native = current_stream(self.ordinal, *tensors) if self.is_gpu else 0
        known = self._streams.__dict__
        key = str(native)
        if key not in known:
            wrapped = Handle("pkv_stream_destroy")
            call("pkv_stream_wrap", self, c.c_size_t(native), wrapped.out)
            known[key] = wrapped
        stream: Handle = known[key]
        return stream


def device(backend: str | Device | None = None, ordinal: int = 0) -> Device:
    """A device, shared by all who ask for the same; None is "auto"."""
    if isinstance(backend, Device):
        return backend
    key = (backend or "auto", ordinal)
    with _lock:
        if key not in _devices:
            _devices[key] = Device(*key)
        return _devices[key]


def device_of(tensor: Any, backend: str | Device | None = None) -> Device:
    """The device for tensors like this one: of the backend named, or where the tensor lies."""
    if backend is None and is_torch(tensor) and tensor.device.type != "cpu":
        import torch

        return device("hip" if torch.version.hip else "cuda", tensor.device.index or 0)
    if backend is None and not is_torch(tensor):
        kind, ordinal = dlpack_place(tensor)
        if kind in (CUDA, ROCM):
            return device("cuda" if kind == CUDA else "hip", ordinal)
    if backend is None:
        return device(os.environ.get("PKV_BACKEND") or "cpu")
    return device(backend)


def devices() -> list[dict[str, Any]]:
    """Device descriptions of all usable backends, as the library's JSON has them."""
    out = c.c_char_p()
    call("pkv_runtime_describe", runtime(), c.byref(out))
    described = json.loads(_text(out.value))
    return [
        {"backend": backend["name"], "ordinal": ordinal, **found}
        for backend in described["backends"]
        if backend.get("usable")
        for ordinal, found in enumerate(backend.get("devices", []))
    ]


class Config(Handle):
    """Options by name. Values may be numbers, texts, True and False (on, off)."""

    def __init__(self, profile: str = "default", **values: Any) -> None:
        super().__init__("pkv_config_destroy")
        call("pkv_config_create", profile.encode(), self.out)
        for name, value in values.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
        call("pkv_config_set", self, name.encode(), text.encode())

    def __getitem__(self, name: str) -> str:
        out = c.c_char_p()
        call("pkv_config_get", self, name.encode(), c.byref(out))
        return _text(out.value)


def check_place(device: Device, *views: Any) -> None:
    """TypeError where a tensor lies elsewhere than the device's backend reads."""
    words = {CPU: "the CPU", CUDA: "a CUDA device", ROCM: "a ROCm device"}
    words.update({CUDA_HOST: "pinned host memory", ROCM_HOST: "pinned host memory"})
    for view in views:
        if view is not None and view.device_type not in device.tensor_types:
            here = words.get(view.device_type, f"DLPack device type {view.device_type}")
            there = " or ".join(dict.fromkeys(words[kind] for kind in device.tensor_types))
            raise TypeError(
                f"a tensor lies on {here}; backend {device.backend!r} takes tensors on {there}"
            )
