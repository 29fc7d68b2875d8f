"""An experiment: keys and queries under a linear map of each KV head, fitted to the prompt, before
the library sees them (docs/ablations.md, 3).

With k' = M (k - mu) and q' = M^-T q, <q', k'> is <q, k> less a number that all tokens share, so
that attention stays what it is. The error of codes that lose the same share of a key in all
directions grows with |k'|^2 |q'|^2; the mean of that is least with M^T M = K^-1 # Q, the geometric
mean of the inverse of the keys' covariance K and of the queries' second moments Q. The library's
balance is that with K and Q taken as diagonal. As there, K and mu are those of the keys that
queries pick."""

import pariskv.hf
import torch

SHRINK = 0.2, 0.6  # how far K and Q are drawn towards their diagonals
PICKED = 0.1  # of the zone, by each query position
LEAST_ZONE = 1024


def root(matrix, power=0.5):
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp(min=values.amax(-1, keepdim=True) * 1e-6)
    return (vectors * values[..., None, :] ** power) @ vectors.transpose(-1, -2)


def towards_diagonal(matrix, share):
    diagonal = torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
    return (1 - share) * matrix + share * diagonal


def picks(keys, queries):
    """[h, n] how many query positions pick each key: centre, balance, signs, the graded vote."""
    mean, spread = keys.mean(1, keepdim=True), keys.std(1, keepdim=True)
    scale = (queries.square().mean(1, keepdim=True).sqrt() / spread.clamp(min=1e-20)).sqrt()
    width = keys.shape[2]
    noise = torch.randn(width, width, generator=torch.Generator().manual_seed(0))
    turn = torch.linalg.qr(noise.to(keys.dtype)).Q.to(keys.device)
    turned = ((keys - mean) * scale) @ turn
    factor = turned.square().sum(-1) / turned.abs().sum(-1).clamp(min=1e-30)
    votes = ((queries / scale) @ turn) @ torch.sign(turned).transpose(1, 2) * factor[:, None]
    best = votes.topk(max(1, int(PICKED * keys.shape[1])), -1).indices
    return torch.zeros_like(factor).scatter_add_(
        1, best.flatten(1), torch.ones_like(best, dtype=factor.dtype).flatten(1)
    )


def fitted(keys, queries):
    """(mu [h, 1, d], M [h, d, d]) for keys [h, n, d] of the zone and queries [hq, m, d]."""
    keys = keys.double()
    queries = queries.double().unflatten(0, (len(keys), -1)).sum(1)  # of each position
    weights = picks(keys.float(), queries.float()).double()[..., None]
    weights = weights / weights.sum(1, keepdim=True)
    mean = (weights * keys).sum(1, keepdim=True)
    moved = keys - mean
    spread = towards_diagonal(moved.transpose(1, 2) @ (weights * moved), SHRINK[0])
    asked = queries.transpose(1, 2) @ queries / queries.shape[1]
    half, inverse = root(spread), root(spread, -0.5)
    square = inverse @ root(half @ towards_diagonal(asked, SHRINK[1]) @ half) @ inverse
    found = root(square)
    size = torch.linalg.slogdet(found).logabsdet / found.shape[-1]
    return mean, found / size.exp()[:, None, None]


class MappedCache(pariskv.hf.Cache):
    """Rows are kept as float32, so that the map costs no further rounding."""

    def begin(self, batch):
        self.maps = {}
        self.batch = batch

    def rows(self, number, row, query, key, value):
        """(K, V, queries) of a prompt, [t, heads, d]; the map of this layer and row is made."""
        sink, local = (self.settings.options.get(*pair) for pair in (("sink", 128), ("local", 512)))
        zone = slice(sink, key.shape[2] - local)
        width = key.shape[3]
        if zone.stop - zone.start < LEAST_ZONE:
            mean = key.new_zeros(key.shape[1], 1, width).double()
            found = torch.eye(width, device=key.device).double().expand(key.shape[1], -1, -1)
        else:
            mean, found = fitted(key[0, :, zone], query[0, :, -128:])
        held = self.maps.setdefault(number, [None] * self.batch)
        held[row] = [x.float() for x in (mean, found.transpose(1, 2), torch.linalg.inv(found))]
        mapped = self.mapped(query, key, [x[None] for x in held[row]])
        return [tensor[0].transpose(0, 1) for tensor in (mapped[1], value.float(), mapped[0])]

    def mapped(self, query, key, maps):
        mean, found, inverse = maps
        asked = query.float().unflatten(1, (key.shape[1], -1)) @ inverse[:, :, None]
        return asked.flatten(1, 2), (key.float() - mean) @ found

    def attend_layer(self, number, query, key, value, mask, scale):
        held = self.maps[number]
        if isinstance(held, list):
            held = self.maps[number] = tuple(torch.stack(parts) for parts in zip(*held))
        asked, keys = self.mapped(query, key, held)
        out = super().attend_layer(number, asked, keys, value.float(), mask, scale)
        return out.to(query.dtype)
