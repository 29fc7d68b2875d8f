"""The cache that a model of transformers writes to and attends through."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
import transformers
from transformers.cache_utils import Cache as _TransformersCache
from transformers.cache_utils import CacheLayerMixin

from .. import Cache as _Store
from .. import _cache_shape as shapes
from .._device import device_of
from ._captured import CapturedStep
from ._models import Shape, shape_of

_BEAMS = (
    "beam search reorders the cache at every step, which pariskv.hf does not support; use "
    "num_beams=1 (greedy search, sampling, assisted decoding)"
)


class Settings(NamedTuple):
    """What `enable` and `Cache` take beside the model."""

    profile: str = "default"
    exact_from: int = 32
    backend: Any = None
    sequences: int | None = None
    captured: int = 0
    options: dict[str, Any] = {}

    def check(self, shape: Shape) -> None:
        """Raises what creating a cache would."""
        shapes.cache_bytes([], *shape[:4], profile=self.profile, **self._all(shape, 1))

    def _all(self, shape: Shape, batch: int) -> dict[str, Any]:
        slots = self.sequences or max(16, 4 * batch)
        given = {"device": self.backend, "policies": shape.policies, "sequences": slots}
        if self.captured:
            given["deferred"] = 1
        return {**given, **self.options}

    def create(self, shape: Shape, key: Any, batch: int, scale: float) -> _Store:
        given = self._all(shape, batch)
        given["device"] = device_of(key, self.backend)
        given.setdefault("scale", scale)
        store = _Store(*shape[:4], dtype=key.dtype, profile=self.profile, **given)
        if self.captured and store.device.is_gpu:
            store.reserve(self.captured, batch * self.captured, batch)
        return store


class _Sequences:
    """The batch's sequences in a store, given back when nobody refers to them."""

    def __init__(self, store: _Store, slots: list[int]) -> None:
        self.store, self.slots = store, slots
        weakref.finalize(self, _remove, store, slots)


def _remove(store: _Store, slots: list[int]) -> None:
    for slot in slots:
        store.remove(slot)
    slots.clear()


class _Split(NamedTuple):
    """Which tokens of a forward are real: `mask` as the model passed it, [b, t] or None for all,
    and how many per sequence."""

    mask: Any
    real: torch.Tensor | None
    counts: list[int]


class Layer(CacheLayerMixin):
    """One layer's side of the cache. `update` only marks K and V; the attention function, which
    has the queries too, hands all three to the library."""

    is_compileable = False
    is_croppable = True

    def __init__(self, cache: Cache, number: int, window: int) -> None:
        super().__init__()
        self.cache, self.number = weakref.proxy(cache), number
        self.is_sliding = window > 0
        self.seen = 0  # tokens per row, padding included

    def lazy_initialization(self, key_states: Any, *_: Any) -> None:
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        key_states.pariskv_layer = self
        return key_states, value_states

    def attend(self, query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
        out = self.cache.attend_layer(self.number, query, key, value, mask, scale)
        self.seen += key.shape[2]
        self.is_initialized = True
        return out

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        length = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.seen + length, 0

    def get_seq_length(self, *_: Any) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def reset(self) -> None:
        self.seen = 0
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Any) -> None:
        raise NotImplementedError(_BEAMS)


