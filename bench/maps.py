"""An experiment (docs/ablations.md, 3): a linear map of keys and queries, fitted per KV head.

With k' = M (k - mu) and q' = M^-T q, <q', k'> is <q, k> less a number that all tokens share, so
that attention stays what it is. The error of codes that lose the same share of a key in all
directions grows with |k'|^2 |q'|^2; the mean of that is least with M^T M = K^-1 # Q, the geometric
mean of the inverse of the keys' covariance K and of the queries' second moments Q. The library's
balance is that with K and Q taken as diagonal. As there, K and mu are those of the keys that
queries pick."""

import torch

SHRINK = 0.2, 0.6  # how far K and Q are drawn towards their diagonals
PICKED = 0.1  # of the zone, by each query position


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
