"""Random K and V of one layer, and queries: what every method of a comparison works on."""

from dataclasses import dataclass

import torch

KV_HEADS, QUERY_HEADS, HEAD_DIM = 8, 32, 128
GROUP = QUERY_HEADS // KV_HEADS
SINK, TAIL = 128, 768  # dense tokens before and behind the zone
DENSE = SINK + TAIL
ROW_BYTES = 2 * HEAD_DIM * 2  # K and V of a token and KV head in bf16


@dataclass
class Context:
    """keys, values [h, sink + n + tail, d], in bf16."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def n(self):
        return self.keys.shape[1] - DENSE

    def part(self, name):
        """(keys, values) of "sink", "zone" or "tail" as views."""
        cut = {
            "sink": slice(0, SINK),
            "zone": slice(SINK, SINK + self.n),
            "tail": slice(SINK + self.n, None),
        }[name]
        return self.keys[:, cut], self.values[:, cut]


def context_bytes(n):
    return KV_HEADS * (n + DENSE) * ROW_BYTES


def make_context(n, seed):
    """Keys with a centre and a spread per coordinate, as keys of models have; values without."""
    random = torch.Generator().manual_seed(seed)
    shape = (KV_HEADS, n + DENSE, HEAD_DIM)
    keys, values = (torch.empty(shape, dtype=torch.bfloat16) for _ in range(2))
    for head in range(KV_HEADS):
        center = 2 * torch.randn(HEAD_DIM, generator=random)
        spread = torch.exp(0.3 * torch.randn(HEAD_DIM, generator=random))
        block = torch.empty(shape[1:])
        keys[head] = block.normal_(generator=random).mul_(spread).add_(center)
        values[head] = block.normal_(generator=random)
    return Context(keys, values)


def make_queries(count, seed, scale=1.0):
    """[count, 1, hq, d] in bf16: one query of all heads per step."""
    random = torch.Generator().manual_seed(seed)
    queries = scale * torch.randn((count, 1, QUERY_HEADS, HEAD_DIM), generator=random)
    return queries.to(torch.bfloat16)
