"""The attention function and the mask function that transformers calls, by the name "pariskv"."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

NAME = "pariskv"


def mask_function(
    *, kv_length: int, attention_mask: torch.Tensor | None = None, **_: Any
) -> torch.Tensor | None:
    """[b, kv_length] bool where there is padding, else None; causality and windows are left to
    the attention function."""
    if attention_mask is None:
        return None
    mask = attention_mask[:, -kv_length:].bool()
    return None if bool(mask.all()) else mask


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [b, hq, t, d], key and value [b, h, n, d]; returns [b, t, hq, dv]. Through the cache
    that the keys came from; without one of pariskv.hf, full attention."""
    if softcap is not None:
        raise NotImplementedError("soft-capped attention logits are not supported by pariskv.hf")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = getattr(key, "pariskv_layer", None)
    if layer is None:
        window = sliding_window
        positions = kwargs.get("position_ids")
        out = _full(query, key, value, attention_mask, scale, dropout, window, positions)
        return out.transpose(1, 2), None
    if torch.is_grad_enabled() and query.requires_grad:
        raise RuntimeError(
            "a pariskv cache does not carry gradients; use torch.no_grad(), or use_cache=False"
        )
    return layer.attend(query, key, value, attention_mask, scale), None


def _full(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    dropout: float,
    window: int | None,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    tokens, length = query.shape[2], key.shape[2]
    packed = tokens == length and mask is None and positions is not None
    segments = None
    if packed and positions is not None:
        breaks = positions.diff(dim=-1, prepend=positions[:, :1] - 1) != 1
        segments = breaks.cumsum(-1) if bool(breaks.any()) else None
    causal = tokens == length and mask is None and segments is None
    if causal and (window is None or window >= length):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, scale=scale, is_causal=True, enable_gqa=True
        )
    if mask is None or mask.dim() == 2:
        at = torch.arange(length - tokens, length, device=query.device)[:, None]
        seen = torch.arange(length, device=query.device)[None, :]
        allowed = seen <= at
        if window is not None:
            allowed = allowed & (seen > at - window)
        allowed = allowed[None, None]
        if mask is not None:
            allowed = allowed & mask[:, None, None, -length:].bool()
        if segments is not None:
            allowed = allowed & (segments[:, None, :, None] == segments[:, None, None, :])
        mask = allowed | ~allowed.any(-1, keepdim=True)  # rows of padding: any but NaN
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=True
    )


def register() -> None:
    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)
