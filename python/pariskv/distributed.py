"""One cache over several ranks of torch.distributed (gloo on CPUs, NCCL on GPUs).

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    shard = SequenceParallel(pariskv.Cache(layers, kv_heads, query_heads, head_dim, ..))
    shard.append(layer, keys, values, queries)         # every rank passes all tokens
    output = shard.step(layer, query, key, value)      # equal on all ranks

`SequenceParallel` spreads the tokens of a sequence, `HeadParallel` the KV heads. Each rank
retrieves within its own part (k rows and the share of candidates per rank), and outputs are joined
by their log-sum-exp; with k rows on each of R ranks no less is attended than with k rows on one.
`ShardedIndex` spreads a zone whose K and V are its own, and can choose the very candidates and hits
of one device. A rank that dies makes the others raise: at once, or after the timeout of the process
group."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise ImportError(
        f"pariskv.distributed needs torch: pip install 'pariskv[hf]' ({error})"
    ) from error

from ._cache import Cache
from ._exchange import merge
from ._sharded import ShardedHits, ShardedIndex, broadcast_codec

__all__ = [
    "HeadParallel",
    "SequenceParallel",
    "ShardedHits",
    "ShardedIndex",
    "broadcast_codec",
    "merge",
]


class SequenceParallel:
    """The tokens of each sequence in blocks of `block`, dealt to the ranks in turn.

    `cache`: this rank's, of the whole model's shape; sequences are made by `add` here. Regions
    (sink, local, ..) are those of each rank's own tokens. All ranks make the same calls."""

    def __init__(self, cache: Cache, group: Any = None, block: int = 512) -> None:
        if block < 1:
            raise ValueError(f"block is {block}; at least 1")
        self.cache, self.group, self.block = cache, group, block
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._lengths: dict[tuple[int, int], int] = {}

    def add(self) -> int:
        """A new sequence; the same number on every rank."""
        return self.cache.add()

    def remove(self, sequence: int) -> None:
        self.cache.remove(sequence)
        for key in [key for key in self._lengths if key[1] == sequence]:
            del self._lengths[key]

    def length(self, layer: int = 0, sequence: int = 0) -> int:
        """Tokens on all ranks together."""
        return self._lengths.get((layer, sequence), 0)

    def _mine(self, begin: int, count: int) -> Any:
        positions = np.arange(begin, begin + count)
        return np.flatnonzero(positions // self.block % self.ranks == self.rank)

    def append(
        self, layer: int, keys: Any, values: Any, queries: Any = None, *, sequence: int = 0
    ) -> None:
        """Stores this rank's share of keys [n, h, d], values [n, h, dv], queries [n, hq, d]: torch
        tensors of all n tokens. Attention of a prefill is the model's own."""
        begin, count = self.length(layer, sequence), keys.shape[0]
        mine = torch.from_numpy(self._mine(begin, count)).to(keys.device)
        if len(mine):
            rows = [None if rows is None else rows[mine] for rows in (keys, values, queries)]
            self.cache.append(layer, *rows, sequences=[sequence], counts=[len(mine)])
        self._lengths[layer, sequence] = begin + count

    def attend(self, layer: int, query: Any, *, sequence: int = 0, exact: bool = False) -> Any:
        """For query [1, hq, d] over all tokens of all ranks: [1, hq, dv], equal on all ranks."""
        if query.shape[0] != 1:
            raise ValueError(f"query has {query.shape[0]} tokens; one at a time")
        shape = query.shape[0], self.cache.query_heads
        lse = torch.full(shape, float("-inf"), device=query.device)
        if self.cache.length(sequence, layer):
            one = {"sequences": [sequence], "counts": [1]}
            out = self.cache.attend(layer, query, exact=exact, lse=lse, **one)
        else:
            out = query.new_zeros(*shape, self.cache.value_dim)
        return merge(out, lse, self.group)[0]

    def step(
        self,
        layer: int,
        query: Any,
        keys: Any,
        values: Any,
        *,
        sequence: int = 0,
        exact: bool = False,
    ) -> Any:
        """`append` of one token with its query, then `attend`."""
        self.append(layer, keys, values, query, sequence=sequence)
        return self.attend(layer, query, sequence=sequence, exact=exact)


class HeadParallel:
    """The KV heads, with the query heads of their groups, in equal runs on the ranks.

    `cache`: this rank's, with kv_heads / ranks and query_heads / ranks. Calls take tensors of all
    heads and the batches of `pariskv.Cache`; all ranks make the same calls."""

    def __init__(self, cache: Cache, group: Any = None) -> None:
        self.cache, self.group = cache, group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)

    def _own(self, rows: Any, name: str, heads: int) -> Any:
        if rows is None:
            return None
        if rows.shape[1] != heads * self.ranks:
            raise ValueError(
                f"{name} has {rows.shape[1]} heads; {self.ranks} ranks hold {heads} each"
            )
        return rows[:, self.rank * heads : (self.rank + 1) * heads]

    def _rows(self, keys: Any, values: Any, queries: Any) -> list[Any]:
        heads = self.cache.kv_heads, self.cache.kv_heads, self.cache.query_heads
        named = zip((keys, values, queries), ("keys", "values", "query"), heads)
        return [self._own(*each) for each in named]

    def append(self, layer: int, keys: Any, values: Any, queries: Any = None, **batch: Any) -> None:
        """As `pariskv.Cache.append`, of all heads."""
        self.cache.append(layer, *self._rows(keys, values, queries), **batch)

    def step(self, layer: int, query: Any, keys: Any, values: Any, **options: Any) -> Any:
        """As `pariskv.Cache.step`, of all heads: [n, hq, dv], equal on all ranks."""
        own_keys, own_values, own_query = self._rows(keys, values, query)
        out = self.cache.step(layer, own_query, own_keys, own_values, **options).contiguous()
        parts = [torch.empty_like(out) for _ in range(self.ranks)]
        dist.all_gather(parts, out, group=self.group)
        return torch.cat(parts, 1)
