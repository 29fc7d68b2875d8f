"""ShardedIndex: the zone of one sequence over the ranks of torch.distributed, with the budgets of
one device. Exported by pariskv.distributed.

A step with budgets="global", for b query tokens:
  votes of the rank's own keys
  three sums of histograms over the ranks      the vote of the last candidate; three more, by
                                               position, where equal votes stand at the cut
  estimates of the rank's own candidates
  one exchange of [b, hq, 4]                   sums over all candidates and samples
  one exchange of [b, h, k, 2]                 each rank's best hits; all take the k best of them
  one exchange of [b, hq, dv + 1]              outputs with their log-sum-exp
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ._codec import Codec
from ._exchange import gathered, merge
from ._index import Hits, Index
from ._merge import merge as merge_here

NONE = float("-inf")
PPM = 1_000_000
NO_TAIL: dict[str, Any] = {"tail": "drop", "tail_samples": None}
POSITIONS = 31  # bits of a position
DIGITS = ((21, 11), (10, 11), (0, 10))  # (shift, bits) of a vote's 32 bits
PLACES = ((20, 11), (9, 11), (0, 9))  # of a position


class ShardedHits(NamedTuple):
    """What a step of a ShardedIndex finds. Positions are those of the whole zone."""

    positions: Any  # [b, h, k] int64, best first, unused -1; the same on every rank
    scores: Any  # [b, h, k] float32, unused -inf; likewise
    counts: Any  # [b, h] int64; likewise
    candidates: Any  # [b, h, c] int64, this rank's, ascending, unused -1
    candidate_counts: Any  # [b, h] int64, this rank's


class _Found(NamedTuple):
    hits: ShardedHits
    own: Hits  # this rank's of the hits, positions in its index
    tail_lse: Any  # [b, hq] log-mass of this rank's candidates that were not fetched
    rest_lse: Any  # [b, hq] of the keys of all ranks that are no candidates


def broadcast_codec(
    codec: Codec | None, group: Any = None, source: int = 0, /, **given: Any
) -> Codec:
    """The codec of rank `source` on every rank; others pass None. `given`: profile, device and
    options, the same on all ranks, those that the codec was fitted with among them."""
    sent: list[Any] = [None]
    if dist.get_rank(group) == source:
        if codec is None:
            raise ValueError(f"rank {source} is the source and has no codec")
        sent = [(codec.center, codec.balance, codec.value_center)]
    dist.broadcast_object_list(sent, source, group=group)
    return codec if codec is not None else Codec.from_arrays(*sent[0], **given)


class _Largest(NamedTuple):
    chosen: Any  # [.., n] this rank's that are surely among the wanted
    equal: Any  # [.., n] this rank's that are equal to the last of these
    ties: Any  # [..] how many such there are on all ranks
    left: Any  # [..] how many of them are wanted


def _largest(
    keys: Any, valid: Any, wanted: Any, digits: tuple[tuple[int, int], ...], group: Any
) -> _Largest:
    """Of keys [.., n] int64 on every rank the `wanted` [..] largest of all ranks."""
    chosen, active, ties = torch.zeros_like(valid), valid, wanted
    for shift, bits in digits:
        bins = 1 << bits
        digit = (keys >> shift) & (bins - 1)
        counts = torch.zeros(*keys.shape[:-1], bins, dtype=torch.int32, device=keys.device)
        counts.scatter_add_(-1, digit, active.to(torch.int32))
        dist.all_reduce(counts, group=group)
        counts = counts.long()
        wanted = torch.minimum(wanted, counts.sum(-1))
        from_top = counts.flip(-1).cumsum(-1).flip(-1)  # this digit and those above
        # The highest digit from which on there are enough; where none is wanted, above all.
        last = (from_top >= wanted[..., None]).sum(-1) - 1
        last = torch.where(wanted > 0, last, bins)
        above = torch.where(wanted > 0, _at(from_top - counts, last.clamp(max=bins - 1)), 0)
        chosen = chosen | (active & (digit > last[..., None]))
        active = active & (digit == last[..., None])
        ties = torch.where(wanted > 0, _at(counts, last.clamp(max=bins - 1)), 0)
        wanted = wanted - above
    return _Largest(chosen, active, ties, wanted)


def _at(rows: Any, places: Any) -> Any:
    return rows.gather(-1, places[..., None])[..., 0]


def _cut(votes: Any, most: int) -> Any:
    """The `most`-th largest vote of each row [.., 1]; below it nothing is chosen on any rank."""
    count = min(most, votes.shape[-1])
    return (
        votes.topk(count, sorted=True).values[..., -1:] if count else votes[..., :0].sum(-1, True)
    )


def _places(mask: Any) -> Any:
    """Where a mask [b, h, n] is set, [b, h, w] ascending, -1 behind them; w as many as a row has at
    most."""
    counts = mask.sum(-1).flatten()
    width = int(counts.max()) if counts.numel() else 0
    row, place = mask.flatten(0, 1).nonzero().unbind(-1)
    slot = torch.arange(len(row), device=mask.device) - (counts.cumsum(0) - counts)[row]
    found = torch.full((len(counts), width), -1, dtype=torch.long, device=mask.device)
    found[row, slot] = place
    return found.view(*mask.shape[:2], width)


def _ordered(votes: Any) -> Any:
    """Integers of 32 bits that order like votes; -0 is 0."""
    bits = (votes + 0.0).contiguous().view(torch.int32).long()
    return torch.where(bits < 0, ~bits & 0xFFFFFFFF, bits | 0x80000000)


class ShardedIndex:
    """The zone of one sequence in blocks of `block` tokens, dealt to the ranks in turn, with K and
    V of a rank's own tokens beside its index (on a GPU in pinned host memory).

    codec: the same on every rank (`broadcast_codec`), with its options of steps: candidates (a
    share, not "auto"), k, tail. capacity: tokens of all ranks together.
    budgets: "global": candidates and hits are those that one device with all keys would choose, at
    six exchanges a step; tail "drop" or "mean", vote "graded". "rank": every rank takes its share
    of candidates and k hits of its own, at one exchange; no less is attended than by one device.
    All ranks make the same calls; outputs are the same bits on all of them."""

    def __init__(
        self,
        codec: Codec,
        capacity: int,
        *,
        budgets: str = "global",
        group: Any = None,
        block: int = 512,
    ) -> None:
        if budgets not in ("global", "rank"):
            raise ValueError(f"budgets is {budgets!r}; choose from 'global', 'rank'")
        if block < 1:
            raise ValueError(f"block is {block}; at least 1")
        self.group, self.block, self.budgets, self.codec = group, block, budgets, codec
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.capacity, self.length = capacity, 0
        blocks = -(-capacity // block)
        self.own_capacity = -(-blocks // self.ranks) * block
        self.index = Index(codec, self.own_capacity)
        self._rows: tuple[Any, Any] | None = None
        self._sums: Any = None  # [h, dv] float64 of all ranks' good values
        self._good: Any = None  # [h]
        if budgets == "global":
            self._options = _Options(codec)

    # ---- tokens

    def own_length(self) -> int:
        return self.index.length()

    def _mine(self, begin: int, count: int) -> Any:
        places = torch.arange(begin, begin + count)
        return (places // self.block % self.ranks == self.rank).nonzero()[:, 0]

    def _whole(self, own: Any) -> Any:
        """Positions of the zone of positions in this rank's index."""
        place = (own // self.block * self.ranks + self.rank) * self.block + own % self.block
        return torch.where(own >= 0, place, -1)

    def append(self, keys: Any, values: Any) -> None:
        """keys [h, t, d], values [h, t, dv]: torch tensors of all t tokens, of which each rank
        keeps its own."""
        count = keys.shape[1]
        if self.length + count > self.capacity:
            raise ValueError(
                f"{count} tokens behind {self.length}; the capacity is {self.capacity}"
            )
        if self._rows is None:
            self._rows = self._room(keys, values)
            self._sums = torch.zeros(
                values.shape[0], values.shape[2], dtype=torch.float64, device=values.device
            )
            self._good = torch.zeros(values.shape[0], dtype=torch.float64, device=values.device)
        mine = self._mine(self.length, count).to(keys.device)
        if len(mine):
            own = keys[:, mine], values[:, mine]
            begin = self.own_length()
            self.index.append(*own)
            for rows, new in zip(self._rows or (), own):
                rows[0, :, begin : begin + len(mine)].copy_(new)
        good = keys.isfinite().all(-1) & values.isfinite().all(-1)
        self._sums += torch.where(good[..., None], values, 0).sum(1, dtype=torch.float64)
        self._good += good.sum(1)
        self.length += count

    def _room(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """For K and V; those of a token side by side, one piece to fetch, where they are alike."""
        pins = {"pin_memory": keys.device.type == "cuda"}
        shape = 1, keys.shape[0], self.own_capacity
        if keys.dtype == values.dtype and keys.shape[2] == values.shape[2]:
            both = torch.zeros(*shape, 2, keys.shape[2], dtype=keys.dtype, **pins)
            return both[..., 0, :], both[..., 1, :]
        room = [torch.zeros(*shape, a.shape[2], dtype=a.dtype, **pins) for a in (keys, values)]
        return room[0], room[1]

    # ---- steps

    def retrieve(self, query: Any) -> ShardedHits:
        """For query [b, hq, d], b tokens of the sequence; budgets "global" alone."""
        return self._find(query).hits

    def step(self, query: Any, dense: Any = ()) -> tuple[Any, Any]:
        """(output [b, hq, dv], log-sum-exp [b, hq]) for query [b, hq, d]. dense: pairs of K
        [b, h, t, d] and V [b, h, t, dv] attended in full, the same on every rank, of which rank 0
        takes care."""
        self._zone()
        dense = dense if self.rank == 0 else ()
        if self.budgets == "rank":
            return merge(*self._attended(query, None, dense), self.group)
        found = self._find(query)
        out, lse = self._attended(query, found.own, dense)
        if self._options.tail == "mean":
            out, lse = self._with_tail(out, lse, found)
        return merge(out, lse, self.group)

    def _attended(self, query: Any, own: Hits | None, dense: Any) -> tuple[Any, Any]:
        """Over the rank's own rows, of the hits or (None) of its own finding, and dense tokens."""
        batch, heads, _ = query.shape
        width = self.codec.geometry.value_dim
        lse = torch.full((batch, heads), NONE, device=query.device)
        out = torch.zeros(batch, heads, width, dtype=torch.float32, device=query.device)
        given: dict[str, Any] = {"sequences": [0] * batch, "dense": dense, "out": out, "lse": lse}
        if not self.own_length() and not dense:
            return out, lse
        if own is None:
            self.index.step(query, *self._zone(), **given)
        else:
            named = [0] * batch
            rows = self.index.fetch(
                own, *self._zone(), query_heads=heads, sequences=named, **NO_TAIL
            )
            self.index.attend(query, own, rows, **NO_TAIL, **given)
        return out, lse

    def _zone(self) -> tuple[Any, Any]:
        if self._rows is None:
            raise ValueError("no tokens have been appended")
        return self._rows

    def _with_tail(self, out: Any, lse: Any, found: _Found) -> tuple[Any, Any]:
        """The rest is attended as one token with the mean value of the whole zone: on every rank
        the mass of its own candidates, on the first one that of all other keys too."""
        group = out.shape[1] // self._sums.shape[0]
        mean = self._sums / self._good.clamp(min=1)[:, None]
        value = mean.repeat_interleave(group, 0).float().expand_as(out).contiguous()
        masses = [found.tail_lse] + ([found.rest_lse] if self.rank == 0 else [])
        mass = torch.stack(masses).logsumexp(0).float()
        if out.device.type == "cpu":
            joined: tuple[Any, Any] = merge_here([out, value], [lse, mass.contiguous()])
            return joined
        total = torch.logaddexp(lse, mass)
        shares = [(part - total).exp().nan_to_num(0.0)[..., None] for part in (lse, mass)]
        return shares[0] * out + shares[1] * value, total

    # ---- the budgets of one device

    def _find(self, query: Any) -> _Found:
        if self.budgets != "global":
            raise ValueError('budgets is "rank"; retrieve needs budgets="global"')
        self._zone()
        chosen = self._candidates(query)
        samples = self._samples(query.device)
        places, is_candidate, is_sample, logits, plain = self._estimates(query, chosen, samples)
        lse, rest_lse = self._sums_of_all(logits, is_candidate, is_sample, chosen)
        scores = self._scores(logits, plain, lse, is_candidate)
        hits = self._best(places, scores, is_candidate)
        own, fetched = self._own_hits(places, hits)
        tail_lse = _logsumexp(logits, _by_head(is_candidate & ~fetched, query.shape[1]))
        candidates = torch.where(is_candidate, places, -1)
        candidates = candidates.gather(
            -1, (candidates < 0).to(torch.int8).argsort(dim=-1, stable=True)
        )
        found = ShardedHits(
            *hits,
            counts=(hits[0] >= 0).sum(-1),
            candidates=self._whole(candidates),
            candidate_counts=is_candidate.sum(-1),
        )
        return _Found(found, own, tail_lse, rest_lse)

    def _candidates(self, query: Any) -> Any:
        """[b, h, n] of the rank's own keys those that are candidates."""
        batch = query.shape[0]
        if self.own_length():
            votes = self.index.votes(query, sequences=[0] * batch, **self._asked())
        else:
            votes = torch.empty(batch, self.codec.geometry.kv_heads, 0, device=query.device)
        most = self._options.candidates(self.length)
        wanted = torch.full(votes.shape[:-1], most, device=query.device)
        valid = ~votes.isnan()
        places = _places(valid & (votes >= _cut(votes.masked_fill(~valid, NONE), most)))
        is_used = places >= 0
        keys = _ordered(votes.gather(-1, places.clamp(min=0)))
        found = _largest(keys, is_used, wanted, DIGITS, self.group)
        chosen = found.chosen | found.equal
        if bool((found.left < found.ties).any()):  # the same on every rank
            first = (1 << POSITIONS) - 1 - self._whole(places)
            among = _largest(first, found.equal, found.left, PLACES, self.group)
            chosen = found.chosen | among.chosen | among.equal
        # Unused places go to one behind the last.
        mask = torch.zeros(*votes.shape[:-1], votes.shape[-1] + 1, dtype=torch.bool)
        mask = mask.to(query.device)
        return mask.scatter_(-1, places.masked_fill(~chosen, votes.shape[-1]), True)[..., :-1]

    def _samples(self, device: Any) -> Any:
        """[n] of the rank's own keys those that the whole zone's samples are."""
        mask = torch.zeros(self.own_length(), dtype=torch.bool, device=device)
        if self._options.tail != "mean" or not self.length:
            return mask
        count = min(self.length, self._options.samples)
        places = torch.arange(count, device=device) * self.length // count
        blocks = places // self.block
        own = blocks % self.ranks == self.rank
        mask[(blocks // self.ranks * self.block + places % self.block)[own]] = True
        return mask

    def _asked(self) -> dict[str, Any]:
        """Options of the rank's own plan: room for as many candidates as all ranks have."""
        room = self._options.candidates(self.capacity) + self._options.samples
        share = min(PPM, -(-room * PPM // self.own_capacity))
        return {"candidates": f"{share / PPM:.6f}", **NO_TAIL}

    def _estimates(self, query: Any, chosen: Any, samples: Any) -> tuple[Any, ...]:
        """Of the rank's candidates and samples: positions in its index [b, h, c] (-1: unused),
        which are candidates, which only samples; per head [b, hq, c] logits, plain estimates."""
        wanted = chosen | samples
        places, counts = _places(wanted), wanted.sum(-1)
        width, is_used = places.shape[-1], places >= 0
        is_candidate = is_used & chosen.gather(-1, places.clamp(min=0))
        if width:
            given = {"sequences": [0] * query.shape[0], **self._asked()}
            found = self.index.rerank(query, places.int(), counts.int(), **given)
            plain = found.estimates[..., :width]
        else:
            plain = torch.empty(*query.shape[:2], 0, device=query.device)
        return (
            places,
            is_candidate,
            is_used & ~is_candidate,
            self._options.logits(plain).double(),
            plain,
        )

    def _sums_of_all(
        self, logits: Any, is_candidate: Any, is_sample: Any, chosen: Any
    ) -> tuple[Any, Any]:
        """Log-sum-exp of all ranks' candidates [b, hq], and the log-mass of all other keys."""
        heads = logits.shape[1]
        sampled = _by_head(is_sample, heads)
        packed = torch.stack(
            [
                _logsumexp(logits, _by_head(is_candidate, heads)),
                _logsumexp(logits, sampled & ~logits.isnan()),
                sampled.sum(-1).double(),
                _by_head(chosen.sum(-1, keepdim=True), heads)[..., 0].double(),
            ]
        )
        lse, rest, count, candidates = gathered(packed, self.group).unbind(1)
        others = self.length - candidates.sum(0)
        rest_lse = rest.logsumexp(0) - count.sum(0).log() + others.log()
        return lse.logsumexp(0), torch.where(count.sum(0) > 0, rest_lse, NONE)

    def _scores(self, logits: Any, plain: Any, lse: Any, is_candidate: Any) -> Any:
        """[b, h, c] float32; -inf: no candidate."""
        heads = is_candidate.shape[1]
        if self._options.rank == "group":
            shares = (logits - lse[..., None]).unflatten(1, (heads, -1))
            scores = shares.logsumexp(2).float()
        else:
            scores = plain.unflatten(1, (heads, -1)).mean(2)
        return torch.where(is_candidate, scores, NONE)

    def _best(self, places: Any, scores: Any, is_candidate: Any) -> tuple[Any, Any]:
        """(positions [b, h, k] of the zone, scores) of the best of all ranks, the same on all."""
        k = self._options.k
        order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        own = torch.where(is_candidate, self._whole(places), -1).gather(-1, order)
        packed = torch.stack([own.double(), scores.gather(-1, order).double()])
        missing = k - packed.shape[-1]
        if missing:
            filler = packed.new_tensor([-1.0, NONE]).view(2, 1, 1, 1)
            packed = torch.cat([packed, filler.expand(*packed.shape[:-1], missing)], -1)
        parts = gathered(packed, self.group)  # [ranks, 2, b, h, k]
        positions, best = (parts[:, i].permute(1, 2, 0, 3).flatten(2) for i in (0, 1))
        by_place = torch.where(positions < 0, float("inf"), positions).sort(-1).indices
        positions, best = positions.gather(-1, by_place), best.gather(-1, by_place)
        order = best.sort(dim=-1, descending=True, stable=True).indices[..., :k]
        return positions.gather(-1, order).long(), best.gather(-1, order).float()

    def _own_hits(self, places: Any, hits: tuple[Any, Any]) -> tuple[Hits, Any]:
        """The rank's own of the hits, as its index takes them; which places [b, h, c] they are."""
        positions = hits[0]
        blocks = positions // self.block
        is_own = (positions >= 0) & (blocks % self.ranks == self.rank)
        own = blocks // self.ranks * self.block + positions % self.block
        own = torch.where(is_own, own, -1)
        order = (~is_own).to(torch.int8).argsort(dim=-1, stable=True)  # unused ones last
        own = own.gather(-1, order)
        fetched = torch.zeros(
            *own.shape[:2], self.own_length() + 1, dtype=torch.bool, device=own.device
        )
        fetched.scatter_(-1, torch.where(own >= 0, own, self.own_length()), True)
        made = Hits(
            positions=own.int().contiguous(),
            scores=hits[1].gather(-1, order).contiguous(),
            counts=is_own.sum(-1).int(),
            candidates=None,
            candidate_counts=None,
            estimates=None,
            rest_lse=None,
            sample_estimates=None,
        )
        return made, (places >= 0) & fetched.gather(-1, places.clamp(min=0))


class _Options:
    """The step's, as far as they are computed with here. ValueError: what is not served."""

    def __init__(self, codec: Codec) -> None:
        config = codec.config
        served = {
            "vote": ("graded",),
            "tail": ("drop", "mean"),
            "share": ("0",),
            "value_norm": ("off",),
        }
        for name, values in served.items():
            if config[name] not in values:
                raise ValueError(
                    f'{name} is {config[name]!r}; budgets="global" serves {", ".join(values)}; '
                    'budgets="rank" serves all'
                )
        if config["candidates"] == "auto":
            raise ValueError('candidates is "auto"; budgets="global" takes a share, as 0.02')
        self.tail, self.rank = config["tail"], config["rank"]
        self.k = int(config["k"])
        self.ppm = max(1, round(float(config["candidates"]) * PPM))
        self.samples = int(config["tail_samples"]) if self.tail == "mean" else 0
        scale = config["scale"]
        width = codec.geometry.head_dim
        self.scale = 1 / math.sqrt(width) if scale == "auto" else float(scale)
        self.soft_cap = float(config["soft_cap"])

    def candidates(self, length: int) -> int:
        """docs/algorithm.md, 5."""
        return min(length, max(self.k, -(-length * self.ppm // PPM)))

    def logits(self, estimates: Any) -> Any:
        if not self.soft_cap:
            return estimates * self.scale
        return torch.tanh(estimates * self.scale / self.soft_cap) * self.soft_cap


def _by_head(rows: Any, heads: int) -> Any:
    """[b, h, ..] as [b, hq, ..]."""
    return rows.repeat_interleave(heads // rows.shape[1], 1)


def _logsumexp(logits: Any, mask: Any) -> Any:
    return torch.where(mask, logits, NONE).logsumexp(-1)
