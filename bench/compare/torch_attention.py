"""Full attention of torch over all keys of a layer: [h, t, d] keys and values, [hq, d] queries."""

import torch
from torch.nn import functional

from bench.compare.context import HEAD_DIM, KV_HEADS, QUERY_HEADS

SCALE = HEAD_DIM**-0.5


def grouped(query):
    return query.reshape(KV_HEADS, -1, HEAD_DIM)


def matmul(keys, values, query):
    """Two batched products, a softmax in f32 between them."""
    logits = torch.matmul(grouped(query), keys.transpose(1, 2)).float() * SCALE
    weights = torch.softmax(logits, -1).to(values.dtype)
    return torch.matmul(weights, values).reshape(QUERY_HEADS, HEAD_DIM)


def sdpa(keys, values, query):
    """The fused kernel. The heads of a group are its rows of queries: without copies of K and V,
    which `enable_gqa` makes, and so the faster of the two."""
    out = functional.scaled_dot_product_attention(grouped(query)[None], keys[None], values[None])
    return out.reshape(QUERY_HEADS, HEAD_DIM)


FORMS = {"matmul": matmul, "sdpa": sdpa}


def reference(context, query):
    """Full attention in f32."""
    keys, values = context.keys.float(), context.values.float()
    logits = torch.einsum("hgd,htd->hgt", grouped(query.float()), keys) * SCALE
    out = torch.einsum("hgt,htd->hgd", torch.softmax(logits, -1), values)
    return out.reshape(QUERY_HEADS, HEAD_DIM)


class Attention:
    """A form over layers in turn."""

    def __init__(self, form, layers, queries):
        """layers: pairs of keys and values."""
        self.form, self.layers = FORMS[form], layers
        self.queries = queries.to(layers[0][0].dtype)

    def run(self, turn):
        keys, values = self.layers[turn % len(self.layers)]
        with torch.inference_mode():
            return self.form(keys, values, self.queries[turn % len(self.queries), 0])


class PlainRead:
    """Sums buffers in turn: what the memory gives for so many bytes."""

    def __init__(self, size, count):
        words = -(-size // 8)
        self.buffers = [torch.arange(words, dtype=torch.int64) for _ in range(count)]

    def run(self, turn):
        return self.buffers[turn % len(self.buffers)].sum()
