"""One prefill, a cache for each method: full attention, and pariskv with its options."""

import pariskv.hf
import torch
from pariskv.hf._attention import _full

from .mapped import MappedCache
from .sparse import SparseCache

METHODS = {  # each also with options: default+k=400
    "full": None,
    "default": {},
    "all": {"k": 65536, "candidates": 1.0},
    "paper": {"profile": "paper"},
    "mapped": {"center": "off", "balance": "off", "fit": "keys"},  # mapped.py
}
CHECK = 8  # tokens between looks at what has been said
ONE_BLOCK = 512  # forwards of fewer tokens behind the prompt go through the index


class FullCache(pariskv.hf.Cache):
    """Full attention under the same attention function: K and V in tensors with room for more."""

    def __init__(self, model, batch, room):
        super().__init__(model)
        first = next(model.parameters())
        shape = self.shape
        sizes = batch, shape.kv_heads, room, shape.head_dim
        self.keys, self.values = (
            [
                torch.zeros(sizes, dtype=first.dtype, device=first.device)
                for _ in range(shape.layers)
            ]
            for _ in "kv"
        )
        self.room, self.lengths, self.rows = room, None, slice(0, batch)

    def put(self, number, rows, begin, key, value):
        for held, new in ((self.keys, key), (self.values, value)):
            held[number][rows, :, begin : begin + new.shape[-2]] = new

    def attend_layer(self, number, query, key, value, mask, scale):
        seen, layer = self.layers[number].seen, self.layers[number]
        end = seen + key.shape[2]
        if self.lengths is not None:
            return self.attend_ragged(number, query, key, value, scale).transpose(1, 2)
        self.put(number, self.rows, seen, key, value)
        keys, values = (held[number][self.rows, :, :end] for held in (self.keys, self.values))
        if key.shape[2] == 1 and not layer.is_sliding:
            out = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, scale=scale, enable_gqa=True
            )
        else:
            window = self.shape.policies[number] if layer.is_sliding else None
            out = _full(query, keys, values, None, scale, 0.0, window, None)
        return out.transpose(1, 2)

    def attend_ragged(self, number, query, key, value, scale):
        """For one token of each row, rows of different lengths."""
        rows = torch.arange(len(query), device=query.device)
        at = self.lengths + (self.layers[number].seen - self.start)
        for held, new in ((self.keys, key), (self.values, value)):
            held[number][rows, :, at] = new[:, :, 0]
        end = self.layers[number].seen + 1
        seen = torch.arange(end, device=query.device)
        mask = seen <= at[:, None]
        if self.layers[number].is_sliding:
            mask &= seen > at[:, None] - self.shape.policies[number]
        keys, values = (held[number][self.rows, :, :end] for held in (self.keys, self.values))
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask[:, None, None], scale=scale, enable_gqa=True
        )

    def set_lengths(self, lengths):
        """Of the rows, where they differ."""
        self.start = max(lengths)
        self.set_length(self.start)
        device = self.keys[0].device
        self.lengths = torch.tensor(lengths, device=device) if len({*lengths}) > 1 else None

    def holds(self, batch, room):
        return self.room >= room and len(self.keys[0]) >= batch

    def begin(self, batch):
        """Empty, for the first `batch` rows."""
        self.set_length(0)
        self.lengths, self.rows = None, slice(0, batch)


class Prefill(pariskv.hf.Cache):
    """Attends exactly, and hands what a prompt brings to row `row` of the methods' caches."""

    def __init__(self, model, row, batch, caches):
        super().__init__(model)
        self.row, self.batch, self.others = row, batch, caches

    def attend_layer(self, number, query, key, value, mask, scale):
        rows = [tensor[0].transpose(0, 1) for tensor in (key, value, query)]
        for cache in self.others:
            if isinstance(cache, FullCache):
                cache.put(number, self.row, 0, key[0], value[0])
                continue
            mine = rows
            if isinstance(cache, MappedCache):
                mine = cache.rows(number, self.row, query, key, value)
            sequences = cache._open(mine[0], self.batch, scale)
            store, slot = sequences.store, sequences.slots[self.row : self.row + 1]
            if store.config["center"] == store.config["balance"] == "off":
                mine = mine[:2]  # nothing is fitted to queries: they need not be kept
            store.append(number, *mine, sequences=slot, counts=[len(mine[0])])
        layer = self.layers[number]
        window = self.shape.policies[number] if layer.is_sliding else None
        return _full(query, key, value, None, scale, 0.0, window, None).transpose(1, 2)


