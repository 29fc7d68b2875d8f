"""Codec: the fitted parameters of key records."""

from __future__ import annotations

import ctypes as c
from typing import Any, NamedTuple, Union

import numpy as np

from . import _structs as s
from ._device import Config, Device, check_place, device_of
from ._library import Handle, call
from ._tensors import View, address, host, view

DeviceLike = Union[str, Device, None]


class Geometry(NamedTuple):
    """What a key record consists of (pkv_geometry)."""

    kv_heads: int
    head_dim: int
    value_dim: int
    v_source: int
    codec: int
    vote: int
    rounds: int
    sketch_bits: int
    value_norm: int
    seed: int
    sketch_stride: int


def reference(found: View | None) -> Any:
    return None if found is None else c.byref(found.tensor())


def optional(array: Any, name: str, ndim: int) -> View | None:
    return None if array is None else view(array, name, ndim)


class Codec(Handle):
    """Fitted parameters for all KV heads of one layer. Immutable; made by `fit` or
    `from_arrays`."""

    def __init__(self, device: Device, config: Config, profile: str, given: dict[str, Any]) -> None:
        super().__init__("pkv_codec_destroy", device)
        self.device, self.config, self.profile, self.options = device, config, profile, dict(given)

    @classmethod
    def fit(
        cls,
        keys: Any,
        queries: Any = None,
        values: Any = None,
        *,
        profile: str = "default",
        device: DeviceLike = None,
        **options: Any,
    ) -> Codec:
        """Fits centre and balance to keys [h, n, d], queries [hq, m, d] (optional), values
        [h, n, dv] (needed with tail sketch2, sketch4 and sampled); f32, f16 or bf16, any strides
        with a contiguous last axis. `options`: see `pariskv.options()`; head_dim and value_dim
        are taken from the tensors.

        Raises InvalidArgumentError (shapes, a value), NotFoundError (an unknown option)."""
        k, q = view(keys, "keys", 3), optional(queries, "queries", 3)
        v = optional(values, "values", 3)
        here = device_of(keys, device)
        check_place(here, k, q, v)
        given = {"head_dim": k.shape[2], **options}
        if v is not None:
            given.setdefault("value_dim", v.shape[2])
        codec = cls(here, Config(profile, **given), profile, given)
        stream = here.stream(keys)
        call(
            "pkv_codec_fit_sync",
            here,
            stream,
            codec.config,
            reference(k),
            reference(q),
            reference(v),
            codec.out,
        )
        return codec

    @classmethod
    def from_arrays(
        cls,
        center: Any,
        balance: Any,
        value_center: Any = None,
        *,
        profile: str = "default",
        device: DeviceLike = None,
        **options: Any,
    ) -> Codec:
        """From stored numbers: center, balance [h, d], value_center [h, dv]; copied."""
        arrays = [
            None if a is None else host(a, np.float32) for a in (center, balance, value_center)
        ]
        shapes = [a.shape for a in arrays if a is not None]
        if arrays[0] is None or arrays[1] is None or any(len(shape) != 2 for shape in shapes):
            raise ValueError(
                f"center and balance must be [h, d], value_center [h, dv], not {shapes}"
            )
        if shapes[0] != shapes[1] or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(f"shapes of center, balance and value_center do not agree: {shapes}")
        given = {"head_dim": shapes[0][1], **options}
        if len(shapes) == 3:
            given.setdefault("value_dim", shapes[2][1])
        data = s.CodecData(kv_heads=shapes[0][0])
        data.center, data.balance, data.value_center = (address(a) for a in arrays)
        codec = cls(device_of(center, device), Config(profile, **given), profile, given)
        call("pkv_codec_import", codec.device, codec.config, c.byref(data), codec.out)
        return codec

    @property
    def geometry(self) -> Geometry:
        found = s.Geometry()
        call("pkv_codec_geometry", self, c.byref(found))
        return Geometry(*(getattr(found, name) for name in Geometry._fields))

    def _numbers(self, name: str, width: int) -> Any | None:
        data = s.CodecData()
        call("pkv_codec_export", self, c.byref(data))
        start = getattr(data, name)
        if start is None:
            return None
        count = data.kv_heads * width
        source = (c.c_float * count).from_address(start)
        return np.array(source, np.float32).reshape(data.kv_heads, width)

    @property
    def center(self) -> Any:
        """[h, d] float32, a copy."""
        return self._numbers("center", self.geometry.head_dim)

    @property
    def balance(self) -> Any:
        """[h, d] float32, a copy."""
        return self._numbers("balance", self.geometry.head_dim)

    @property
    def value_center(self) -> Any:
        """[h, dv] float32, a copy; None without a value sketch."""
        return self._numbers("value_center", self.geometry.value_dim)
