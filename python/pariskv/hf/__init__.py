"""pariskv under a model of Hugging Face transformers (4.57 to 5.x).

    import pariskv.hf
    pariskv.hf.enable(model, candidates=0.02, k=100)
    model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=100)

Supported: Llama, SmolLM2, Mistral, Qwen2, Qwen2.5, Qwen3, Gemma 3 (text); layers with a sliding
window stay dense. Greedy search, sampling, assisted decoding, padded batches, prefill in chunks;
docs/python.md."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"pariskv.hf needs torch and transformers: pip install 'pariskv[hf]' ({error})"
    ) from error

from ._attention import NAME, register
from ._cache import _BEAMS, Cache, Settings
from ._captured import run
from ._models import SUPPORTED, Shape, UnsupportedModelError, shape_of

__all__ = ["SUPPORTED", "Cache", "Shape", "UnsupportedModelError", "disable", "enable", "shape_of"]
_METHODS = ("generate", "forward")  # of the model, which `enable` puts others before


def enable(
    model: Any,
    *,
    profile: str = "default",
    candidates: Any = None,
    k: Any = None,
    exact_from: int = 32,
    backend: Any = None,
    sequences: int | None = None,
    captured: int = 0,
    **options: Any,
) -> Any:
    """Puts pariskv under `model`: its attention function, and a `Cache` for every generate().
    Returns the model.

    profile: "default" or "paper"; candidates, k and every option of `pariskv.options()` and of
    `pariskv.Cache` (sink, local, interval, dense_below, ..) override it. exact_from: see `Cache`.
    backend: None takes the one for the model's device. sequences: rows that a cache and its forks
    may have together (default: four batches, at least 16). captured: on a GPU, decoding forwards of
    one token become a CUDA graph, for rows of up to this many tokens, which are booked beforehand
    (0: no graph).

    Raises UnsupportedModelError (names the choices), pariskv.NotFoundError (an unknown option),
    pariskv.InvalidArgumentError (a value, with its range)."""
    prepared = Cache(
        model,
        profile=profile,
        candidates=candidates,
        k=k,
        exact_from=exact_from,
        backend=backend,
        sequences=sequences,
        captured=captured,
        **options,
    )
    disable(model)
    register()
    before = {name: model.__dict__[name] for name in _METHODS if name in model.__dict__}
    model.pariskv_before = model.config._attn_implementation, before
    model.set_attn_implementation(NAME)
    model.generate = _generate_through(model, prepared.shape, prepared.settings)
    model.forward = _forward_through(model)
    return model


def disable(model: Any) -> Any:
    """Takes back what `enable` did. Returns the model."""
    before = model.__dict__.pop("pariskv_before", None)
    if before is not None:
        attention, methods = before
        model.set_attn_implementation(attention)
        for name in _METHODS:
            model.__dict__.pop(name, None)
        model.__dict__.update(methods)
    return model


def _cache_argument(model: Any) -> str:
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def _forward_through(model: Any) -> Any:
    original = model.forward
    name = _cache_argument(model)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("past_key_values") is not None:  # what `name` was called before
            kwargs[name] = kwargs.pop("past_key_values")
        cache = kwargs.get(name)
        if not isinstance(cache, Cache) or not cache.settings.captured:
            return original(*args, **kwargs)
        if args:
            kwargs.update(zip(inspect.signature(original).parameters, args))
        return run(original, cache, name, kwargs)

    return forward


def _generate_through(model: Any, shape: Shape, settings: Settings) -> Any:
    original = model.generate
    name = _cache_argument(model)

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or model.generation_config
        if (kwargs.get("num_beams") or getattr(config, "num_beams", None) or 1) > 1:
            raise NotImplementedError(_BEAMS)
        use = kwargs.get("use_cache")
        use = getattr(config, "use_cache", True) if use is None else use
        if kwargs.get("past_key_values") is not None:
            kwargs[name] = kwargs.pop("past_key_values")
        if use is not False and kwargs.get(name) is None:
            kwargs[name] = Cache.of(shape, settings)
            # What an assistant asks for: to take tokens back, which ours does.
            if getattr(config, "cache_implementation", None) == "dynamic_full":
                kwargs["generation_config"] = config = copy.copy(config)
                config.cache_implementation = None
        cache = kwargs.get(name)
        if isinstance(cache, Cache):
            prompt = next((kwargs[n] for n in ("inputs", "input_ids", "inputs_embeds")
                           if kwargs.get(n) is not None), args[0] if args else None)  # fmt: skip
            cache.prompt_tokens = 0 if prompt is None else prompt.shape[1]
        return original(*args, **kwargs)

    return generate
