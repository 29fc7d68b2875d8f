"""pariskv under a model of Hugging Face transformers (4.57 to 5.x).

    import pariskv.hf
    pariskv.hf.enable(model, candidates=0.02, k=100)
    model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=100)

Supported: Llama, SmolLM2, Mistral, Qwen2, Qwen2.5, Qwen3, Gemma 3 (text); layers with a sliding
window stay dense. Greedy search, sampling, assisted decoding, padded batches, prefill in chunks;
docs/python.md."""

from __future__ import annotations

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
from ._models import SUPPORTED, Shape, UnsupportedModelError, shape_of

__all__ = ["SUPPORTED", "Cache", "Shape", "UnsupportedModelError", "disable", "enable", "shape_of"]


def enable(
    model: Any,
    *,
    profile: str = "default",
    candidates: Any = None,
    k: Any = None,
    exact_from: int = 32,
    backend: Any = None,
    sequences: int | None = None,
    **options: Any,
) -> Any:
    """Puts pariskv under `model`: its attention function, and a `Cache` for every generate().
    Returns the model.

    profile: "default" or "paper"; candidates, k and every option of `pariskv.options()` and of
    `pariskv.Cache` (sink, local, interval, dense_below, ..) override it. exact_from: see `Cache`.
    backend: None takes the one for the model's device. sequences: rows that a cache and its forks
    may have together (default: four batches, at least 16).

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
        **options,
    )
    disable(model)
    register()
    model.pariskv_before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    model.generate = _generate_through(model, prepared.shape, prepared.settings)
    return model


def disable(model: Any) -> Any:
    """Takes back what `enable` did. Returns the model."""
    before = model.__dict__.pop("pariskv_before", None)
    if before is not None:
        model.set_attn_implementation(before)
        model.__dict__.pop("generate", None)
    return model


def _generate_through(model: Any, shape: Shape, settings: Settings) -> Any:
    original = model.generate
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"

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
        cache = kwargs.get(name)
        if isinstance(cache, Cache):
            prompt = next((kwargs[n] for n in ("inputs", "input_ids", "inputs_embeds")
                           if kwargs.get(n) is not None), args[0] if args else None)  # fmt: skip
            cache.prompt_tokens = 0 if prompt is None else prompt.shape[1]
        return original(*args, **kwargs)

    return generate
