"""merge: attention over disjoint sets of tokens, joined."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

from . import _structs as s
from ._codec import DeviceLike, reference
from ._device import check_place, device_of
from ._library import call
from ._tensors import F32, FLOATS, empty_like, flat, is_dense, output, view


def merge(
    outputs: Sequence[Any],
    lses: Sequence[Any],
    *,
    out: Any = None,
    lse: Any = None,
    device: DeviceLike = None,
) -> tuple[Any, Any]:
    """Joins attention over disjoint sets of tokens: outputs [n, hq, dv] of one dtype, lses
    [n, hq] float32 (natural logarithm; -inf: that part is empty). Returns (output, lse); `out` and
    `lse` may be one of the inputs. At most 64 parts. Backends on the CPU (UnimplementedError)."""
    if not outputs or len(outputs) != len(lses):
        raise ValueError(f"{len(outputs)} outputs, {len(lses)} lses; as many of both, at least 1")
    views = [view(o, f"outputs[{i}]", 3) for i, o in enumerate(outputs)]
    shape = views[0].shape
    for number, found in enumerate(views):
        if found.shape != shape or found.dtype != views[0].dtype:
            raise ValueError(
                f"outputs[{number}] has shape {found.shape} or another dtype, not {shape}"
            )
    here = device_of(outputs[0], device)
    places = [view(o, f"lses[{i}]", 2, (F32,)) for i, o in enumerate(lses)]
    for number, found in enumerate(places):
        if found.shape != shape[:2] or not is_dense(found):
            raise ValueError(f"lses[{number}] must be {shape[:2]}, contiguous, not {found.shape}")
    out = empty_like(outputs[0], shape, views[0].dtype) if out is None else out
    lse = empty_like(outputs[0], shape[:2], F32) if lse is None else lse
    target, total = output(out, "out", shape, FLOATS), flat(lse, "lse", shape[:2], F32)
    check_place(here, *views, *places, target, total)
    tensors = (s.Tensor * len(views))(*(found.tensor() for found in views))
    addresses = (c.c_void_p * len(views))(*(found.address for found in places))
    stream, count = here.stream(outputs[0]), s.I32(len(views))
    call("pkv_merge", stream, count, tensors, addresses, reference(target), s.P(total.address))
    return out, lse