class Cache(_TransformersCache):
    """A `transformers` cache for one batch of sequences, made for `model` (or its config).

    The model must use the attention function of pariskv.hf (`enable` sees to it). Options are
    those of `enable`. Lengths that transformers sees count padding; padding tokens themselves are
    not stored.

    A forward of `exact_from` tokens or more, the first one, and all of a prompt within
    `model.generate` attend exactly; shorter ones (decoding, the verification of a draft) attend
    through the index."""

    def __init__(
        self,
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
    ) -> None:
        given = {"candidates": candidates, "k": k}
        options.update({name: value for name, value in given.items() if value is not None})
        settings = Settings(profile, exact_from, backend, sequences, captured, options)
        self._start(shape_of(getattr(model, "config", model)), settings)
        settings.check(self.shape)

    def _start(self, shape: Shape, settings: Settings) -> None:
        windows = [0 if policy == "sparse" else int(policy) for policy in shape.policies]
        super().__init__(layers=[Layer(self, i, window) for i, window in enumerate(windows)])
        self.shape, self.settings = shape, settings
        self.prompt_tokens = 0  # up to here every forward attends exactly
        self._sequences: _Sequences | None = None
        self._scale = 0.0
        self._real: torch.Tensor | None = None  # [b, seen] once there is padding
        self._split: _Split | None = None
        self._flushed = 0  # up to here everything that is due has been encoded
        self.captured: CapturedStep | None = None
        self.is_warm = False  # one forward of one token has run as it is

    @classmethod
    def of(cls, shape: Shape, settings: Settings) -> Cache:
        cache = cls.__new__(cls)
        cache._start(shape, settings)
        return cache

    # ---- for users

    @property
    def store(self) -> _Store:
        """The `pariskv.Cache` behind it. AttributeError before the first forward."""
        if self._sequences is None:
            raise AttributeError("the cache is made by the first forward, which has not been")
        return self._sequences.store

    @property
    def slots(self) -> list[int]:
        """The store's sequence of each row of the batch."""
        return [] if self._sequences is None else self._sequences.slots

    def describe(self) -> dict[str, Any]:
        """Shape, options and usage, as the library has them."""
        return self.store.describe()

    def usage(self) -> shapes.Usage:
        """Bytes held, by purpose; forks included."""
        return self.store.usage()

    def fork(self) -> Cache:
        """A second cache with the same tokens; pages are shared until one of both writes."""
        twin = type(self).of(self.shape, self.settings)
        if self._sequences is not None:
            slots: list[int] = []
            twin._sequences = _Sequences(self.store, slots)
            slots.extend(self.store.fork(slot) for slot in self.slots)
        twin._real, twin._scale = self._real, self._scale
        twin._flushed = self._flushed
        for mine, theirs in zip(self.layers, twin.layers):
            theirs.seen, theirs.is_initialized = mine.seen, mine.is_initialized
        return twin

    # ---- for captured steps

    def set_length(self, tokens: int) -> None:
        """What has been seen of each row, padding included; the store has it already."""
        for layer in self.layers:
            layer.seen = tokens
        self._split = None

    def flush_due(self, ids: torch.Tensor | None) -> None:
        """With captured steps encoding waits; before decoding forwards, what has come since is
        encoded once there is an interval of it."""
        if not self.settings.captured or self._sequences is None or ids is None:
            return
        seen, tokens = self.get_seq_length(), ids.shape[1]
        if self._is_exact(seen, tokens) or seen - self._flushed < self.store.shape["interval"]:
            return
        self.store.flush()
        self._flushed = seen

    def takes_captured(self, ids: torch.Tensor) -> bool:
        """Whether a graph may stand for a forward of these tokens [b, t]."""
        if self._sequences is None or self._real is not None or not self.store.device.is_gpu:
            return False
        seen = self.get_seq_length()
        is_step = tuple(ids.shape) == (len(self.slots), 1) and not self._is_exact(seen, 1)
        return is_step and seen < self.settings.captured

    # ---- for transformers

    def crop(self, tokens: int) -> None:
        """Takes back the last -tokens tokens, or all behind the first `tokens`."""
        tokens = int(tokens)  # drafts are counted in a tensor
        seen = self.get_seq_length()
        if tokens == 0 and int(transformers.__version__.split(".")[0]) >= 5:
            return
        keep = seen + tokens if tokens < 0 else tokens
        if keep >= seen:
            return
        keep = max(keep, 0)
        real = None if self._real is None else self._real[:, :keep]
        counts = [keep] * len(self.slots) if real is None else real.sum(1).tolist()
        for slot, count in zip(self.slots, counts):
            self.store.truncate(slot, count)
        self._real = real
        self._flushed = min(self._flushed, keep)
        self.set_length(keep)

    def reset(self) -> None:
        super().reset()
        for slot in self.slots:
            self.store.reset(slot)
        self._real, self._split, self._flushed = None, None, 0

    def reorder_cache(self, beam_idx: Any) -> None:
        raise NotImplementedError(_BEAMS)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._sequences is not None:
            store, old = self.store, list(self.slots)
            self.slots[:] = [s for slot in old for s in (slot, *_forks(store, slot, repeats - 1))]
            self.captured = None
        if self._real is not None:
            self._real = self._real.repeat_interleave(repeats, dim=0)
        self._split = None

    def batch_select_indices(self, indices: Any) -> None:
        if self._sequences is not None:
            old = list(self.slots)
            kept = torch.arange(len(old))[indices.cpu()].tolist()
            if len(set(kept)) != len(kept):
                raise NotImplementedError(_BEAMS)
            self.slots[:] = [old[row] for row in kept]
            self.captured = None
            for row, slot in enumerate(old):
                if row not in kept:
                    self.store.remove(slot)
        if self._real is not None:
            self._real = self._real[indices]
        self._split = None

    # ---- for the attention function

    def attend_layer(
        self, number: int, query: Any, key: Any, value: Any, mask: Any, scale: float
    ) -> Any:
        """Appends K, V [b, h, t, d] and attends for query [b, hq, t, d]: [b, t, hq, dv]."""
        batch, _, tokens, _ = key.shape
        seen = self.layers[number].seen
        sequences = self._open(key, batch, scale)
        split = self._split_of(batch, tokens, seen, mask)
        exact = self._is_exact(seen, tokens)
        rows = [_rows(tensor, split.real) for tensor in (query, key, value)]
        counts = {"sequences": sequences.slots, "counts": split.counts}
        if seen == 0 and split.real is None and tokens > 1 and not self.layers[number].is_sliding:
            # All that there is to attend to is here, and torch has the faster kernel for it.
            sequences.store.append(number, rows[1], rows[2], rows[0], **counts)
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=True
            ).transpose(1, 2)
        found = sequences.store.step(number, *rows, exact=exact, **counts)
        if split.real is None:
            return found.view(batch, tokens, *found.shape[1:])
        out = found.new_zeros(batch, tokens, *found.shape[1:])
        out[split.real] = found
        return out

    def _is_exact(self, seen: int, tokens: int) -> bool:
        long = seen == 0 or tokens >= self.settings.exact_from
        return long or seen + tokens <= self.prompt_tokens

    def _open(self, key: Any, batch: int, scale: float) -> _Sequences:
        if self._sequences is None:
            store = self.settings.create(self.shape, key, batch, scale)
            self._sequences = _Sequences(store, [store.add() for _ in range(batch)])
            self._scale = scale
        if len(self._sequences.slots) != batch:
            raise ValueError(f"a batch of {batch} for a cache of {len(self._sequences.slots)} rows")
        if scale != self._scale:
            raise ValueError(f"scaling {scale} in one layer, {self._scale} in another")
        return self._sequences

    def _split_of(self, batch: int, tokens: int, seen: int, mask: Any) -> _Split:
        # All layers of a forward have the same one, so that it is made once.
        known = self._split
        if known is not None and known.mask is mask and mask is not None:
            if known.real is None or known.real.shape[1] == tokens:
                return known
        real = None
        if mask is not None:
            if mask.dim() != 2:
                raise ValueError(
                    f"an attention mask of {mask.dim()} axes is not supported; pass [batch, tokens]"
                )
            real = mask[:, -tokens:].bool()
        if real is not None and self._real is None and not bool(real.all()):
            self._real = torch.ones(batch, seen, dtype=torch.bool, device=real.device)
        if self._real is not None and self._real.shape[1] == seen:
            ones = torch.ones(batch, tokens, dtype=torch.bool, device=self._real.device)
            self._real = torch.cat([self._real, ones if real is None else real], 1)
        if real is not None and bool(real.all()):
            real = None
        counts = [tokens] * batch if real is None else real.sum(1).tolist()
        self._split = _Split(mask, real, counts)
        return self._split


def _forks(store: _Store, slot: int, count: int) -> list[int]:
    return [store.fork(slot) for _ in range(count)]


def _rows(tensor: Any, real: torch.Tensor | None) -> Any:
    """[b, heads, t, d] as [n, heads, d]; a view where tokens of one row or one token per row."""
    by_token = tensor.transpose(1, 2)
    if real is not None:
        return by_token[real]
    if by_token.shape[0] == 1 or by_token.shape[1] == 1:
        return by_token[0] if by_token.shape[0] == 1 else by_token[:, 0]
    return by_token.flatten(0, 1)
