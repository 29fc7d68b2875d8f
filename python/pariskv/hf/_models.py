"""Which models of transformers are supported, and their shape."""

from __future__ import annotations

from typing import Any, NamedTuple

SUPPORTED = {
    "llama": "Llama, SmolLM2",
    "mistral": "Mistral",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
    "gemma3_text": "Gemma 3 (text)",
}


class UnsupportedModelError(NotImplementedError):
    """A model class that pariskv.hf does not know."""


class Shape(NamedTuple):
    """policies: per layer "sparse" or the tokens of its sliding window."""

    layers: int
    kv_heads: int
    query_heads: int
    head_dim: int
    policies: list[str | int]


def shape_of(config: Any) -> Shape:
    """Of a model's config. Raises UnsupportedModelError with the names that are supported."""
    config = config.get_text_config(decoder=True)
    kind = getattr(config, "model_type", "")
    if kind not in SUPPORTED:
        why = ""
        if getattr(config, "kv_lora_rank", None):
            why = " (multi-head latent attention caches no keys per head)"
        choices = ", ".join(f"{name} ({models})" for name, models in SUPPORTED.items())
        raise UnsupportedModelError(
            f"models of type {kind!r} are not supported{why}; choose from {choices}"
        )
    layers = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * layers
    policies: list[str | int] = []
    for number, name in enumerate(kinds):
        if name not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"layer {number} has {name!r}; choose from full_attention, sliding_attention"
            )
        policies.append(int(window) if name == "sliding_attention" and window else "sparse")
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(layers, config.num_key_value_heads, heads, width, policies)