def options_of(method, rows_memory=None):
    """The keywords of pariskv.hf.Cache that a method's name stands for; ValueError."""
    name, *changes = method.split("+")
    if name not in METHODS or name == "full" and changes:
        raise ValueError(f"--methods: {method!r}; choose from {', '.join(METHODS)}, and for all "
                         "but full options behind a plus: default+k=400")  # fmt: skip
    if any("=" not in change for change in changes):
        raise ValueError(f"--methods: {method!r}; options are NAME=VALUE")
    places = {} if rows_memory is None else {"rows_memory": rows_memory}
    chosen = {**places, **(METHODS[name] or {}), **dict(c.split("=", 1) for c in changes)}
    numbers = ("sink", "local", "interval", "dense_below", "page_tokens", "fit_positions", "refits")
    return {n: int(value) if n in numbers else value for n, value in chosen.items()}


class World:
    """A model under pariskv's attention function, and its methods' caches, which are reused."""

    def __init__(self, model, methods, rows_memory=None):
        self.model = pariskv.hf.enable(model.eval())
        self.name = pariskv.hf._cache_argument(model)
        self.methods = {method: options_of(method, rows_memory) for method in methods}
        self.device = next(model.parameters()).device
        self._caches, self._most = {}, 0

    def forward(self, ids, cache, **options):
        return self.model(ids, **{self.name: cache}, **options).logits

    def cache(self, method, batch, room):
        """An empty cache of `batch` rows of up to `room` tokens."""
        if batch > self._most:
            self._caches.clear()
            self._most = batch
        held = self._caches.get(method)
        if isinstance(held, FullCache) and not held.holds(batch, room):
            self._caches.pop(method)
            held = None
        if held is None:
            if self.device.type == "cuda":  # the library takes its memory beside torch's
                torch.cuda.empty_cache()
            if method == "full":
                held = FullCache(self.model, batch, room)
            else:
                options = {"exact_from": ONE_BLOCK, "sequences": self._most}
                kind = MappedCache if method.startswith("mapped") else SparseCache
                held = kind(self.model, **options, **self.methods[method])
            self._caches[method] = held
        held.begin(batch)
        return held

    def prefill(self, rows, room):
        """({method: cache}, logits [b, vocabulary]) after the prompts, lists of tokens, each
        through the model once."""
        caches = {m: self.cache(m, len(rows), room) for m in self.methods}
        last = []
        for row, ids in enumerate(rows):
            ids = torch.tensor([ids], device=self.device)
            through = Prefill(self.model, row, len(rows), list(caches.values()))
            logits = self.forward(ids, through, logits_to_keep=1)
            last.append(logits[:, -1])
        lengths = [len(ids) for ids in rows]
        for cache in caches.values():
            if isinstance(cache, FullCache):
                cache.set_lengths(lengths)
            else:  # the store knows each row's own length
                cache.set_length(max(lengths))
        return caches, torch.cat(last)

    def decode(self, cache, logits, rows, limit, pick, is_done):
        """Up to `limit` tokens per row behind rows whose last logits are given; pick(logits)
        chooses them [b, 1], is_done(tokens of each row) is asked every few tokens."""
        at = torch.tensor([[len(ids)] for ids in rows], device=self.device)
        tokens = [pick(logits)]
        for step in range(1, limit):
            if step % CHECK == 0 and is_done(torch.cat(tokens, 1).tolist()):
                break
            places = {"position_ids": at + (step - 1)}
            logits = self.forward(tokens[-1], cache, logits_to_keep=1, **places)[:, -1]
            tokens.append(pick(logits))
        return torch.cat(tokens, 1).tolist()

    def losses(self, ids, cache, begin, block):
        """Yields (first position, negative log-likelihoods [b, t]) of ids[:, begin + 1:], given
        to the cache `block` tokens at a time."""
        for at in range(begin, ids.shape[1] - 1, block):
            piece = ids[:, at : min(at + block, ids.shape[1] - 1)]
            logits = self.forward(piece, cache).float()
            wanted = ids[:, at + 1 : at + 1 + piece.shape[1]]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), wanted.flatten(), reduction="none"
            )
            yield at + 1, loss.view(wanted.shape)
