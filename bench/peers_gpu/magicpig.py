"""MagicPIG with its hash tables on the device (the paper has them, and the attention to what was
sampled, on the CPU); K and V of the zone lie in host memory."""

import math

import torch

from .base import Peer, Pieces, rows_at


class MagicPIG(Peer):
    """150 tables of 10 hyperplanes. A table is its keys' numbers, ordered by bucket. A head reads
    its buckets, counts, and attends to the keys that came twice, weighed by their chance. Room for
    sampled keys is `room` of the zone; `lost` counts what did not fit."""

    NAME, ROWS = "magicpig", "host"
    BITS, TABLES = 10, 150

    def __init__(self, problem, k=100, room=0.03, planes=None):
        self.room = min(problem.n, math.ceil(room * problem.n) + 64)
        self.given = planes
        super().__init__(problem, k)

    def build(self):
        p = self.problem
        device = p.dense[0].device
        shape = p.width, self.TABLES * self.BITS
        if self.given is None:
            made = torch.Generator().manual_seed(1)
            self.given = torch.randn(shape, generator=made)
        self.planes, self.given = self.given.to(device).float(), None
        self.mean = sum(keys.sum(2, keepdim=True) for _, keys in Pieces(p)) / p.n
        codes = [self.hashed(keys - self.mean) for _, keys in Pieces(p, 1 << 14)]
        codes = torch.cat(codes, 2).transpose(2, 3).contiguous()  # [b, h, tables, n]
        buckets = 1 << self.BITS
        order, starts = [], []
        edges = torch.arange(buckets + 1, device=device, dtype=codes.dtype)
        for table in range(self.TABLES):
            found, at = codes[:, :, table].sort(dim=-1, stable=True)
            order.append(at.int())
            wide = edges.expand(*found.shape[:2], -1).contiguous()
            starts.append(torch.searchsorted(found.contiguous(), wide).int())
        self.order = torch.stack(order, 2).flatten()  # [b h tables n]
        self.starts = torch.stack(starts, 2)  # [b, h, tables, buckets + 1]
        self.longest = int(self.starts.diff(dim=-1).max())

    def hashed(self, vectors):
        """[.., t, tables] bucket numbers."""
        signs = (vectors.float() @ self.planes > 0).unflatten(-1, (self.TABLES, self.BITS))
        powers = 1 << torch.arange(self.BITS, device=signs.device)
        return (signs * powers).sum(-1).short()

    def hits(self, query):
        """[b, h, G, n] in how many tables a key shares the query's bucket."""
        p = self.problem
        bucket = self.hashed(p.grouped(query)).long().transpose(2, 3)  # [b, h, tables, G]
        begin, end = (self.starts.gather(3, bucket + i) for i in (0, 1))
        inner = torch.arange(self.longest, device=query.device, dtype=torch.int32)
        place = begin[..., None] + inner  # [b, h, tables, G, longest]
        is_in = place < end[..., None]
        rows = p.batch * p.heads * self.TABLES
        first = torch.arange(rows, device=query.device).view(p.batch, p.heads, self.TABLES, 1, 1)
        place = first * p.n + place.clamp(max=p.n - 1)
        keys = self.order.index_select(0, place.flatten()).view(place.shape).long()
        counts = torch.zeros(p.batch, p.heads, p.group, p.n, dtype=torch.int32, device=query.device)
        flat = keys.transpose(2, 3).flatten(3)
        return counts.scatter_add_(3, flat, is_in.transpose(2, 3).flatten(3).int())

    def sampled(self, query):
        """([b, h, G, room] positions, how many of them count [b, h, G, 1])."""
        is_hit = self.hits(query) >= 2
        at = is_hit.cumsum(-1, dtype=torch.int32)
        at, total = at - 1, at[..., -1:]
        place = torch.where(is_hit & (at < self.room), at, self.room).long()
        found = place.new_zeros(*place.shape[:3], self.room + 1)
        numbers = torch.arange(self.problem.n, device=query.device).expand(place.shape)
        found.scatter_(3, place, numbers)
        return found[..., : self.room], total

    def lost(self, query):
        return int((self.sampled(query)[1] - self.room).clamp(min=0).max())

    def chance(self, query, keys):
        """ln of the chance that each of keys [b, h, G, r, d] is sampled by its head's query."""
        moved = keys.float() - self.mean[:, :, None]
        heads = self.problem.grouped(query).float()[..., None, :]
        norms = (heads.norm(dim=-1) * moved.norm(dim=-1)).clamp(min=1e-30)
        cosine = ((heads * moved).sum(-1) / norms).clamp(-1, 1)
        same = (1 - cosine.arccos() / math.pi) ** self.BITS
        tables = self.TABLES
        not_two = (1 - same) ** tables + tables * same * (1 - same) ** (tables - 1)
        return (1 - not_two).clamp(min=1e-30).log()

    def step(self, query):
        p = self.problem
        rows, total = self.sampled(query)
        shape = p.batch, p.heads, p.group * self.room
        keys, values = (
            rows_at(source, rows.reshape(shape)).unflatten(2, (p.group, self.room))
            for source in (p.keys, p.values)
        )
        heads = p.grouped(query).float()
        logits = p.scale * (keys.float() @ heads[..., None])[..., 0] - self.chance(query, keys)
        place = torch.arange(self.room, device=query.device)
        logits = logits.masked_fill(place >= total, -torch.inf)
        dense = p.scale * heads @ p.dense[0].float().transpose(2, 3)
        weights = torch.cat([dense, logits], -1).softmax(-1)
        split = dense.shape[-1]
        out = weights[..., :split] @ p.dense[1].float()
        out = out + (weights[..., None, split:] @ values.float())[..., 0, :]
        return out.to(query.dtype).reshape(query.shape)
