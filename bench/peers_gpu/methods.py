"""The peers. Each says where its paper keeps K and V; docs/quality.md has the papers."""

import math

import torch

from .base import Peer, Pieces, attend, mean_query, rows_at


class Exact(Peer):
    """Every key's score, then the best k rows; what search replaces."""

    NAME = "exact"

    def select(self, query):
        p = self.problem
        scores = (mean_query(p, query) @ p.keys.transpose(2, 3))[:, :, 0]
        return scores.topk(self.k).indices


class Quest(Peer):
    """Pages of 16 tokens by the bound from their least and largest coordinates. The mean
    of the heads' bounds is one product: of the means of the positive and the negative parts."""

    NAME = "quest"
    PAGE = 16

    def build(self):
        p, parts = self.problem, []
        if p.n % self.PAGE:
            raise ValueError(f"{p.n} keys are no whole pages of {self.PAGE}")
        for _, keys in Pieces(p, self.PAGE << 12):
            paged = keys.unflatten(2, (-1, self.PAGE))
            parts.append(torch.cat([paged.amax(3), paged.amin(3)], -1))
        self.bounds = torch.cat(parts, 2).to(p.keys.dtype)  # [b, h, pages, 2 d]

    def pages(self, query):
        heads = self.problem.grouped(query)
        both = torch.cat([heads.clamp(min=0), heads.clamp(max=0)], -1).mean(2, keepdim=True)
        scores = (both @ self.bounds.transpose(2, 3))[:, :, 0]
        return scores.topk(min(-(-self.k // self.PAGE), scores.shape[2])).indices

    def select(self, query):
        inner = torch.arange(self.PAGE, device=query.device)
        rows = self.pages(query)[..., None] * self.PAGE + inner
        return rows.flatten(2)


class PQCache(Peer):
    """m = 2 parts of 6 bits: a table of the sums of both parts' products, one look-up per key.
    Codes are kept as 4-byte numbers of table entries, which torch looks up without a conversion."""

    NAME, ROWS = "pqcache", "host"
    PARTS, BITS, ROUNDS = 2, 6, 10

    def build(self, centroids=None):
        p = self.problem
        self.centroids = self.trained() if centroids is None else centroids
        codes = [self.encoded(keys) for _, keys in Pieces(p)]
        codes = torch.cat(codes, -1)  # [b, h, 2, n]
        joint = codes[:, :, 0] << self.BITS | codes[:, :, 1]
        table = torch.arange(p.batch * p.heads, device=joint.device) << 2 * self.BITS
        self.joint = (joint + table.view(p.batch, p.heads, 1)).int().flatten()

    def parts(self, vectors):
        """[b, h, t, d] as [b, h, parts, t, d / parts]."""
        return vectors.unflatten(-1, (self.PARTS, -1)).movedim(-2, 2)

    def encoded(self, keys):
        parts, size = self.parts(keys), (self.centroids**2).sum(-1)
        distance = size[..., None, :] - 2 * parts @ self.centroids.transpose(-1, -2)
        return distance.argmin(-1)

    def trained(self):
        """[b, h, parts, 64, d / parts]: k-means over at most 32K keys of the zone."""
        p, count = self.problem, 1 << self.BITS
        step = max(1, p.n // 32768)
        sample = self.parts(p.keys[:, :, ::step].to(p.dense[0].device).float())
        first = sample[:, :, :, :: max(1, sample.shape[3] // count)]
        self.centroids = first[..., :count, :].clone()
        for _ in range(self.ROUNDS):
            size = (self.centroids**2).sum(-1)[..., None, :]
            nearest = (size - 2 * sample @ self.centroids.transpose(-1, -2)).argmin(-1)
            one = torch.nn.functional.one_hot(nearest, count).to(sample.dtype).transpose(-1, -2)
            held = one.sum(-1, keepdim=True)
            self.centroids = torch.where(held > 0, one @ sample / held.clamp(min=1), self.centroids)
        return self.centroids

    def scores(self, query):
        p = self.problem
        mean = self.parts(mean_query(p, query).to(self.centroids.dtype))
        table = (self.centroids @ mean.transpose(-1, -2))[..., 0]  # [b, h, parts, 64]
        both = table[:, :, 0, :, None] + table[:, :, 1, None, :]
        return both.flatten().index_select(0, self.joint).view(p.batch, p.heads, p.n)

    def select(self, query):
        return self.scores(query).topk(self.k).indices


class ShadowKV(Peer):
    """Landmarks of chunks of 8 tokens; keys of the chosen chunks from rank-64 factors on the
    device, their values from host memory; 48 outlier chunks exactly, on the device."""

    NAME, ROWS = "shadowkv", "host"
    CHUNK, RANK, OUTLIERS = 8, 64, 48

    def build(self):
        p, kind = self.problem, self.problem.keys.dtype
        if p.n % self.CHUNK:
            raise ValueError(f"{p.n} keys are no whole chunks of {self.CHUNK}")
        square = sum(keys.transpose(2, 3) @ keys for _, keys in Pieces(p))
        vectors = torch.linalg.eigh(square.double()).eigenvectors
        basis = vectors.flip(-1)[..., : self.RANK].transpose(-1, -2).float()  # [b, h, r, d]
        factors, marks, alike = [], [], []
        for _, keys in Pieces(p):
            chunks = keys.unflatten(2, (-1, self.CHUNK))
            mean = chunks.mean(3, keepdim=True)
            norms = chunks.norm(dim=-1) * mean.norm(dim=-1)
            alike.append(((chunks * mean).sum(-1) / norms.clamp(min=1e-30)).amin(-1))
            marks.append(mean[:, :, :, 0])
            factors.append((keys @ basis.transpose(-1, -2)).to(kind))
        self.basis, self.factors = basis.to(kind), torch.cat(factors, 2)
        self.landmarks = torch.cat(marks, 2).to(kind)
        count = min(self.OUTLIERS, self.landmarks.shape[2])
        self.outliers = torch.cat(alike, 2).topk(count, largest=False).indices
        rows = self.rows_of(self.outliers)
        self.exact_keys, self.exact_values = (rows_at(x, rows) for x in (p.keys, p.values))

    def rows_of(self, chunks):
        inner = torch.arange(self.CHUNK, device=chunks.device)
        return (chunks[..., None] * self.CHUNK + inner).flatten(2)

    def select(self, query):
        p = self.problem
        logits = p.scale * (p.grouped(query) @ self.landmarks.transpose(2, 3)).float()
        shares = logits.softmax(-1).amax(2).scatter(2, self.outliers, -1.0)
        free = self.landmarks.shape[2] - self.outliers.shape[2]
        return self.rows_of(shares.topk(min(-(-self.k // self.CHUNK), free)).indices)

    def step(self, query):
        p, rows = self.problem, self.select(query)
        keys = torch.cat([self.exact_keys, rows_at(self.factors, rows) @ self.basis], 2)
        values = torch.cat([self.exact_values, rows_at(p.values, rows)], 2)
        return attend(p, query, keys, values)


class RaBitQ(Peer):
    """A sign per coordinate of the rotated keys less their mean, and a factor; the best 5 % are
    scored exactly with keys from host memory. torch has no product of bits, so that the signs are
    kept as 16-bit numbers of +-1: 16 times the bytes of the codes, hence an upper bound."""

    NAME, ROWS = "rabitq", "host"
    SHARE = 0.05

    def build(self, rotation=None):
        p = self.problem
        device = p.dense[0].device
        total = sum(keys.sum(2, keepdim=True) for _, keys in Pieces(p))
        mean = total / p.n
        if rotation is None:
            noise = torch.randn(p.width, p.width, generator=torch.Generator().manual_seed(1))
            rotation = torch.linalg.qr(noise).Q.to(device)
        signs, factors = [], []
        for _, keys in Pieces(p):
            rotated = (keys - mean) @ rotation
            factors.append(rotated.square().sum(-1) / rotated.abs().sum(-1).clamp(min=1e-30))
            signs.append(torch.where(rotated > 0, 1.0, -1.0).to(p.keys.dtype))
        self.rotation = rotation
        self.signs, self.factors = torch.cat(signs, 2), torch.cat(factors, 2)

    def candidates(self, query):
        p = self.problem
        rotated = (mean_query(p, query).float() @ self.rotation).to(self.signs.dtype)
        scores = (rotated @ self.signs.transpose(2, 3))[:, :, 0].float() * self.factors
        return scores.topk(min(p.n, max(self.k, math.ceil(self.SHARE * p.n)))).indices

    def step(self, query):
        p, some = self.problem, self.candidates(query)
        keys = rows_at(p.keys, some)
        scores = (mean_query(p, query) @ keys.transpose(2, 3))[:, :, 0]
        best = scores.topk(self.k).indices
        return attend(p, query, rows_at(keys, best), rows_at(p.values, some.gather(2, best)))

    def select(self, query):
        p, some = self.problem, self.candidates(query)
        scores = (mean_query(p, query) @ rows_at(p.keys, some).transpose(2, 3))[:, :, 0]
        return some.gather(2, scores.topk(self.k).indices)
