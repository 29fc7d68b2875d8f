"""Forwards of one token as a CUDA graph: captured once per cache, launched for every further token.

A step of a model is some hundred small kernels, whose launches take the host longer than the GPU
needs for them. Appends of captured steps leave encoding to `flush` (docs/cache.md, 10)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

import torch

if TYPE_CHECKING:
    from ._cache import Cache

_INPUTS = ("input_ids", "position_ids", "cache_position")
# What a forward of `generate` may bring; others, set to anything, have it run as it is.
_KNOWN = {*_INPUTS, "attention_mask", "use_cache", "logits_to_keep", "return_dict"}


def inputs_of(cache: Cache, name: str, kwargs: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """The inputs of a forward that a graph may stand for, [b, 1] each (cache_position [1]); None
    where it has to run as it is. `name`: of the argument that the cache is."""
    ids = kwargs.get("input_ids")
    if ids is None or torch.is_grad_enabled() or not cache.takes_captured(ids):
        return None
    asked = {key for key, value in kwargs.items() if value is not None and value is not False}
    if asked - _KNOWN - {name} or kwargs.get("use_cache") is False:
        return None
    if kwargs.get("return_dict") is False:
        return None
    mask = kwargs.get("attention_mask")
    if mask is not None and (mask.dim() != 2 or not bool(mask.all())):
        return None
    found = {key: kwargs[key] for key in _INPUTS if kwargs.get(key) is not None}
    if "position_ids" not in found:
        found["position_ids"] = torch.full_like(ids, cache.get_seq_length())
    return found


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Caches that nobody refers to would be freed, which a stream that is captured forbids."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CapturedStep:
    """A graph of one forward of one token per row of the cache, and the tensors it reads."""

    def __init__(
        self,
        forward: Callable[..., Any],
        cache: Cache,
        name: str,
        inputs: dict[str, torch.Tensor],
        kwargs: dict[str, Any],
    ) -> None:
        self.shapes = {key: tensor.shape for key, tensor in inputs.items()}
        self.keep = kwargs.get("logits_to_keep")
        self._inputs = {key: tensor.clone() for key, tensor in inputs.items()}
        given = {**kwargs, **self._inputs, "attention_mask": None, name: cache}
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            cache.store.device.stream()  # wrapped here, not while it is captured
        with _no_collection():
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                output = forward(**given)
        self._kind = type(output)
        # Not the cache, which holds this object.
        self._tensors = {key: value for key, value in output.items() if torch.is_tensor(value)}

    def fits(self, inputs: dict[str, torch.Tensor], kwargs: dict[str, Any]) -> bool:
        shapes = {key: tensor.shape for key, tensor in inputs.items()}
        return shapes == self.shapes and kwargs.get("logits_to_keep") == self.keep

    def launch(self, cache: Cache, name: str, inputs: dict[str, torch.Tensor]) -> Any:
        for key, tensor in inputs.items():
            self._inputs[key].copy_(tensor)
        cache.store.advance(sequences=cache.slots)
        self._graph.replay()
        # The next launch writes to the same tensors.
        copies = {key: value.clone() for key, value in self._tensors.items()}
        return self._kind(**copies, **{name: cache})


def run(forward: Callable[..., Any], cache: Cache, name: str, kwargs: dict[str, Any]) -> Any:
    """The forward, as it is or through the cache's graph."""
    cache.flush_due(kwargs.get("input_ids"))
    inputs = inputs_of(cache, name, kwargs)
    if inputs is None:
        return forward(**kwargs)
    if not cache.is_warm:  # libraries set themselves up in a first one
        cache.is_warm = True
        return forward(**kwargs)
    step = cache.captured
    if step is None or not step.fits(inputs, kwargs):
        seen = cache.get_seq_length()
        try:
            step = CapturedStep(forward, cache, name, inputs, kwargs)
        finally:
            cache.set_length(seen)
        cache.captured = step
    output = step.launch(cache, name, inputs)
    cache.set_length(cache.get_seq_length() + 1)
    return output
